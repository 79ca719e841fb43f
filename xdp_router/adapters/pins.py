# SPDX-License-Identifier: Apache-2.0
"""Where data planes are pinned: ``<root>/v<ABI>/<interfaces>/``. Paths only, no bpf(2)."""

from __future__ import annotations

import contextlib
import ctypes as ct
import errno
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

DEFAULT_ROOT = Path("/sys/fs/bpf/xdp-router")

PROG_PREFIX, LINK_PREFIX = "prog_", "link_"
CONTROL_PIN = "control"
"""The map with the daemon's heartbeat."""
LOOKUP_PIN = "lookup_link"
"""The link of the program that leads connections to the gateway's sockets, if there is one."""
# No interface name has a colon, so no instance can be called like a directory under way.
ASIDE = ":new-"
# bpffs takes no dots in names, and '+' separates names.
_ESCAPES = (("+", ":p"), (".", ":d"))
_NAME_MAX = 255
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class PinError(XdpRouterError):
    """The pins cannot be made, read or removed; the text says which and why."""


class NoBpfFs(PinError):
    """The pin directory is not on a BPF file system."""


def _escape(interface: str) -> str:
    for plain, escaped in _ESCAPES:
        interface = interface.replace(plain, escaped)
    return interface


def _unescape(name: str) -> str:
    for plain, escaped in _ESCAPES:
        name = name.replace(escaped, plain)
    return name


@dataclass(frozen=True, slots=True)
class InstanceRef:
    """A pinned data plane: its interfaces and its directory."""

    interfaces: tuple[str, ...]
    path: Path

    @property
    def name(self) -> str:
        """For people: the interface names joined by ``+``."""
        return "+".join(self.interfaces)

    @property
    def detach(self) -> str:
        """The command that takes it away, to be copied; the root is in it unless it is the default.

        An exported variable would not do: sudo drops it.
        """
        root = self.path.parent.parent
        pins = "" if root == DEFAULT_ROOT else f" --pins {shlex.quote(str(root))}"
        return f"xdp-routerd detach {' '.join(self.interfaces)}{pins}"


def instance_dir(root: Path, interfaces: Sequence[str]) -> Path:
    """Where the data plane of these interfaces is pinned. Raises XdpRouterError: too many."""
    name = "+".join(_escape(interface) for interface in interfaces)
    if len(name) > _NAME_MAX:
        raise XdpRouterError(
            f"{len(interfaces)} interfaces: their names make a pin of {len(name)} characters, "
            f"and {_NAME_MAX} is the limit: attach them by more than one daemon"
        )
    return root / f"v{abi.ABI_VERSION}" / name


def instance_interfaces(pin_dir: Path) -> tuple[str, ...]:
    """The interfaces of the data plane that is pinned there: undoes ``instance_dir``."""
    return tuple(_unescape(part) for part in pin_dir.name.split("+"))


def find_instances(root: Path) -> list[InstanceRef]:
    """All data planes of this version that are pinned under ``root``, by name.

    Raises PinError when they cannot be listed.
    """
    folder = root / f"v{abi.ABI_VERSION}"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError as cause:
        raise PinError(
            f"{root} is not a directory that pins are in: choose another with --pins"
        ) from cause
    except PermissionError as cause:
        raise _denied(root, cause) from cause
    except OSError as cause:
        raise PinError(
            f"{folder}: cannot be listed: {cause.strerror}: choose another --pins directory"
        ) from cause
    return [
        InstanceRef(instance_interfaces(folder / name), folder / name)
        for name in names
        if not name.startswith(ASIDE)
    ]


def _denied(root: Path, cause: PermissionError) -> PinError:
    if cause.errno == errno.EPERM:  # not EACCES: bpffs says so about such names
        return PinError(
            f"{root}: a BPF file system takes no dots in names: choose another with --pins"
        )
    return PinError(f"{root}: permission denied: run it as root")


def instance_of(root: Path, interface: str) -> InstanceRef | None:
    """The data plane that holds ``interface``, if any."""
    return next((i for i in find_instances(root) if interface in i.interfaces), None)


def link_pin(pin_dir: Path, interface: str) -> Path:
    """Where the attachment of ``interface`` is pinned."""
    return pin_dir / (LINK_PREFIX + _escape(interface))


def pinned_links(pin_dir: Path) -> dict[str, Path]:
    """Pins of the attachments, by interface name."""
    names = sorted(n for n in os.listdir(pin_dir) if n.startswith(LINK_PREFIX))
    return {_unescape(n.removeprefix(LINK_PREFIX)): pin_dir / n for n in names}


def require_bpffs(root: Path) -> None:
    """Raise NoBpfFs, with the mount command, unless ``root`` is or will be on bpffs."""
    existing = root
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
    except PermissionError as cause:
        raise _denied(root, cause) from cause
    device = existing.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == wanted and kind.split()[0] == "bpf":
            return
    at = root.parent if root == DEFAULT_ROOT else root
    raise NoBpfFs(
        f"{root} is not on a BPF file system, so nothing can be pinned there: "
        f"mkdir -p {at} && mount -t bpf bpf {at}"
    )


def other_version(root: Path, interfaces: Sequence[str]) -> Path | None:
    """Where another ABI version has pinned a data plane for one of the interfaces, if it has."""
    wanted = set(interfaces)
    for folder in sorted(root.glob("v*")):
        version = folder.name.removeprefix("v")
        if not version.isdigit() or int(version) == abi.ABI_VERSION or not folder.is_dir():
            continue
        for place in sorted(folder.iterdir()):
            if not place.name.startswith(ASIDE) and wanted.intersection(instance_interfaces(place)):
                return place
    return None


def exchange(first: Path, second: Path) -> None:
    """Let two directories change places, in one step. Raises PinError."""
    libc = ct.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        code = ct.get_errno()
        raise PinError(
            f"{second}: cannot be exchanged for its successor: {os.strerror(code)}: "
            "xdp-routerd detach it, and attach again"
        )


def remove_abandoned(folder: Path, interfaces: Sequence[str]) -> None:
    """Remove directories that a process left half-made when it died. Raises PinError.

    One with attachments was to take over a data plane, whose programs may have parts in there:
    it goes only when that data plane's ``interfaces`` are named.
    """
    if not folder.is_dir():
        return
    for name in os.listdir(folder):
        if not name.startswith(ASIDE):
            continue
        pid = name.removeprefix(ASIDE).split("-")[0]
        if not Path(f"/proc/{pid}").exists() and set(pinned_links(folder / name)) <= {*interfaces}:
            remove_pins(folder / name)


def identity(directory: Path) -> tuple[int, int] | None:
    """Tells a directory of pins from a later one of the same path; None: there is none."""
    try:
        found = os.stat(directory)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _removal_order(name: str) -> int:
    if name.startswith(LINK_PREFIX) or name == LOOKUP_PIN:
        return 0
    return 2 if name == CONTROL_PIN else 1


def remove_pins(directory: Path) -> None:
    """Remove a directory of pins; nothing happens when it is not there. Raises PinError.

    Attachments first, ``control`` last: whatever is left when this is cut short, nothing is
    attached without it, and whether a daemon lives can be told.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(directory), key=_removal_order):
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()
    except OSError as cause:
        raise PinError(
            f"{directory}: the pins cannot be removed: {cause.strerror}: run it as root, and see "
            "what else is in there"
        ) from cause
