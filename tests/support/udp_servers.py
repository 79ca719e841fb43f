# SPDX-License-Identifier: Apache-2.0
"""Small UDP servers: STUN, and echo."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections.abc import Callable

STUN_COOKIE = 0x2112_A442
Answer = Callable[[bytes, str, int], "bytes | None"]


def stun_answer(request: bytes, host: str, port: int) -> bytes | None:
    """A success with XOR-MAPPED-ADDRESS (RFC 8489, 14.2), as any STUN server gives it."""
    if len(request) < 20:
        return None
    kind, length, cookie = struct.unpack_from("!HHI", request)
    if (kind, cookie) != (0x0001, STUN_COOKIE) or length != len(request) - 20:
        return None
    address = ipaddress.ip_address(host)
    mask = STUN_COOKIE.to_bytes(4, "big") + request[8:20]
    mapped = bytes(a ^ b for a, b in zip(address.packed, mask, strict=False))
    family = 1 if address.version == 4 else 2
    value = struct.pack("!xBH", family, port ^ STUN_COOKIE >> 16) + mapped
    attribute = struct.pack("!HH", 0x0020, len(value)) + value
    return struct.pack("!HHI", 0x0101, len(attribute), cookie) + request[8:20] + attribute


def echo(request: bytes, _host: str, _port: int) -> bytes | None:
    """The same again."""
    return request


class UdpServer:
    """Answers each datagram that comes to a socket, in a thread, until it is left."""

    def __init__(self, sock: socket.socket, answer: Answer, longest: int = 2048) -> None:
        self._socket = sock
        self._longest = longest
        self._socket.settimeout(0.05)  # between looks whether it is over
        self._answer = answer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="udp server", daemon=True)

    def __enter__(self) -> UdpServer:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join(5)
        self._socket.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                request, peer = self._socket.recvfrom(self._longest)
            except TimeoutError:
                continue
            except ConnectionError:  # an ICMP error about an answer
                continue
            answer = self._answer(request, peer[0], peer[1])
            if answer is not None:
                self._socket.sendto(answer, peer)
