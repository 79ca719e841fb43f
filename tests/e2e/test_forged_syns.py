# SPDX-License-Identifier: Apache-2.0
"""A million forged SYNs a second offered, from inside the kernel: who is honest gets through.

What arrives is what one CPU can take. The flood comes by an interface of its own, or by the one
that the clients come by; backends answer it by an XDP program, and all others from their stacks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.forged import INTERFACE, ForgedSyns, Forger
from bench.honest import FAR_INTERFACE, Clients, Seen, far_away
from tests.support.clients import connect, who
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from xdp_router.adapters.bpf_syscall import online_cpus
from xdp_router.core import abi
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.namespace import Namespace

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3")))
OFFERED = 1_000_000
FLOOD_CPU = 1
SECONDS = 5.0
STREAMS, NEWCOMERS = 100, 100
FAR_STREAMS, FAR_NEWCOMERS = 10, 20
FAR_NS = 100_000_000
MAX_GROWTH_KIB = 64 << 10
MOST_AGAIN = 0.01
WARM = 20
AS_SHIPPED = 'heartbeat_stale = "100ms"'
BEYOND = ("budget_global", "budget_service", "budget_prefix", "ring_deep", "ring_full")


@dataclass(frozen=True)
class Flooded:
    """A router, what floods it, and clients that are far away."""

    router: Router
    forged: ForgedSyns
    far: Namespace

    def counters(self, during: Callable[[], None]) -> tuple[dict[str, int], float]:
        """How far each counter comes in a time, and how long that was in seconds."""
        before, began = self.router.counters(), time.monotonic()
        during()
        after, ended = self.router.counters(), time.monotonic()
        return {name: after[name] - before[name] for name in after}, ended - began


@contextlib.contextmanager
def flooded_router(
    private_mounts: Path, settings: str, threaded: bool = False
) -> Iterator[Flooded]:
    """All of it, attached and ready; the flood has not begun."""
    with contextlib.ExitStack() as undo:
        lab = undo.enter_context(running_lab(SPEC))
        forged = ForgedSyns(lab, lab.directory, undo, threaded)
        far = undo.enter_context(far_away(lab, FAR_NS))
        router = undo.enter_context(router_in(lab, private_mounts))
        router.start(
            calm_config(SPEC, settings, deadline="50ms", fallback="b2"),
            interfaces=(*lab.router_interfaces, INTERFACE, FAR_INTERFACE),
        )
        yield Flooded(router, forged, far)


@pytest.fixture(scope="module")
def flooded(private_mounts: Path, request: pytest.FixtureRequest) -> Iterator[Flooded]:
    """A router as it is shipped; threaded: a million do come, and most of them to a full queue."""
    with flooded_router(private_mounts, AS_SHIPPED, request.param) as made:
        yield made


def resident_kib(pid: int) -> int:
    """Memory of a process that lies in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def while_flooded(flooded: Flooded, forger: Forger) -> tuple[Seen, Seen]:
    """What near and far clients see during the flood."""
    service = flooded.router.service
    near = Clients(flooded.router.lab.client, service)
    far = Clients(flooded.far, service)
    seen: dict[str, Seen] = {}

    def go(name: str, clients: Clients, streams: int, rate: int) -> None:
        seen[name] = clients.during(streams, rate, SECONDS)

    threads = [
        threading.Thread(target=go, args=("near", near, STREAMS, NEWCOMERS)),
        threading.Thread(target=go, args=("far", far, FAR_STREAMS, FAR_NEWCOMERS)),
    ]
    with forger.flooding(OFFERED, FLOOD_CPU):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return seen["near"], seen["far"]


@pytest.mark.parametrize(
    ("flooded", "way", "threaded"),
    [(False, "own", False), (False, "shared", False), (True, "own", True)],
    indirect=["flooded"],
    ids=["own", "shared", "threaded"],
)
def test_a_million_syns_a_second(flooded: Flooded, way: str, threaded: bool) -> None:
    """Every stream lives and loses no byte; every newcomer gets in, near or 100 ms away.

    By an interface of its own the flood costs hardly anybody a SYN's retransmission: only the wires
    to the backends are shared. On the clients' interface a full wire in front of XDP may cost more.
    The daemon's memory and CPU time are bounded.
    """
    router = flooded.router
    warm = Clients(router.lab.client, router.service).during(0, WARM, 1.0)
    assert not warm.failed
    before_kib, before_s = resident_kib(router.pid), cpu_s(router.pid)
    before = flooded.forged.counts()
    forger: Forger = getattr(flooded.forged, way)
    seen: list[Seen] = []
    counted, took = flooded.counters(lambda: seen.extend(while_flooded(flooded, forger)))
    near, far = seen
    grown_kib = resident_kib(router.pid) - before_kib
    used_s = cpu_s(router.pid) - before_s
    forged = {name: now - before[name] for name, now in flooded.forged.counts().items()}
    beyond = {name: counted[name] for name in BEYOND}
    print(
        f"sent {forger.sent() / took:,.0f}/s, at backends {forged['at_backends'] / took:,.0f}/s, "
        f"answered {forged['answered'] / took:,.0f}/s; {beyond}; events "
        f"{counted['first_packet'] / took:,.0f}/s; cpu {used_s / took:.0%}, +{grown_kib} KiB; "
        f"connect at most {max(near.connect_ms):.0f}/{max(far.connect_ms):.0f} ms; "
        f"SYNs again {near.syn_retransmits}/{far.syn_retransmits}"
    )
    assert (near.failed, far.failed) == ([], [])
    assert (near.streams_kept, far.streams_kept) == (STREAMS, FAR_STREAMS)
    assert len(near.connect_ms) == NEWCOMERS * SECONDS
    assert len(far.connect_ms) == FAR_NEWCOMERS * SECONDS
    assert forged["at_backends"] > 100_000, "too few to be a flood: the machine is too busy"
    assert sum(beyond.values()) > 0
    assert counted["ring_full"] == counted["event_lost"] == 0
    # Only whoever answered a SYN-ACK has a place in the table of flows.
    flows = STREAMS + FAR_STREAMS + (NEWCOMERS + FAR_NEWCOMERS) * SECONDS
    assert counted["promoted"] == flows
    assert grown_kib < MAX_GROWTH_KIB
    assert used_s < 1.2 * took
    if way == "own" and not threaded:
        # Mostly none; one in 960 was seen on a machine with five times as much to do as CPUs.
        # With events that wait in a deep ring it is one in three.
        again = near.syn_retransmits + far.syn_retransmits
        assert again <= MOST_AGAIN * (NEWCOMERS + FAR_NEWCOMERS) * SECONDS
        # No entry of a handshake goes before the backend has answered.
        assert forged["answered"] >= 0.999 * forged["at_backends"]
    assert not router.events("fault")


def test_a_handshake_outlives_its_entries(private_mounts: Path) -> None:
    """Most clients connect whose round trip is longer than entries live: the hash finds the same.

    Those fail that were raced, because a hash does not know who has won.
    """
    settings = f"pending_flows = 4096\n{AS_SHIPPED}"
    with flooded_router(private_mounts, settings) as flooded:
        far = Clients(flooded.far, flooded.router.service, timeout_s=4.0)
        assert not far.during(0, 10, 1.0).failed
        with flooded.forged.own.flooding(OFFERED, FLOOD_CPU):
            time.sleep(1.0)  # full by now, and hashing
            seen: list[Seen] = []
            counted, _ = flooded.counters(lambda: seen.append(far.during(0, FAR_NEWCOMERS, 4.0)))
        (found,) = seen
        print(f"{len(found.connect_ms)} in, {len(found.failed)} not; {counted['orphan_hashed']}")
        # Entries over budget lose only each other: those that the daemon holds outlive the flood.
        assert len(found.connect_ms) > len(found.failed)


def raced(router: Router) -> bool:
    """Whether a new connection's first packet was raced."""
    with connect(router) as peer:
        who(peer)
        flow = router.flow(peer.getsockname())
    return flow is not None and flow["decision"]["mode"] == "race"


@pytest.mark.skipif(len(online_cpus()) < 2, reason="one CPU has all of the rate anyway")
def test_the_cpu_where_syns_arrive_has_the_rate(private_mounts: Path) -> None:
    """Nearly all of event_rate, two seconds after they all began to arrive on one CPU."""
    rate = 2_000
    settings = f"event_rate = {rate}\nevent_burst = 200\n{AS_SHIPPED}"
    with flooded_router(private_mounts, settings) as flooded:
        with flooded.forged.own.flooding(10 * rate, FLOOD_CPU):
            time.sleep(3.0)
            counted, took = flooded.counters(lambda: time.sleep(4.0))
        hot = abi.SHARE_ONE / flooded.router.maps_read(lambda m: m.event_shares.read())[FLOOD_CPU]
        print(f"{counted['first_packet'] / took:.0f} events/s, share {hot:.2f}")
        assert hot > 0.9
        assert 0.7 * rate < counted["first_packet"] / took < 1.1 * rate
        wait_for(lambda: raced(flooded.router), 5.0, "raced again after the flood")


def test_one_prefix_has_its_own_rate(private_mounts: Path) -> None:
    """A flood from 64 prefixes has 64 times their rate, and a client of another one is raced."""
    rate, burst, prefixes = 10, 10, 64
    settings = f"event_rate_per_prefix = {rate}\nevent_burst = {burst}\n{AS_SHIPPED}"
    with flooded_router(private_mounts, settings) as flooded:
        with flooded.forged.own.flooding(20_000, FLOOD_CPU):
            counted, took = flooded.counters(lambda: time.sleep(3.0))
            wait_for(lambda: raced(flooded.router), 5.0, "an honest client's race")
        assert counted["budget_prefix"] > counted["first_packet"]
        assert counted["first_packet"] <= prefixes * (rate * (took + 1) + burst)
