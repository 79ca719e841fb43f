# SPDX-License-Identifier: Apache-2.0
"""UDP through the router: from the first datagram to the end of a flow, by real stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import random_bytes
from tests.support.netns import wait_for
from tests.support.receipts import ask, ask_by_udp, datagram_socket, named_by
from tests.support.router import heartbeat_stale
from tests.support.wide_lab import WideLab, routed_wide_lab
from xdp_router.lab.links import set_up

pytest_plugins = ("tests.support.netns",)

PROBE = 'probe = "icmp"'
SETTINGS = 'heartbeat_stale = "300ms"\nudp_idle = "1s"'
IP_RECVERR = 11


@pytest.fixture(scope="module", params=["native", "generic"])
def wide(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[WideLab]:
    """Three backends behind a router in one mode; a flow of UDP is over after a second."""
    options = ("--xdp-mode", request.param)
    with contextlib.ExitStack() as undo:
        if request.param == "generic":
            undo.enter_context(one_cpu())
        yield undo.enter_context(
            routed_wide_lab(
                private_mounts, backends=3, service=PROBE, settings=SETTINGS, attach=options
            )
        )


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """Keeps this process, and those that it starts within, on one CPU.

    Without native XDP a veth queues packets at the CPU of who sends them: a client, a daemon or a
    server that is moved to another one between two datagrams may be overtaken by itself.
    """
    former = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(former)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)


@contextlib.contextmanager
def talk(wide: WideLab) -> Iterator[socket.socket]:
    with datagram_socket(wide.client, wide.service) as peer:
        yield peer


def test_datagrams_of_all_lengths_come_back_by_one_backend(wide: WideLab) -> None:
    """The first is held and re-injected; the flow stays with its backend, and is established."""
    with talk(wide) as peer:
        names = {ask(peer, random_bytes(length)) for length in (0, 1, 2, 100, 999, 1200, 1472)}
        assert len(names) == 1
        flow = wide.router.flow(peer.getsockname())
        assert flow is not None
        assert (flow["protocol"], flow["state"], {flow["backend"]}) == ("udp", "established", names)
        assert (flow["packets"], flow["reply_packets"]) == (7, 7)


def test_one_question_with_one_answer_takes_no_place_in_the_table(wide: WideLab) -> None:
    """As of DNS: many flows, each decided, none established; they are forgotten in their time."""
    with wide.router.counted() as counted:
        names = {ask_by_udp(wide.client, wide.service, random_bytes(40)) for _ in range(30)}
        assert names == {"b1", "b2", "b3"}
        assert counted("promoted") == 0
        assert counted("datagram_first") == 30
    wait_for(lambda: not wide.router.json("flows"), 10, "the flows are forgotten")


@pytest.mark.parametrize("length", [1, 1200])
def test_a_burst_arrives_in_its_order(wide: WideLab, length: int) -> None:
    """The first four, sent back to back, reach the backend in order and once each."""
    for _ in range(20):
        sent = [bytes([number]) * length for number in range(4)]
        with talk(wide) as peer:
            for payload in sent:
                peer.send(payload)
            for payload in sent:
                named_by(peer.recv(2000), payload)
            peer.settimeout(0.01)
            with pytest.raises(TimeoutError):
                peer.recv(2000)


def test_the_fastest_answers(private_mounts: Path) -> None:
    """Datagrams are raced as SYNs are: by probes of UDP's own, and far servers get none."""
    service = 'probe = "udp"\nprobe_payload = "are you there?"'
    with routed_wide_lab(private_mounts, backends=3, delays_ms=(20, 20), service=service) as wide:
        for _ in range(20):
            assert ask_by_udp(wide.client, wide.service, random_bytes(500)) == "b3"
        engine = wide.router.ask("status")["engine"]
        assert engine["decided_race"] == 20


def test_an_idle_flow_is_over(wide: WideLab) -> None:
    """After ``udp_idle`` without traffic nothing of a flow is left, established or not."""
    with talk(wide) as peer:
        ask(peer, b"one")
        ask(peer, b"two")
        assert wide.router.flow(peer.getsockname()) is not None
        wait_for(lambda: wide.router.flow(peer.getsockname()) is None, 10, "the flow is over")
        with wide.router.counted() as counted:
            ask(peer, b"three")
            assert counted("datagram_first") == 1


def test_a_deadline_may_be_as_long_as_a_flow_is_silent(private_mounts: Path) -> None:
    """Nobody answers the probe: what is held until then goes to the fallback, and is answered."""
    service = 'probe = "udp"\nprobe_payload = "?"\nprobe_answer = "nobody says that"'
    settings = 'udp_idle = "1s"'  # as the lab's deadline
    with (
        routed_wide_lab(private_mounts, backends=1, service=service, settings=settings) as wide,
        wide.router.counted() as counted,
    ):
        assert ask_by_udp(wide.client, wide.service, random_bytes(100)) == "b1"
        assert (counted("datagram_first"), counted("datagram_dropped")) == (1, 0)


def test_explain_tells_of_datagrams(wide: WideLab) -> None:
    """The time line of a UDP flow speaks of what there is with UDP."""
    with talk(wide) as peer:
        ask(peer, b"one")
        ask(peer, b"two")
        address, port = peer.getsockname()

        def told() -> list[str]:
            line = wide.router.json("explain", f"{address}:{port}")
            assert line["protocol"] == "udp"
            return [entry["what"] for entry in line["timeline"]]

        wait_for(lambda: "established" in told(), 5, "the daemon hears that it is established")
        assert {"seen", "decided", "re-injected", "first answer"} <= set(told())
        assert "SYN-ACK" not in told()


def test_flows_outlive_the_daemon_and_new_ones_are_hashed(private_mounts: Path) -> None:
    """A daemon that is killed cuts no flow; new flows are decided by XDP at once."""
    settings = 'heartbeat_stale = "300ms"'
    lab = routed_wide_lab(
        private_mounts, backends=3, service=PROBE, settings=settings, fallback=False
    )
    with lab as wide, talk(wide) as old:
        name = ask(old, b"before")
        assert ask(old, b"before that, too") == name
        wide.router.stop(signal.SIGKILL)
        assert ask(old, b"at once") == name
        heartbeat_stale()
        assert ask(old, b"later") == name
        with wide.router.counted() as counted:
            with talk(wide) as new:
                assert ask(new, b"one") == ask(new, b"two")
            assert counted("heartbeat_stale") == 1
            assert counted("datagram_first") == 0


def test_nobody_there_is_told_by_icmp(private_mounts: Path) -> None:
    """With no backend the client hears "port unreachable", as of a host that has no such port.

    Of the daemon's refusal, whose held datagrams go through the program, and of XDP's own.
    """
    settings = 'heartbeat_stale = "300ms"'
    with routed_wide_lab(private_mounts, backends=1, service=PROBE, settings=settings) as wide:
        link = wide.lab.router_interfaces[1]
        set_up(wide.lab.router, link, False)
        wait_for(lambda: not wide.router.ask("backends")[0]["up"], 10, "the backend is down")
        with wide.router.counted() as counted:
            _is_refused(wide)
            assert counted("refused_by_daemon") == 1
        wide.router.stop(signal.SIGKILL)
        heartbeat_stale()
        with wide.router.counted() as counted:
            _is_refused(wide)
            assert counted("refused_no_backend") == 1
            assert counted("unreachable_sent") == 1


def _is_refused(wide: WideLab) -> None:
    with talk(wide) as peer:
        peer.send(b"anybody?")
        with pytest.raises(ConnectionRefusedError):
            peer.recv(100)


def test_an_unreachable_port_of_the_backend_is_told_to_the_client(private_mounts: Path) -> None:
    """The backend's ICMP error about a datagram reaches the client, as the service's."""
    lab = routed_wide_lab(private_mounts, backends=1, kind="echo", service=PROBE)
    with lab as wide, talk(wide) as peer:
        peer.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        peer.send(b"nobody listens to UDP there")
        with pytest.raises(ConnectionRefusedError):
            peer.recv(100)
        _, ancillary, _, address = peer.recvmsg(100, 512, socket.MSG_ERRQUEUE)
        assert address == wide.service
        ((_, _, data),) = ancillary
        error, origin, kind, code = struct.unpack_from("IBBB", data)
        assert (error, origin, kind, code) == (111, 2, 3, 3)
