# SPDX-License-Identifier: Apache-2.0
"""Over budget, with entries of a flood's own or without any: honest connections get through."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connect, digest, echo_intact, random_bytes, receive, who
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from tests.support.syn_flood import Flood
from xdp_router.lab import BackendSpec, LabSpec, links

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3")))
SYNS, RATE, LIMIT_S = 60_000, 15_000, 20.0
HONEST = 40
MACS = bytes.fromhex((links.mac(0, 0, 1) + links.mac(0, 0, 2)).replace(":", ""))
"""The router's and the client's."""
WINDOW_S = 2 * 9 / 8
"""So long segments without entries are forwarded after the last SYN over budget."""
SETTINGS = 'event_rate = 1\nevent_burst = 1\npending_idle = "2s"\nclosed_linger = "1s"'


@contextlib.contextmanager
def over_budget(private_mounts: Path, stateless: bool) -> Iterator[Router]:
    """A router that raises one event a second: nearly every first packet is beyond that."""
    with contextlib.ExitStack() as undo:
        lab = undo.enter_context(running_lab(SPEC))
        router = undo.enter_context(router_in(lab, private_mounts))
        wanted = f"stateless = {str(stateless).lower()}\ndeadline ="
        router.start(calm_config(SPEC, SETTINGS).replace("deadline =", wanted, 1))
        yield router


@pytest.fixture(params=[True, False], ids=["stateless", "entries"])
def stateless(request: pytest.FixtureRequest) -> bool:
    """Which sort of service."""
    return bool(request.param)


@pytest.fixture
def router(private_mounts: Path, stateless: bool) -> Iterator[Router]:
    """One with a service of that sort."""
    with over_budget(private_mounts, stateless) as made:
        yield made


def view(router: Router) -> dict[str, Any]:
    """What ``services`` says about it."""
    (row,) = router.ask("services")
    found: dict[str, Any] = row["stateless"]
    return found


def prepare(router: Router) -> Flood:
    """A flood from the client's namespace."""
    return Flood.prepare(
        router.lab.client, "eth0", MACS, router.service,
        count=SYNS, rate=RATE, limit_s=LIMIT_S, seed=1,
    )  # fmt: skip


def table_sizes(router: Router) -> dict[str, int]:
    """How many entries each table of flows has."""

    def look(maps: Any) -> dict[str, int]:
        tables = maps.by_family[4]
        parts = {"pending": tables.pending, "flood": tables.flood, "flows": tables.flows}
        return {name: sum(b.count for b in part.batches(4096)) for name, part in parts.items()}

    return router.maps_read(look)


def test_honest_connections_during_a_flood(router: Router, stateless: bool) -> None:
    """They connect, stay with one backend, and outlive the window; the flood leaves nothing.

    What was established before goes on, too. Afterwards a connection closes and ages as any.
    """
    assert view(router)["enabled"] is stateless
    payload = random_bytes(40_000)
    flood = prepare(router)
    with router.counted() as counted, contextlib.ExitStack() as undo:
        before = undo.enter_context(connect(router))
        who(before)
        flood.begin()
        wait_for(lambda: counted("budget_global") > 1000, 10.0, "the flood")
        peers: list[socket.socket] = []
        for _ in range(HONEST):
            peer = undo.enter_context(connect(router, timeout=8.0))
            assert who(peer) in ("b1", "b2", "b3")
            peers.append(peer)
        assert echo_intact(before, payload)
        sizes = table_sizes(router)
        told = view(router)
        (flooded,) = (row["flood"] for row in router.ask("services"))
        sent, _ = flood.wait()
        print(f"{sent} SYNs, {sizes}, {told}")
        assert sent > SYNS / 4
        assert told["for_s"] > 0
        assert told["why"] == "budget_global"
        assert flooded["mode"] == ("stateless" if stateless else "flood_flows")
        assert (flooded["active"], flooded["reason"]) == (True, "budget_global")
        # Nothing of the flood is where honest clients' handshakes are.
        assert sizes["pending"] <= 3 * (HONEST + 10)
        if stateless:
            assert told["forwarded"] > 1000
            assert sizes["flood"] <= 2 * (HONEST + 10)
            assert counted("stateless_promoted") >= HONEST - 10
            assert counted("stateless_replied") > 0
        else:
            assert told["forwarded"] == 0
            assert sizes["flood"] > 1000
            assert counted("flood_entry") > 1000
            assert counted("stateless_forwarded") == 0
        wait_for(lambda: view(router)["for_s"] == 0, 10.0, "the window's end")
        (began,) = router.events("over_budget")
        assert (began["service"], began["budget"]) == ("web", "budget_global")
        wait_for(lambda: router.ask("status")["services_over_budget"] == 0, 5.0, "it is told")
        assert len(router.events("over_budget_ended")) == 1
        for peer in [before, *peers]:
            assert echo_intact(peer, payload), "cut at the window's end"
        established = {row["client"] for row in router.json("flows", "--limit", "100000")
                       if row["state"] == "established"}  # fmt: skip
        assert {"{}:{}".format(*peer.getsockname()) for peer in peers} <= established
        assert len(established) == HONEST + 1
        assert table_sizes(router)["flows"] == 2 * (HONEST + 1)
    wait_for(lambda: table_sizes(router)["flows"] == 0, 20.0, "closed connections are aged out")
    wait_for(lambda: table_sizes(router)["flood"] == 0, 20.0, "so is what the flood left")
    assert not router.events("fault")


def test_a_server_that_only_listens(private_mounts: Path) -> None:
    """A connection whose server says nothing but ACKs has its entries as well, in time."""
    with over_budget(private_mounts, stateless=True) as router, router.counted() as counted:
        with contextlib.suppress(OSError):  # the second's only event
            connect(router).close()
        connect(router).close()
        with connect(router) as peer:
            name = who(peer)  # the backend has spoken: promoted
            assert counted("stateless_promoted") + counted("promoted") >= 1
            assert name
        with connect(router) as quiet:
            time.sleep(0.2)
            # Not a whole line: the server waits for the rest, and acknowledges.
            for part in (b"W", b"H", b"O"):
                quiet.sendall(part)
                time.sleep(0.2)
            wait_for(lambda: view(router)["for_s"] == 0, 10.0, "the window's end")
            quiet.sendall(b"\n")
            assert receive(quiet, 3).startswith(b"b")
            flow = router.flow(quiet.getsockname())
            assert flow is not None
            assert flow["state"] == "established"


def test_forged_acks_make_no_entries(private_mounts: Path) -> None:
    """Segments out of nothing, while the service is stateless, leave nothing in any table."""
    with over_budget(private_mounts, stateless=True) as router, router.counted() as counted:
        with connect(router) as peer:
            client = peer.getsockname()[0]
        forged = acks(MACS, client, router.service, 5_000)
        for _ in range(3):
            connect(router).close()
        wait_for(lambda: view(router)["for_s"] > 0, 5.0, "the service is stateless")
        before = table_sizes(router)
        with router.lab.client.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("eth0", 0))
            for frame in forged:
                with contextlib.suppress(OSError):  # the wire is full
                    raw.send(frame)
        wait_for(lambda: counted("stateless_replied") > 1000, 10.0, "the backends' RSTs")
        after = table_sizes(router)
        print(before, after, view(router))
        assert after["flows"] <= before["flows"]
        assert after["pending"] <= before["pending"]
        assert after["flood"] <= before["flood"]
        assert digest(random_bytes(8))  # the client is still itself
        assert who(connect(router)) in ("b1", "b2", "b3")


def acks(macs: bytes, client: str, service: tuple[str, int], count: int) -> list[bytes]:
    """ACKs with data from ports that the client does not use."""
    from scapy.layers.inet import IP, TCP

    made = []
    for number in range(count):
        head = TCP(sport=1024 + number, dport=service[1], flags="PA", seq=number, ack=7 * number)
        made.append(macs + b"\x08\x00" + bytes(IP(src=client, dst=service[0]) / head / b"x"))
    return made
