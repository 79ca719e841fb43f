# SPDX-License-Identifier: Apache-2.0
"""A flood of forged SYNs: who is connected notices nothing, who wants to be gets there."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import SEED
from tests.support.clients import connect, echo_intact, random_bytes, who, who_answers
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab, wait_until_idle
from tests.support.segments import parse_segment
from tests.support.syn_flood import Flood, frames
from xdp_router.adapters.control import ControlError
from xdp_router.lab import BackendSpec, LabSpec, links

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3")))
SYNS = 200_000
RATE = 45_000
LIMIT_S = 6.0
BLOCK = 1 << 16
HONEST_PAUSE_S = 0.02
HONEST_TIMEOUT_S = 15.0
MAX_OPEN = 5_000
MAX_GROWTH_KIB = 100 << 10
SPENT = ("budget_global", "budget_service", "budget_prefix", "ring_deep", "ring_full")


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """A router as configured by default, but for a smaller limit of open decisions."""
    config = calm_config(SPEC, f"max_open_decisions = {MAX_OPEN}", deadline="50ms", fallback="b2")
    with routed_lab(private_mounts, SPEC, config) as started:
        yield started


def prepare(router: Router, count: int, rate: int) -> Flood:
    """A flood from the client's namespace."""
    macs = bytes.fromhex((links.mac(0, 0, 1) + links.mac(0, 0, 2)).replace(":", ""))
    return Flood.prepare(
        *(router.lab.client, "eth0", macs, router.service),
        count=count,
        rate=rate,
        limit_s=LIMIT_S,
        seed=SEED,
    )


@dataclass
class Meanwhile:
    """What goes on beside the flood, in threads; the first failure of each ends it."""

    stop: threading.Event = field(default_factory=threading.Event)
    blocks: int = 0
    connect_s: list[float] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @contextlib.contextmanager
    def going_on(self, *bodies: Callable[[], None]) -> Iterator[None]:
        """Repeat each body in its own thread while the block runs."""
        threads = [threading.Thread(target=self._repeat, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def _repeat(self, body: Callable[[], None]) -> None:
        try:
            while not self.stop.is_set():
                body()
        except BaseException as error:  # the test looks at it
            self.failures.append(error)


def resident_kib(pid: int) -> int:
    """Memory of a process that lies in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


def open_decisions(router: Router) -> int:
    """Open decisions, or 0 while the daemon is too busy to say."""
    try:
        return int(router.ask("status")["open_decisions"])
    except ControlError:
        return 0


def raced(router: Router) -> bool:
    """Whether the first packet of a new connection was raced."""
    with connect(router, timeout=HONEST_TIMEOUT_S) as peer:
        who(peer)
        flow = router.flow(peer.getsockname())
    return flow is not None and flow["decision"]["mode"] == "race"


def test_frames_are_what_a_client_sends() -> None:
    """The forged frames are distinct SYNs with the checksums that a client would compute."""
    macs = bytes(range(12))
    made = list(frames(macs, ("198.18.100.1", 80), 70_000, seed=1))
    segments = [parse_segment(frame[14:]) for frame in made[::7_000]]
    for frame, segment in zip(made[::7_000], segments, strict=True):
        assert segment is not None
        assert segment.is_syn
        assert frame == macs + b"\x08\x00" + segment.packet()
    assert len({frame[26:30] + frame[34:36] for frame in made}) == len(made)


def test_a_flood_of_forged_syns(router: Router) -> None:
    """A verified stream loses nothing, honest clients connect, the daemon stays bounded.

    What the daemon cannot take, XDP decides, and counts why; afterwards all is raced again.
    """
    assert who_answers(router) in ("b1", "b2", "b3")
    flood = prepare(router, SYNS, RATE)
    before_kib = resident_kib(router.pid)
    meanwhile = Meanwhile()
    payload = random_bytes(BLOCK)
    most_open = most_kib = 0
    with router.counted() as counted, connect(router, timeout=30.0) as stream:
        name = who(stream)

        def keep_streaming() -> None:
            assert echo_intact(stream, payload), "the stream lost or changed bytes"
            meanwhile.blocks += 1

        def connect_anew() -> None:
            started = time.monotonic()
            with connect(router, timeout=HONEST_TIMEOUT_S) as peer:
                meanwhile.connect_s.append(time.monotonic() - started)
                who(peer)
            time.sleep(HONEST_PAUSE_S)

        with meanwhile.going_on(keep_streaming, connect_anew):
            flood.begin()
            while flood.running:
                most_open = max(most_open, open_decisions(router))
                most_kib = max(most_kib, resident_kib(router.pid))
                time.sleep(0.05)
        sent, seconds = flood.wait()
        spent = {name: counted(name) for name in SPENT}
        print(
            f"{sent} SYNs in {seconds:.1f} s; stream {meanwhile.blocks * BLOCK >> 10} KiB; "
            f"{len(meanwhile.connect_s)} connections, p50/max "
            f"{statistics.median(meanwhile.connect_s):.3f}/{max(meanwhile.connect_s):.3f} s; "
            f"open at most {most_open}; {before_kib} -> {most_kib} KiB; {spent}"
        )
        assert not meanwhile.failures, meanwhile.failures
        assert meanwhile.blocks > 0
        assert len(meanwhile.connect_s) > 0
        assert sent > SYNS / 20, "too few to be a flood: the machine is too busy"
        assert sum(spent.values()) > 0
        assert most_open <= MAX_OPEN
        assert most_kib - before_kib < MAX_GROWTH_KIB
        # Only whoever answered a SYN-ACK has a place in the table of flows.
        assert counted("promoted") == len(meanwhile.connect_s) + 1
        wait_until_idle(router, 30.0)
        wait_for(lambda: raced(router), 20.0, "first packets are raced again")
        assert echo_intact(stream, payload)
        flow = router.flow(stream.getsockname())
        assert flow is not None
        assert (flow["state"], flow["backend"]) == ("established", name)
    assert not router.events("fault")
