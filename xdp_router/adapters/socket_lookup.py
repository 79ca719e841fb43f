# SPDX-License-Identifier: Apache-2.0
"""Leads connections for services with ``handler = "gateway"`` to the gateway's listening sockets.

A program that the kernel's stack asks (sk_lookup), attached to the network namespace by a link, and
the map that it finds sockets in. Both act in the calling thread's network namespace.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Protocol

from xdp_router.core.address import family_of
from xdp_router.core.errors import XdpRouterError

from . import bpf_syscall as bpf
from .bpf_syscall import BpfMap
from .dataplane import Program
from .map_specs import check_declared

PROGRAM = "gateway_lookup"
_NETNS = "/proc/thread-self/ns/net"
_SO_DOMAIN = 39


class LookupLoader(Protocol):
    """A loader, as far as this program is concerned."""

    def open_lookup(self) -> Program:
        """The program, not yet loaded. Raises XdpRouterError."""


class UnfitSocket(XdpRouterError):
    """A socket is not one that clients of a service can be led to."""


def load(loader: LookupLoader, maps: Mapping[str, int]) -> int:
    """Load the program over the maps of a data plane; its fd. Raises XdpRouterError."""
    program = loader.open_lookup()
    try:
        check_declared(program.maps)
        return program.load(maps)[PROGRAM]
    finally:
        program.close()


def attach(program: int) -> int:
    """Have this network namespace's stack ask the program; the link's fd. Raises BpfError."""
    namespace = os.open(_NETNS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return bpf.link_create_netns(program, namespace)
    finally:
        os.close(namespace)


def is_attached(link: int) -> bool:
    """Whether a link is still one of this network namespace."""
    return bpf.link_info(link).netns == os.stat(_NETNS).st_ino


class GatewaySockets:
    """``gateway_sockets``: by service. The kernel forgets what is closed by itself."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def put(self, service: int, sock: socket.socket, addr: int) -> None:
        """Lead connections for a service, whose address is ``addr``, to a listening socket, and
        to those that share its port (SO_REUSEPORT). The caller may close its own reference.

        Raises UnfitSocket, BpfError.
        """
        _check(sock, addr)
        self._map.write(_u32(service), sock.fileno().to_bytes(8, sys.byteorder))

    def remove(self, service: int) -> None:
        """Its connections are refused from now on. Raises nothing if there is none."""
        self._map.delete(_u32(service))

    def cookie(self, service: int) -> int | None:
        """Which socket a service has, by the kernel's name of it (``ss -e``: ``sk:``)."""
        raw = self._map.read(_u32(service))
        return int.from_bytes(raw, sys.byteorder) if raw is not None else None

    def services(self) -> set[int]:
        """Ids of those that have one."""
        return {int.from_bytes(key, sys.byteorder) for key in self._map.each_key()}


def _check(sock: socket.socket, addr: int) -> None:
    """Raise UnfitSocket unless clients of ``addr`` can be led there: the map takes others, too."""
    try:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        domain = sock.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN)
        protocol = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL)
    except OSError as error:
        raise UnfitSocket(f"not a socket: {error.strerror}") from error
    if not listens or protocol != socket.IPPROTO_TCP:
        raise UnfitSocket("a socket that does not listen for TCP connections")
    wanted = socket.AF_INET6 if family_of(addr) == 6 else socket.AF_INET
    if domain != wanted:
        raise UnfitSocket(f"a socket of {socket.AddressFamily(domain).name}, not {wanted.name}")


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)
