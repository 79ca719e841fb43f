# SPDX-License-Identifier: Apache-2.0
"""Segments forged by somebody who knows a flow's addresses and ports, but does not see it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients import connect, echo_intact, random_bytes, who
from tests.support.netns import wait_for
from tests.support.router import Router, routed_lab
from tests.support.segments import ACK, FIN, RST, SYN, Capture, Injector, Segment
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2")))
MB = random_bytes(1_000_000)
INSIDE = 1_000
OUTSIDE = 0x4000_0000


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    with routed_lab(private_mounts, SPEC) as started:
        yield started


@dataclass(frozen=True)
class Victim:
    """An established flow, and the next sequence number of each side as its stacks know it."""

    router: Router
    peer: socket.socket
    backend: int
    client_next: int
    server_next: int

    @property
    def client(self) -> tuple[str, int]:
        """The client's end."""
        host, port = self.peer.getsockname()
        return host, port

    def forge(self, side: str, flags: int, offset: int, ack_offset: int = 0) -> None:
        """Send a segment in the name of a side, ``offset`` beyond its next sequence number."""
        lab = self.router.lab
        if side == "client":
            source, target, namespace = self.client, self.router.service, lab.client
            seq, ack = self.client_next, self.server_next
        else:
            source, target = lab.addresses.backends[self.backend], self.client
            namespace = lab.backends[self.backend]
            seq, ack = self.server_next, self.client_next
        with Injector(namespace) as injector:
            injector.send(Segment(source, target, flags, seq + offset, ack + ack_offset))

    def state(self) -> str:
        """The flow's state in the router's table."""
        flow = self.router.flow(self.client)
        assert flow is not None, "the flow is gone"
        assert flow["backend"] == f"b{self.backend + 1}"
        return str(flow["state"])


@pytest.fixture
def victim(router: Router) -> Iterator[Victim]:
    """A flow that has carried data both ways; its backend must not change."""
    with Capture(router.lab.client, outgoing=True) as capture, connect(router) as peer:
        backend = int(who(peer)[1:]) - 1
        assert echo_intact(peer, random_bytes(5_000))
        port = peer.getsockname()[1]
        ends = {"client": 0, "server": 0}
        for segment in capture.segments():
            if port in (segment.source[1], segment.target[1]):
                ends["client" if segment.source[1] == port else "server"] = segment.end
        yield Victim(router, peer, backend, ends["client"], ends["server"])


def test_syn_of_another_isn_does_not_cut_a_live_flow(router: Router, victim: Victim) -> None:
    """A SYN from a live flow's address and port starts nothing and changes nothing."""
    with router.counted() as counted:
        victim.forge("client", SYN, 0x1234_5678)
        wait_for(lambda: counted("syn_on_live_flow") == 1)
        assert echo_intact(victim.peer, MB)
        assert counted("first_packet") == 0
    assert victim.state() == "established"


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize(
    ("flags", "counter"), [(RST, "rst_inexact"), (FIN | ACK, "fin_outside_window")]
)
def test_segment_outside_the_window_is_no_end(
    router: Router, victim: Victim, side: str, flags: int, counter: str
) -> None:
    """A RST or FIN outside the window is counted and ends nothing."""
    with router.counted() as counted:
        victim.forge(side, flags, OUTSIDE)
        wait_for(lambda: counted(counter) == 1)
        assert victim.state() == "established"
        assert echo_intact(victim.peer, MB)
    assert victim.state() == "established"


@pytest.mark.parametrize("side", ["client", "server"])
def test_rst_guessed_into_the_window_is_no_end(router: Router, victim: Victim, side: str) -> None:
    """A RST inside the window but not at its edge: its receiver asks back, and so do we."""
    with router.counted() as counted:
        victim.forge(side, RST, INSIDE)
        wait_for(lambda: counted("rst_inexact") == 1)
        assert victim.state() == "established"
        assert echo_intact(victim.peer, MB)
    assert victim.state() == "established"


@pytest.mark.parametrize("side", ["client", "server"])
def test_forged_numbers_do_not_keep_a_flow_from_closing(
    router: Router, victim: Victim, side: str
) -> None:
    """Segments with invented numbers move nothing that is tracked: the flow's end is seen."""
    with router.counted() as counted:
        victim.forge(side, ACK, 0x3000_0000, 0x2000_0000)
        victim.forge(side, ACK, 0x0100_0000, 0)
        victim.forge(side, ACK, 0, 0x0100_0000)
        assert echo_intact(victim.peer, MB)
        client = victim.client
        victim.peer.close()

        def state() -> object:
            flow = router.flow(client)
            return flow and flow["state"]

        wait_for(lambda: state() == "closing", message="both FINs are noticed")
        assert counted("fin_outside_window") == 0


def test_fins_guessed_into_the_window_are_taken_back(router: Router, victim: Victim) -> None:
    """FINs inside both windows that neither side took: data goes on, the flow lives on."""
    with router.counted() as counted:
        # An acknowledgement that is far too old: the stacks throw the segment away.
        victim.forge("client", FIN | ACK, INSIDE, -0x2000_0000)
        victim.forge("server", FIN | ACK, INSIDE, -0x2000_0000)
        wait_for(lambda: victim.state() == "closing", message="the FINs are noticed")
        assert echo_intact(victim.peer, MB)
        assert counted("closing_revoked") >= 1
    assert victim.state() == "established"


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("flags", [RST | ACK, FIN | ACK, ACK])
def test_wild_acknowledgement_cuts_nothing(victim: Victim, side: str, flags: int) -> None:
    """A segment inside the window that acknowledges what was never sent: data goes on."""
    victim.forge(side, flags, INSIDE, 0x2000_0000)
    assert echo_intact(victim.peer, MB)
    assert victim.state() in ("established", "closing")
