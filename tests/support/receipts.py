# SPDX-License-Identifier: Apache-2.0
"""Clients of the lab's servers of kind ``hash`` and ``stun``, in a namespace of choice.

Each of them says who answered, and fails unless the answer fits what was sent.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import struct

from tests.support.clients import digest
from xdp_router.lab import Namespace

Address = tuple[str, int]

_STUN = struct.Struct(">HHI12s")
_COOKIE = 0x2112A442
OWN_PORTS = itertools.cycle(range(10_000, 28_000))
"""Of clients of UDP. A kernel draws the port of each socket, now and then one that it had a moment
ago: the same flow once more. Namespaces of clients have no servers there."""


def datagram_socket(
    namespace: Namespace, target: Address, *, source: Address | None = None, timeout: float = 5.0
) -> socket.socket:
    """A connected UDP socket, of a port of its own if none is named: it hears the target alone."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    peer = namespace.socket(family, socket.SOCK_DGRAM)
    try:
        peer.settimeout(timeout)
        peer.bind(source or ("", next(OWN_PORTS)))
        peer.connect(target)
    except BaseException:
        peer.close()
        raise
    return peer


def named_by(line: bytes, payload: bytes) -> str:
    """The name in a server's line, which has to fit what it got."""
    name, hashed, count = line.decode().split()
    assert (hashed, int(count)) == (digest(payload), len(payload)), line
    return name


def ask(peer: socket.socket, payload: bytes) -> str:
    """Send one datagram on a connected socket; who got it."""
    peer.send(payload)
    return named_by(peer.recv(2000), payload)


def ask_by_udp(
    namespace: Namespace,
    target: Address,
    payload: bytes,
    *,
    source: Address | None = None,
    timeout: float = 5.0,
) -> str:
    """Send one datagram from a new socket; who got it."""
    with datagram_socket(namespace, target, source=source, timeout=timeout) as peer:
        return ask(peer, payload)


def ask_by_tcp(
    namespace: Namespace,
    target: Address,
    payload: bytes,
    *,
    source: Address | None = None,
    timeout: float = 10.0,
) -> str:
    """Send the payload and a FIN; who got it."""
    with namespace.connect(target, source=source, timeout=timeout) as peer:
        peer.sendall(payload)
        peer.shutdown(socket.SHUT_WR)
        return named_by(peer.makefile("rb").read(), payload)


def ask_by_stun(
    namespace: Namespace, target: Address, *, source: Address | None = None, timeout: float = 5.0
) -> tuple[str, Address]:
    """Who answers a binding request, and the address that it saw."""
    transaction = os.urandom(12)
    with datagram_socket(namespace, target, source=source, timeout=timeout) as peer:
        peer.send(_STUN.pack(0x0001, 0, _COOKIE, transaction))
        message = peer.recv(2000)
    kind, length, cookie, echoed = _STUN.unpack_from(message)
    assert (kind, cookie, echoed) == (0x0101, _COOKIE, transaction), message
    assert length == len(message) - _STUN.size
    values: dict[int, bytes] = {}
    at = _STUN.size
    while at < len(message):
        number, size = struct.unpack_from(">HH", message, at)
        values[number] = message[at + 4 : at + 4 + size]
        at += 4 + size + -size % 4
    (port,) = struct.unpack_from(">H", values[0x0020], 2)
    hidden = values[0x0020][4:]
    key = struct.pack(">I", _COOKIE) + transaction
    packed = bytes(a ^ b for a, b in zip(hidden, key, strict=False))
    return values[0x8022].decode(), (str(ipaddress.ip_address(packed)), port ^ _COOKIE >> 16)
