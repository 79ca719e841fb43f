# SPDX-License-Identifier: Apache-2.0
"""``notes``: what a daemon has changed outside its data plane, for ``detach`` to undo.

XDP has no use for it. It is pinned beside the other maps, so it is there when the daemon was
killed; a daemon that ends by itself undoes everything by itself.
"""

from __future__ import annotations

import enum
import sys

from .bpf_syscall import BpfMap

NOTE_BYTES = 4096
"""Enough for a path, and for a few hundred ranges of ports."""


class Note(enum.IntEnum):
    """Slots of the map."""

    RESERVED_PORTS = 0
    """Ports added to ``ip_local_reserved_ports``, in the kernel's notation."""
    NETNS = 1
    """The network namespace in which that was done, see ``sysctl.namespace_id``."""
    CONTROL_SOCKET = 2
    """Absolute path."""
    SYSCTLS = 3
    """Interfaces' sysctls that were set, see ``sysctl.format_changes``; in that namespace."""
    LOCAL_ROUTES = 4
    """Addresses that were made local, see ``local_routes``; in that namespace."""


class Notes:
    """The map over its fd."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, note: Note, text: str) -> None:
        """Set one. Raises BpfError, or ValueError when the text is too long."""
        raw = text.encode()
        if len(raw) > NOTE_BYTES:
            raise ValueError(f"{note.name}: {len(raw)} bytes, expected at most {NOTE_BYTES}")
        self._map.write(_key(note), raw.ljust(NOTE_BYTES, b"\0"))

    def read(self, note: Note) -> str:
        """One note; empty if it was never written. Raises BpfError."""
        raw = self._map.read(_key(note))
        return raw.rstrip(b"\0").decode() if raw is not None else ""


def _key(note: Note) -> bytes:
    return int(note).to_bytes(4, sys.byteorder)
