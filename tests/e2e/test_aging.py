# SPDX-License-Identifier: Apache-2.0
"""How long a flow stays: closed ones shortly, silent ones for their time, used ones for ever."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import connect, receive, who
from tests.support.netns import wait_for
from tests.support.own_service import OwnService, config, own_service
from tests.support.router import Router, routed_lab
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1", delay_line=True), BackendSpec("b2", delay_ns=5_000_000)))
SHORT = 'closed_linger = "1s"\nflow_idle = "3s"\npending_idle = "1s"\ncoalesce_window = "0s"'


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    web = config(SPEC, SHORT)
    with routed_lab(private_mounts, SPEC, web) as started:
        yield started


@pytest.fixture
def own(router: Router) -> Iterator[OwnService]:
    with own_service(router) as service:
        yield service


def test_closed_flows_vanish_and_silent_ones_later(router: Router) -> None:
    """A closed flow goes after its linger; a silent one after its idle time, its client is told."""
    with connect(router) as used, connect(router) as silent:
        who(used)
        who(silent)
        with connect(router) as closed:
            who(closed)
            gone = closed.getsockname()
        begun = time.monotonic()

        def talk_until(peer: tuple[str, int]) -> float:
            while True:
                used.sendall(b"x")
                assert used.recv(1) == b"x"
                if router.flow(peer) is None:
                    return time.monotonic() - begun
                assert time.monotonic() - begun < 20, f"{peer} is still there"
                time.sleep(0.1)

        assert talk_until(gone) >= 0.9
        assert router.flow(silent.getsockname()) is not None
        assert talk_until(silent.getsockname()) >= 2.9
        # The one that was used all the time is older than the idle time, and still there.
        flow = router.flow(used.getsockname())
        assert flow is not None
        assert flow["state"] == "established"
        assert flow["age_s"] > 3
        with router.counted() as counted:
            silent.sendall(b"too late")
            with pytest.raises(ConnectionResetError):
                silent.recv(1)
            assert counted("orphan_reset") == 1

    def status_flows() -> bool:
        return bool(router.ask("status")["flows"] == 0)

    wait_for(status_flows, 15, "no flow is counted any more")


def _ends_on_the_fast_one(
    router: Router, own: OwnService, source: tuple[str, int], how: str
) -> bool:
    """A connection from ``source`` that ends in the way ``how``: whether the fast one had it."""
    with own.connection(source) as (client, server):
        client.sendall(b"first")
        assert receive(server, 5) == b"first"
        decision = router.ask("explain", client=f"{source[0]}:{source[1]}")
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            with pytest.raises(ConnectionResetError):
                server.recv(1)
        else:
            # The backend ends first, so that the client's own stack lets go of the port at once.
            server.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
            client.close()
            assert server.recv(1) == b""
    return bool(decision["backend"] == "o1")


@pytest.mark.parametrize("how", ["reset", "fin"])
def test_reused_port_is_raced_anew(router: Router, own: OwnService, how: str) -> None:
    """A client port that is used again gets a decision of its own, by today's delays."""
    first_port = 44_000 if how == "fin" else 44_100
    router.lab.set_delay("b1", 0)
    # A machine that stalls for longer than the wires differ gives the race to the other one:
    # then another port begins.
    for port in range(first_port, first_port + 5):
        source = (router.lab.addresses.client, port)
        if _ends_on_the_fast_one(router, own, source, how):
            break
    else:
        pytest.fail("the fast backend never won: is the machine overloaded?")
    router.lab.set_delay("b1", 0.080)
    try:
        with router.counted() as counted, own.connection(source) as (client, server):
            server.sendall(b"second")
            assert receive(client, 6) == b"second"
            flow = router.flow(source)
            assert counted("first_packet") == 1
        assert flow is not None
        assert flow["backend"] == "o2"
        after = router.ask("explain", client=f"{source[0]}:{source[1]}")
        assert (after["backend"], after["reason"]) == ("o2", "race_won")
    finally:
        router.lab.set_delay("b1", 0)


def test_undecided_and_refused_flows_vanish_too(router: Router) -> None:
    """What never became a connection leaves the table after its time, without traffic."""
    for name in ("b1", "b2"):
        router.lab.kill_backend(name)
    with pytest.raises(ConnectionRefusedError):
        connect(router)
    rows = router.json("flows", "--state", "refused")
    assert rows
    assert rows[0]["backend"] == ""
    assert rows[0]["decision"]["mode"] == "refused"
    for name in ("b1", "b2"):
        router.lab.start_backend(name)
    wait_for(lambda: not router.json("flows", "--state", "refused"), 10, "refused flows are gone")
