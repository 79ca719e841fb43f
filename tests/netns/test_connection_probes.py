# SPDX-License-Identifier: Apache-2.0
"""Probes that are connections, to servers of a real stack in a namespace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns
from tests.support.netns import wait_for
from xdp_router.adapters import connection_probes
from xdp_router.adapters.connection_probes import (
    ConnectionProbes,
    ConnectionTarget,
    connection_target,
)
from xdp_router.core.address import parse_endpoint
from xdp_router.core.events import ProbeReply
from xdp_router.core.model import Backend, Probe, ProbeAnswer, ProbeKind

HOSTS = ("198.18.0.1", "2001:db8::1")
IFA_F_NODAD = 0x02
HTTP, CONNECT = Probe(ProbeKind.HTTP), Probe(ProbeKind.CONNECT)
Say = Callable[[socket.socket], None]


def with_addresses() -> None:
    """The loopback of this namespace has the addresses that are probed."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
        ipr.addr("add", index=1, address=HOSTS[0], prefixlen=32)
        ipr.addr("add", index=1, address=HOSTS[1], prefixlen=128, flags=IFA_F_NODAD)
    wait_for(_is_reached, 5, "the address of IPv6 is there")


def _is_reached() -> bool:
    """The kernel makes the route to an address of IPv6 a moment later."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as peer:
        return peer.connect_ex((HOSTS[1], 9)) == 0


@contextlib.contextmanager
def server(host: str, say: Say) -> Iterator[tuple[str, int]]:
    """Accepts connections one after the other, and lets ``say`` answer."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer, contextlib.suppress(OSError):
                        say(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def answers(*parts: bytes) -> Say:
    """A server that says this, in so many segments, when it has read a request."""

    def say(peer: socket.socket) -> None:
        peer.settimeout(2)
        peer.recv(2048)
        for part in parts:
            peer.sendall(part)
            time.sleep(0.01)

    return say


def ask(at: tuple[str, int], probe: Probe) -> list[ProbeReply]:
    """What is reported of one probe, named by port 61000 and number 7."""
    host, port = at
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    target = connection_target(1, Backend(1, "b1", parse_endpoint(shown), 0, probe=probe))
    told: list[ProbeReply] = []

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None], _name: str) -> None:
            tasks.append(asyncio.create_task(work))

        probes = ConnectionProbes(spawn, told.append)
        sent_ns = probes.ask(target, 61_000, 7)
        assert 0 < sent_ns <= time.monotonic_ns()
        await asyncio.gather(*tasks)
        assert probes.counters == {"probe_connections": 1, "probe_connections_full": 0}
        for each in told:
            assert (each.probe_port, each.seq) == (61_000, 7)
            assert (each.backend_addr, each.backend_port) == (target.to.addr, target.to.port)
            assert each.received_ns >= sent_ns

    asyncio.run(main())
    return told


@in_fresh_netns
def test_answers() -> None:
    """A connection; a status that is expected or is not; bytes that are none; nothing at all."""
    with_addresses()
    cases: tuple[tuple[Probe, Say, ProbeAnswer], ...] = (
        (CONNECT, answers(), ProbeAnswer.CONNECTED),
        (HTTP, answers(b"HTTP/1.1 200 OK\r\n\r\n"), ProbeAnswer.HTTP),
        (HTTP, answers(b"HTTP/1.0 301\r\n"), ProbeAnswer.HTTP),
        (HTTP, answers(b"HT", b"TP/1.1 2", b"04 No", b" Content"), ProbeAnswer.HTTP),
        (HTTP, answers(b"HTTP/1.1 404 Not Found\r\n"), ProbeAnswer.UNEXPECTED),
        (HTTP, answers(b"HTTP/1.1 503 Busy\r\n"), ProbeAnswer.UNEXPECTED),
        (HTTP, answers(b"SSH-2.0-server\r\n"), ProbeAnswer.UNEXPECTED),
        (HTTP, answers(b"HTTP/1.1 2000 OK"), ProbeAnswer.UNEXPECTED),
        (HTTP, answers(), ProbeAnswer.UNEXPECTED),
        (HTTP, answers(b"HTTP/1.1"), ProbeAnswer.UNEXPECTED),
    )
    for host in HOSTS:
        for probe, say, expected in cases:
            with server(host, say) as at:
                (told,) = ask(at, probe)
            assert told.answer is expected, (host, probe, expected)


@in_fresh_netns
def test_a_closed_port_refuses() -> None:
    """As a RST does of a SYN probe."""
    with_addresses()
    for host in HOSTS:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            (told,) = ask(free.getsockname()[:2], HTTP)
        assert told.answer is ProbeAnswer.RST


@in_fresh_netns
def test_no_way_there() -> None:
    """A route that is none is told as ICMP tells it."""
    with_addresses()
    (told,) = ask(("198.19.0.1", 80), CONNECT)
    assert told.answer is ProbeAnswer.UNREACHABLE


@in_fresh_netns
def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, and says nothing: so do we, and nothing of it is left."""
    with_addresses()
    monkeypatch.setattr(connection_probes, "TIMEOUT_S", 0.05)
    with server(HOSTS[0], lambda _peer: time.sleep(0.2)) as at:
        assert ask(at, HTTP) == []


def test_no_more_than_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is not begun, and counted; nothing is opened for it."""
    monkeypatch.setattr(connection_probes, "OPEN_MAX", 2)
    begun: list[Coroutine[Any, Any, None]] = []
    probes = ConnectionProbes(lambda work, _name: begun.append(work), lambda _reply: None)
    target = ConnectionTarget(1, parse_endpoint("198.18.0.1:80"), CONNECT)
    sent = [probes.ask(target, 61_000, number) for number in range(3)]
    assert [bool(each) for each in sent] == [True, True, False]
    assert probes.counters == {"probe_connections": 2, "probe_connections_full": 1}
    for each in begun:
        each.close()
