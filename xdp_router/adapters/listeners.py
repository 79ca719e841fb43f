# SPDX-License-Identifier: Apache-2.0
"""Ports that programs of this host listen on, as /proc/net tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xdp_router.core.address import protocol_name

_TABLES = {6: ("tcp", "tcp6"), 17: ("udp", "udp6")}
_WAITING = {6: "0A", 17: "07"}  # LISTEN; a UDP socket that is not connected
_MAPPED = 0xFFFF << 32
_PROC = Path("/proc/thread-self/net")
"""/proc/net would be the main thread's namespace, this is the caller's."""


def listening(addr: int, proto: int, proc: Path = _PROC) -> list[int]:
    """Ports of ``addr`` that a program waits at, there or at any address; in order, each once.

    A protocol other than TCP and UDP has none.
    """
    ports = set()
    for name in _TABLES.get(proto, ()):
        for bound, port in _sockets(proc / name, _WAITING[proto]):
            # An IPv6 socket that is bound to any address takes IPv4 as well.
            anywhere = not bound and (name.endswith("6") or addr < 1 << 32)
            if anywhere or bound in (addr, _MAPPED | addr):
                ports.add(port)
    return sorted(ports)


def in_range(first: int, last: int) -> list[tuple[str, int]]:
    """Protocol and port of what waits at ports ``first`` to ``last``, at whatever address."""
    return sorted(
        {
            (protocol_name(proto), port)
            for proto, names in _TABLES.items()
            for name in names
            for _, port in _sockets(_PROC / name, _WAITING[proto])
            if first <= port <= last
        }
    )


def _sockets(table: Path, state: str) -> Iterator[tuple[int, int]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return  # no IPv6
    for line in lines:
        fields = line.split()
        if len(fields) > 3 and fields[3] == state:
            address, _, port = fields[1].partition(":")
            # Words as they lie in memory, each printed as a number of this (little-endian) host.
            words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
            yield int.from_bytes(b"".join(words), "big"), int(port, 16)
