# SPDX-License-Identifier: Apache-2.0
"""Other sizes of maps at a takeover: connections of both families go on, and none is lost."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.clients import dial, receive, who
from tests.support.netns import wait_for
from tests.support.restart_traffic import RestartTraffic
from tests.support.router import Router, calm_config
from tests.support.small_router import flow_entries, put_flow
from tests.support.stopped_router import SPEC
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import find_instances, identity

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

LOSSES = (
    *("no_path", "tail_call_missed", "orphan_reset", "orphan_dropped", "refused_no_backend"),
    "flow_not_moved",
)
IDLE = 40
"""Connections of each family that say nothing while sizes change: the daemon moves them."""


def config(pending: int = 4096) -> str:
    """A service of each family."""
    six = SPEC.config_toml(family=6, deadline="1s", fallback="b2")
    six = six.replace(f'name = "{SPEC.service_name}"', 'name = "six"').replace('"b', '"six')
    return calm_config(SPEC, f"pending_flows = {pending}", fallback="b2") + six


def service_of(router: Router, family: int) -> tuple[str, int]:
    """Where the service of a family is."""
    return router.lab.spec.addresses_of(6).service if family == 6 else router.service


@contextlib.contextmanager
def idle_connections(router: Router, each: int = IDLE) -> Iterator[list[socket.socket]]:
    """So many of each family, that have been answered once."""
    with contextlib.ExitStack() as undo:
        peers = []
        for family in (4, 6):
            for _ in range(each):
                peer = dial(router.lab.client, service_of(router, family), timeout=10)
                peers.append(undo.enter_context(peer))
                who(peer)
        yield peers


def still_there(peers: list[socket.socket]) -> None:
    """Each of them is answered, from the same connection."""
    for number, peer in enumerate(peers):
        said = f"still there {number}\n".encode()
        peer.sendall(said)
        assert receive(peer, len(said)) == said


def pins_of(router: Router) -> tuple[int, int] | None:
    """Which directory of pins is in its place."""
    (found,) = find_instances(router.pins)
    return identity(found.path)


def pins_of_before(router: Router) -> list[str]:
    """Tables of before that are pinned."""
    (found,) = find_instances(router.pins)
    return sorted(each.name for each in found.path.glob("flow_table_previous*"))


def _wait_for_switch(router: Router, before: tuple[int, int] | None) -> None:
    end = time.monotonic() + 60
    while pins_of(router) == before:
        assert time.monotonic() < end, "it did not take over"
        time.sleep(0.0005)


def moved(router: Router) -> None:
    """Wait until nothing is left in tables of before."""
    wait_for(lambda: not pins_of_before(router), 20, "all flows are moved")


@pytest.mark.timeout(300)  # on a machine that others use as well
def test_sizes_go_up_and_down_under_traffic(router: Router) -> None:
    """Several in a row, by SIGKILL and SIGTERM: streams, new and idle connections lose nothing."""
    router.start(config(), "--persist", "--max-flows", "1000")
    with (
        RestartTraffic(router, 30, 20) as four,
        RestartTraffic(router, 30, 20, service_of(router, 6)) as six,
        idle_connections(router) as peers,
    ):
        before = 1000
        for number, size in enumerate((5000, 1500, 1501, 4000)):
            four.wait_for_more(5)
            six.wait_for_more(5)
            router.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
            router.start(config(), "--persist", "--max-flows", str(size))
            told = {line["map"]: (line["before"], line["size"])
                    for line in router.events("map_resized")}  # fmt: skip
            assert told == {"flow_table": (before, size), "flow_table6": (before, size)}
            before = size
            rows = router.json("flows", "--limit", "5000")
            here = {peer.getsockname()[1] for peer in peers}
            assert here <= {int(row["client"].rpartition(":")[2]) for row in rows}
        moved(router)
        still_there(peers)
        four.wait_for_more(5)
        six.wait_for_more(5)
    counters = router.counters()
    assert {name: counters[name] for name in LOSSES} == dict.fromkeys(LOSSES, 0)


@pytest.mark.timeout(300)
def test_killed_in_the_middle_of_it(router: Router) -> None:
    """At whatever moment, with another size each time: nothing that was established is lost."""
    text = config()
    router.start(text, "--persist", "--max-flows", "1000")
    with RestartTraffic(router, 20, 5) as four, idle_connections(router) as peers:
        router.stop(signal.SIGKILL)
        for number, after_s in enumerate((0, 0.002, 0.01, 0, 0.05, 0.2, 0.005, None)):
            size = (3000, 1000, 2000)[number % 3]
            options = ("--persist", "--max-flows", str(size), "--config", str(router.config))
            argv = router._attach_argv(router.lab.router_interfaces, *options)
            before = pins_of(router)
            attaching = router.lab.router.spawn(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if after_s is None:
                time.sleep(1.5)  # while it loads
            else:
                _wait_for_switch(router, before)
                time.sleep(after_s)
            attaching.kill()
            attaching.wait()
            if number % 3 == 2:
                still_there(peers)
        router.start(text, "--persist", "--max-flows", "1000")
        moved(router)
        still_there(peers)
        four.wait_for_more(2)
    (place,) = router.pins.glob("v*")
    assert len(list(place.iterdir())) == 1


def test_all_tables_of_another_size(router: Router) -> None:
    """Pending flows, and what goes by the number of services and backends, come along."""
    router.start(config(), "--persist")
    with idle_connections(router, 3) as peers:
        carried = router.counters()["promoted"]
        router.stop(signal.SIGKILL)
        more = "".join(
            f'[[service]]\nname = "more{n}"\naddress = "198.18.100.1:{2000 + n}"\n'
            f'[[service.backend]]\nname = "m{n}"\naddress = "198.19.1.2:{3000 + n}"\n'
            for n in range(40)
        )
        router.start(config(pending=9000) + more, "--persist")
        sizes = {line["map"]: line["size"] for line in router.events("map_resized")}
        assert sizes["pending_flows"] == sizes["flood_flows6"] == 9000
        assert {"backends", "services", "usage", "traffic_ended", "names"} <= sizes.keys()
        assert "flow_table" not in sizes
        still_there(peers)
        assert router.counters()["promoted"] == carried
        kept = {row["name"]: row["connections"] for row in router.ask("services")}
        assert (kept["web"], kept["six"]) == (3, 3)
        with dial(router.lab.client, router.service, timeout=10) as peer:
            who(peer)


def test_too_small_is_refused_before_anything_is_changed(router: Router) -> None:
    """With the number that is needed; what was there goes on, and takes the size that fits."""
    router.start(config(), "--persist", "--max-flows", "2000")
    with idle_connections(router, 5) as peers:
        router.stop()
        router.maps_read(_fill)
        small = ("--persist", "--config", str(router.config), "--max-flows", "1000")
        done = router.attach_in_vain(router.lab.router_interfaces, *small)
        assert done.returncode == 1
        assert "flow_table: 1005 connections are established, more than max_flows = 1000" in (
            done.stderr
        )
        assert "--max-flows 1005 or more, or with 2000 as before" in done.stderr
        assert pins_of_before(router) == []
        still_there(peers)
        router.start(None, "--persist", "--max-flows", "1005")
        moved(router)
        still_there(peers)


def _fill(maps: Maps) -> None:
    """A thousand connections more."""
    for port in range(1000):
        put_flow(maps, flow_entries(20_000 + port, time.monotonic_ns()))
