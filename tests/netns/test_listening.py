# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: as many as workers, all or none, and nobody else's address."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns
from xdp_router.core.listeners import GatewayConfig, Listener, ListenerKind, SocketAddress
from xdp_router.daemon.gateway.listening import ListenError, ListeningSockets


def up() -> None:
    """Loopback is there."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")


def config(*addresses: tuple[str, int], workers: int = 2) -> GatewayConfig:
    """Listeners on these."""
    listeners = tuple(
        Listener(f"l{port}", ListenerKind.HTTP, SocketAddress(host, port), ())
        for host, port in addresses
    )
    return GatewayConfig(listeners, workers)


def listen(sockets: ListeningSockets) -> None:
    """As workers do."""
    for some in sockets.all().values():
        for each in some:
            each.listen(10)


def counts(sockets: ListeningSockets) -> dict[str, int]:
    """How many there are of each address."""
    return {name: len(some) for name, some in sockets.all().items()}


@in_fresh_netns
def test_as_many_as_workers() -> None:
    """Both families; more are made, none is taken away by fewer workers; each is somebody's."""
    up()
    addresses = ("127.0.0.1", 80), ("::1", 80), ("0.0.0.0", 81), ("::", 81), ("127.0.0.1", 81)
    with contextlib.closing(ListeningSockets()) as sockets:
        two, five, one = (config(*addresses, workers=count) for count in (2, 5, 1))
        sockets.prepare(two)
        assert set(counts(sockets).values()) == {2}
        sockets.prepare(five)
        sockets.prepare(two)
        sockets.prepare(one)
        assert set(counts(sockets).values()) == {5}
        (first, *_) = two.listeners
        dealt = [sockets.dealt(first, 2, number) for number in range(2)]
        assert Counter(map(len, dealt)) == {3: 1, 2: 1}
        assert {*dealt[0], *dealt[1]} == set(sockets.of(first.address))
        assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in dealt[0])
        with pytest.raises(ConnectionRefusedError):  # until somebody accepts
            socket.create_connection(("127.0.0.1", 80), 5)
        listen(sockets)
        for host, port in addresses:
            where = {"0.0.0.0": "127.0.0.2", "::": "::1"}.get(host, host)
            socket.create_connection((where, port), 5).close()
        sockets.keep_only(config(("::1", 80)))
        assert counts(sockets) == {"[::1]:80": 5}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 80), 5)


@in_fresh_netns
def test_all_or_none() -> None:
    """What was there stays as it is when an address cannot be had."""
    up()
    with (
        contextlib.closing(ListeningSockets()) as sockets,
        contextlib.closing(socket.create_server(("127.0.0.1", 90))),
    ):
        sockets.prepare(config(("127.0.0.1", 80)))
        for bad, words in (
            (("127.0.0.1", 90), r"'l90': cannot listen on 127.0.0.1:90: .* in use: .*ss -ltnp"),
            (("198.18.0.1", 91), "no interface of this host has the address"),
            (("2001:db8::1", 91), r"\[2001:db8::1\]:91: .*no interface"),
        ):
            with pytest.raises(ListenError, match=words):
                sockets.prepare(config(("127.0.0.1", 80), ("127.0.0.1", 82), bad, workers=3))
            assert counts(sockets) == {"127.0.0.1:80": 2}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 82), 5)


@in_fresh_netns
def test_nobody_elses_address() -> None:
    """Also if it may be shared; that of somebody who is about to go is waited for."""
    up()
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind(("127.0.0.1", 80))
    other.listen()
    wanted = config(("127.0.0.1", 80))
    with contextlib.closing(ListeningSockets()) as sockets:
        with pytest.raises(ListenError, match="in use"):
            sockets.prepare(wanted)
        threading.Timer(0.1, other.close).start()
        begin = time.monotonic()
        sockets.prepare(wanted, 30)
        assert time.monotonic() - begin >= 0.05
        assert counts(sockets) == {"127.0.0.1:80": 2}


@in_fresh_netns
def test_new_ones_that_are_not_wanted_after_all() -> None:
    """They are closed, and those that were there stay."""
    up()
    with contextlib.closing(ListeningSockets()) as sockets:
        sockets.prepare(config(("127.0.0.1", 80)))
        made = sockets.prepare(config(("127.0.0.1", 80), ("127.0.0.1", 81), workers=3))
        assert counts(sockets) == {"127.0.0.1:80": 3, "127.0.0.1:81": 3}
        sockets.discard(made)
        assert counts(sockets) == {"127.0.0.1:80": 2}
        assert all(each.fileno() == -1 for each in made)


@in_fresh_netns
def test_inherited_ones() -> None:
    """Those of a former gateway are used as they are, what waits in them included."""
    up()
    wanted = config(("127.0.0.1", 80))
    former = ListeningSockets()
    former.prepare(wanted)
    listen(former)
    client = socket.create_connection(("127.0.0.1", 80), 5)
    duplicates = {
        name: [socket.socket(fileno=each.dup().detach()) for each in some]
        for name, some in former.all().items()
    }
    former.close()
    with contextlib.closing(ListeningSockets(duplicates)) as sockets, client:
        sockets.prepare(replace(wanted, workers=3))
        assert counts(sockets) == {"127.0.0.1:80": 3}
        listen(sockets)
        accepted = []
        for each in sockets.of(wanted.listeners[0].address):
            with contextlib.suppress(BlockingIOError):
                accepted.append(each.accept()[0])
        assert len(accepted) == 1
        accepted[0].close()
