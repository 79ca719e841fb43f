# SPDX-License-Identifier: Apache-2.0
"""What clients of a service hear of errors, and of pings, by every method."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.e2e.test_echo import answers, ping_socket, request
from tests.support.every_method import Cell, watched
from tests.support.method_conversations import PATIENCE_S, SILENCE_S
from tests.support.receipts import ask, datagram_socket
from xdp_router.lab import links
from xdp_router.lab.spec import Family

_IP_RECVERR, _IPV6_RECVERR = 11, 25


def hear_of_closed_port(cell: Cell) -> None:
    """What the backend says about a datagram that nobody takes is the client socket's error."""
    with watched(cell) as seen, hearing(cell) as peer:
        peer.send(b"nobody listens there")
        offender = error_of(peer, errno.ECONNREFUSED)
    assert offender == cell.service[0]
    assert (seen.risen["icmp_translated"] > 0) == cell.way.replies_pass_router


def hear_of_last_hop(cell: Cell) -> None:
    """A hop limit that ends at the router, of a first packet and within a flow."""
    router = cell.router.lab.addresses_of(cell.family).client_router
    with watched(cell) as seen, hearing(cell) as peer:
        set_hops(peer, cell, 1)
        peer.send(b"lost")
        assert error_of(peer, errno.EHOSTUNREACH) == router
        set_hops(peer, cell, 64)
        server = ask(peer, b"first")
        assert ask(peer, b"second") == server
        set_hops(peer, cell, 1)
        peer.send(b"lost, too")
        assert error_of(peer, errno.EHOSTUNREACH) == router
        set_hops(peer, cell, 64)
        assert ask(peer, b"third") == server
    assert seen.risen["icmp_time_exceeded"] == seen.risen["ttl_exceeded"] == 2


@contextlib.contextmanager
def hearing(cell: Cell) -> Iterator[socket.socket]:
    """A datagram socket that is told of errors."""
    with datagram_socket(cell.router.lab.client, cell.service, timeout=PATIENCE_S) as peer:
        tell_errors(peer, cell.family)
        yield peer


def tell_errors(peer: socket.socket, family: Family) -> None:
    """Have the kernel tell a socket of every ICMP error about it."""
    if family == 4:
        peer.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
    else:
        peer.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)


def set_hops(peer: socket.socket, cell: Cell, hops: int) -> None:
    """How many routers its packets pass at most."""
    if cell.family == 4:
        peer.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
    else:
        peer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)


def error_of(peer: socket.socket, number: int) -> str:
    """Who has told the socket of the error that it has now, or gets."""
    with pytest.raises(OSError, match=os.strerror(number)):
        peer.recv(100)
    _, ancillary, _, _ = peer.recvmsg(100, 512, socket.MSG_ERRQUEUE)
    ((_, _, data),) = ancillary
    found, family = struct.unpack_from("I12xH", data)
    assert found == number
    packed = data[20:24] if family == socket.AF_INET else data[24:40]
    return str(ipaddress.ip_address(packed))


def hear_no_pings(cell: Cell) -> None:
    """Those of a service that does not say ``icmp_echo``."""
    with watched(cell) as seen:
        with ping_socket(cell.router.lab.client, cell.family, cell.service[0]) as peer:
            peer.settimeout(SILENCE_S)
            peer.send(request(cell.family, 0, b"silent"))
            assert answers(peer, cell.family, 1) == []
    assert seen.risen["echo_answered"] == 0


def hear_pings(cell: Cell) -> None:
    """The router answers them itself."""
    payload = bytes(range(200))
    with watched(cell) as seen:
        with ping_socket(cell.router.lab.client, cell.family, cell.service[0]) as peer:
            for number in range(3):
                peer.send(request(cell.family, number, payload))
            heard = answers(peer, cell.family, 3)
    assert heard == [(number, payload) for number in range(3)]
    assert seen.risen["echo_answered"] == 3
    assert seen.senders() == {links.mac(0, 0, 1)}
