# SPDX-License-Identifier: Apache-2.0
"""Reserved ports that several data planes of one network namespace rely on.

Who reserves a port notes it, and gives it back when it ends. A data plane that found its ports
reserved has noted none; so whoever ends leaves such ports, and the duty to give them
back, to one that needs them: its note gets them. Data planes of one pins directory know of each
other; those of different ones do not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import bpf_syscall as bpf
from . import sysctl
from .bpf_maps import Control
from .notes import Note, Notes
from .pins import CONTROL_PIN, find_instances

_NOTES_PIN = "notes"


@dataclass(frozen=True, slots=True)
class _Neighbour:
    path: Path
    needed: frozenset[int]


def leave_to_others(root: Path, own: Path, ports: Iterable[int]) -> set[int]:
    """Give the ports that other data planes under ``root`` need into their care.

    ``own``: the pins of the one that ends. Returns the ports that nobody else in the current
    network namespace needs: those may be released. Raises BpfError or PinError.
    """
    left = set(ports)
    for other in _neighbours(root, own):
        theirs = left & other.needed
        if theirs:
            with _open(other.path / _NOTES_PIN) as fd:
                notes = Notes(fd)
                noted = sysctl.parse_ports(notes.read(Note.RESERVED_PORTS))
                notes.write(Note.RESERVED_PORTS, sysctl.format_ports(noted | theirs))
            left -= theirs
    return left


def release(sysctls: sysctl.Sysctls, notes: Notes, root: Path, own: Path) -> list[sysctl.Change]:
    """Put back what ``sysctls`` has changed, but for ports that others need.

    ``notes`` are one's own: others that ended may have left ports in there. Returns the sysctls
    that have their old value again. Raises as ``leave_to_others``, and SysctlError.
    """
    sysctls.adopt_ports(sysctl.parse_ports(notes.read(Note.RESERVED_PORTS)))
    reserved = sysctls.reserved
    sysctls.leave_ports(reserved - leave_to_others(root, own, reserved))
    return sysctls.restore()


def _neighbours(root: Path, own: Path) -> Iterator[_Neighbour]:
    here = sysctl.namespace_id()
    for instance in find_instances(root):
        pins = (instance.path / _NOTES_PIN, instance.path / CONTROL_PIN)
        if instance.path == own or not all(pin.exists() for pin in pins):
            continue  # one without them is about to go
        with _open(pins[0]) as notes, _open(pins[1]) as control:
            if Notes(notes).read(Note.NETNS) != here:
                continue
            value = Control(control).read()
        if value.probe_port_min:
            ports = set(range(value.probe_port_min, value.probe_port_max + 1))
            if value.nat_port_min:
                ports.update(range(value.nat_port_min, value.nat_port_max + 1))
            yield _Neighbour(instance.path, frozenset(ports))


@contextlib.contextmanager
def _open(pin: Path) -> Iterator[int]:
    fd = bpf.open_pinned(str(pin))
    try:
        yield fd
    finally:
        os.close(fd)
