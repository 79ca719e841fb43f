# SPDX-License-Identifier: Apache-2.0
"""Network sysctls of the current network namespace: read, set, put back.

/proc/sys/net shows the namespace of the thread that opens a file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from xdp_router.core.errors import XdpRouterError

from . import listeners

_ROOT = Path("/proc/sys")
LOCAL_PORTS = "net.ipv4.ip_local_port_range"
RESERVED_PORTS = "net.ipv4.ip_local_reserved_ports"


class SysctlError(XdpRouterError):
    """A sysctl can't be read or written; the text names it and why."""


def _path(name: str) -> Path:
    # An interface name may hold dots ("eth0.5"), which are written as slashes then.
    return _ROOT / name.translate(str.maketrans("./", "/."))


def of_interface(interface: str, key: str, *, ipv6: bool = False) -> str:
    """A sysctl of one interface, or of ``all``, for one of the families."""
    return f"net.{'ipv6' if ipv6 else 'ipv4'}.conf.{interface.replace('.', '/')}.{key}"


def read(name: str) -> str:
    """Value of a sysctl, such as ``net.ipv4.ip_forward``. Raises SysctlError."""
    try:
        return _path(name).read_text(encoding="ascii").strip()
    except OSError as error:
        raise SysctlError(f"cannot read sysctl {name}: {error.strerror}") from error


def _write(name: str, value: str) -> None:
    try:
        # A list is emptied by an empty line; zero bytes would change nothing.
        with open(_path(name), "w", encoding="ascii") as file:
            file.write(f"{value}\n")
    except OSError as error:
        text = f"cannot set sysctl {name} to {value!r}: {error.strerror}"
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            # In a container, as a rule; who finds it set need not set it.
            text += f": set it from outside: sysctl -w {name}={value}"
        raise SysctlError(text) from error


def parse_ports(text: str) -> set[int]:
    """Ports of a list such as ``8080,9148,30000-30010``."""
    ports: set[int] = set()
    for part in filter(None, text.replace(",", " ").split()):
        first, _, last = part.partition("-")
        ports.update(range(int(first), int(last or first) + 1))
    return ports


def format_ports(ports: Iterable[int]) -> str:
    """The kernel's notation of a set of ports, runs as ``first-last``."""
    runs: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if runs and runs[-1][1] == port - 1:
            runs[-1] = (runs[-1][0], port)
        else:
            runs.append((port, port))
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in runs)


def namespace_id() -> str:
    """Tells the calling thread's network namespace from the others that exist."""
    found = os.stat("/proc/thread-self/ns/net")
    return f"{found.st_dev}:{found.st_ino}"


def ports_to_reserve(first: int, last: int) -> set[int]:
    """Which ports of ``first``..``last`` are not reserved yet. Raises SysctlError."""
    return set(range(first, last + 1)) - parse_ports(read(RESERVED_PORTS))


def release_ports(ports: Iterable[int]) -> None:
    """Let the kernel give out these ports again. Raises SysctlError."""
    before = parse_ports(read(RESERVED_PORTS))
    left = before.difference(ports)
    if left != before:
        _write(RESERVED_PORTS, format_ports(left))


@dataclass(frozen=True, slots=True)
class Change:
    """A sysctl that was ``old`` and that we have set to ``ours``. Neither holds a blank."""

    name: str
    old: str
    ours: str


def format_changes(changes: Iterable[Change]) -> str:
    """Changes as text, one a line."""
    return "\n".join(f"{each.name} {each.old} {each.ours}" for each in changes)


def parse_changes(text: str) -> list[Change]:
    """What ``format_changes`` has written."""
    return [Change(*line.split(" ")) for line in text.splitlines()]


def put_back(change: Change) -> bool:
    """Give a sysctl its old value again, if it still has ours. Raises SysctlError.

    False: somebody has changed it since, or it went with its interface.
    """
    if not exists(change.name) or read(change.name) != change.ours:
        return False
    _write(change.name, change.old)
    return True


class Sysctls:
    """Changes sysctls and puts the old values back on exit.

    A value that somebody else changed meanwhile is left alone. Used as a context manager
    or closed by :meth:`restore`, from the network namespace in which it set them.
    """

    def __init__(self) -> None:
        self._old: dict[str, tuple[str, str]] = {}
        self._reserved: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.restore()

    def set(self, name: str, value: str) -> None:
        """Set a sysctl and remember what it was. Raises SysctlError."""
        old = self._old.get(name, (read(name), ""))[0]
        _write(name, value)
        self._old[name] = (old, read(name))

    def adopt(self, changes: Iterable[Change]) -> None:
        """Count a predecessor's changes as ours, those that still hold. Raises SysctlError."""
        for change in changes:
            if exists(change.name) and read(change.name) == change.ours:
                self._old[change.name] = (change.old, change.ours)

    def forget(self, prefix: str) -> bool:
        """Leave what begins like this as it is, for ever: whether there was any."""
        gone = [name for name in self._old if name.startswith(prefix)]
        for name in gone:
            del self._old[name]
        return bool(gone)

    def rename(self, prefix: str, new: str) -> bool:
        """What begins with ``prefix`` begins with ``new`` by now: whether there was any."""
        old = {name: name.replace(prefix, new, 1) for name in self._old if name.startswith(prefix)}
        for name, renamed in old.items():
            self._old[renamed] = self._old.pop(name)
        return bool(old)

    @property
    def changes(self) -> list[Change]:
        """What has been set, and is to be put back."""
        return [Change(name, old, ours) for name, (old, ours) in self._old.items()]

    def reserve_ports(self, first: int, last: int) -> list[str]:
        """Keep the kernel from giving out source ports ``first``..``last`` (inclusive).

        Adds to what is reserved already. Returns warnings for the operator: sockets that
        listen there, whose clients' packets would be taken for backends' answers. Raises
        SysctlError.
        """
        ours = ports_to_reserve(first, last)
        if ours:
            _write(RESERVED_PORTS, format_ports(parse_ports(read(RESERVED_PORTS)) | ours))
            self._reserved |= ours
        return [
            f"a local socket listens on {proto.upper()} port {port}, inside the reserved range "
            f"{first}-{last}: choose another range, or move the listener"
            for proto, port in listeners.in_range(first, last)
        ]

    def adopt_ports(self, ports: Iterable[int]) -> frozenset[int]:
        """Count ports that a predecessor has reserved as ours; gives those that still are.

        Raises SysctlError.
        """
        still = frozenset(ports) & parse_ports(read(RESERVED_PORTS))
        self._reserved |= still
        return still

    @property
    def reserved(self) -> frozenset[int]:
        """Ports that this object is to give back."""
        return frozenset(self._reserved)

    def leave_ports(self, ports: Iterable[int]) -> None:
        """Leave ports reserved: somebody else gives them back."""
        self._reserved.difference_update(ports)

    def restore(self) -> list[Change]:
        """Put everything back; of the reserved ports only those that were added.

        Returns the sysctls that have their old value again. Raises SysctlError after trying
        all. Calling it again does nothing.
        """
        faults: list[str] = []
        restored: list[Change] = []
        while self._old:
            name, (old, ours) = self._old.popitem()
            try:
                if put_back(Change(name, old, ours)):
                    restored.append(Change(name, old, ours))
            except SysctlError as error:
                faults.append(str(error))
        if self._reserved:
            try:
                release_ports(self._reserved)
            except SysctlError as error:
                faults.append(str(error))
            self._reserved = set()
        if faults:
            raise SysctlError("; ".join(faults))
        return restored


def exists(name: str) -> bool:
    """Whether this kernel, and this namespace, has the sysctl."""
    return os.path.exists(_path(name))


def read_only(name: str) -> bool:
    """Whether nobody can set the sysctl here, as in a container. Raises SysctlError."""
    try:
        return bool(os.statvfs(_path(name)).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise SysctlError(f"cannot look at sysctl {name}: {error.strerror}") from error
