# SPDX-License-Identifier: Apache-2.0
"""What the daemon changes on the host beside its data plane: reserved ports and sysctls.

Each change is in ``notes`` before it is made, so that ``detach`` or a successor finds it when this
daemon is killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import structlog

from xdp_router.adapters import sysctl
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.port_sharing import release
from xdp_router.adapters.sysctl import Change, SysctlError

_log = structlog.get_logger()


class HostChanges:
    """Changes to the current network namespace, and their undoing."""

    def __init__(self, notes: Notes, adopted: bool = False) -> None:
        """``adopted``: what the notes say is ours by now. Raises SysctlError."""
        self._notes = notes
        self._sysctls = sysctl.Sysctls()
        self._tried: set[str] = set()
        self._former_ports: set[int] = set()
        if adopted:
            ports = sysctl.parse_ports(notes.read(Note.RESERVED_PORTS))
            self._former_ports |= self._sysctls.adopt_ports(ports)
            self._sysctls.adopt(sysctl.parse_changes(notes.read(Note.SYSCTLS)))
        notes.write(Note.NETNS, sysctl.namespace_id())
        self._note(self._sysctls.changes)

    def reserve_ports(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Keep ports, ranges of (first, last), from being given out. Raises SysctlError."""
        ports = set(self._former_ports)
        for first, last in ranges:
            ports |= sysctl.ports_to_reserve(first, last)
        self._notes.write(Note.RESERVED_PORTS, sysctl.format_ports(ports))
        for first, last in ranges:
            for warning in self._sysctls.reserve_ports(first, last):
                _log.warning("reserved_port_in_use", detail=warning)

    def set(self, name: str, value: str, why: str) -> bool:
        """Set a sysctl, once: who changes it after that knows better. False: not set."""
        if name in self._tried:
            return False
        self._tried.add(name)
        try:
            old = sysctl.read(name)
            if old == value:
                return False
            self._note([*self._sysctls.changes, Change(name, old, value)])
            self._sysctls.set(name, value)
        except (SysctlError, BpfError, ValueError) as error:
            _log.error("sysctl_not_set", sysctl=name, wanted=value, error=str(error), why=why)
            with contextlib.suppress(BpfError):
                # Or an operator who sets it by hand would have it undone by detach.
                self._note(self._sysctls.changes)
            return False
        _log.warning("sysctl_set", sysctl=name, old=old, new=value, why=why)
        return True

    def interface_gone(self, interface: str) -> None:
        """Its sysctls went with it: one that comes under its name has its own, never tried."""
        forgotten = False
        for ipv6 in (False, True):
            prefix = sysctl.of_interface(interface, "", ipv6=ipv6)
            self._tried = {name for name in self._tried if not name.startswith(prefix)}
            forgotten |= self._sysctls.forget(prefix)
        if forgotten:
            with contextlib.suppress(BpfError):
                self._note(self._sysctls.changes)

    def interface_renamed(self, interface: str, new: str) -> None:
        """Its sysctls have its new name, and whoever bears the old one has others."""
        changed = False
        for ipv6 in (False, True):
            prefix = sysctl.of_interface(interface, "", ipv6=ipv6)
            renamed = sysctl.of_interface(new, "", ipv6=ipv6)
            self._tried = {
                renamed + name.removeprefix(prefix) if name.startswith(prefix) else name
                for name in self._tried
            }
            changed |= self._sysctls.rename(prefix, renamed)
        if changed:
            with contextlib.suppress(BpfError):
                self._note(self._sysctls.changes)

    def restore(self, root: Path, own: Path) -> None:
        """Undo everything that still is as it was left, but for ports that others need.

        ``root`` is where all pins are, ``own`` where this data plane's are. Raises SysctlError
        after trying all, BpfError or PinError when others cannot be looked at.
        """
        for change in release(self._sysctls, self._notes, root, own):
            _log.info("sysctl_restored", sysctl=change.name, old=change.ours, new=change.old)

    def _note(self, changes: list[Change]) -> None:
        self._notes.write(Note.SYSCTLS, sysctl.format_changes(changes))
