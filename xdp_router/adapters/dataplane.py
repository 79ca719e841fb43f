# SPDX-License-Identifier: Apache-2.0
"""The loaded data plane: maps, programs and their pins. One code path for both loaders.

Pins live under ``<root>/v<ABI>/<instance>/``: each map by its name, each program as
``prog_<function>``, each attachment as ``link_<interface>``. The directory is built aside and
renamed into place, so one that is there is whole. A link survives its creator as long as it
is pinned: that is how forwarding goes on when the daemon is gone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from . import bpf_syscall as bpf
from .map_specs import (
    ENTRY_PROGRAM,
    MAP_SPECS,
    STAGE_PROGRAMS,
    DeclaredMap,
    ProgramMismatch,
    Sizes,
    check_declared,
)

DEFAULT_ROOT = Path("/sys/fs/bpf/xdp-router")

_PROG_PREFIX, _LINK_PREFIX = "prog_", "link_"
# No interface name has a colon, so no instance can be called like a directory under way.
_ASIDE = ":new-"
# bpffs takes no dots in names, and '+' separates names.
_ESCAPES = (("+", ":p"), (".", ":d"))
_NAME_MAX = 255


class NoBpfFs(XdpRouterError):
    """The pin directory is not on a BPF file system."""


class InstanceExists(XdpRouterError):
    """The interfaces already have a data plane, of a daemon that lives or has crashed."""


class NoInstance(XdpRouterError):
    """There is no data plane where one was looked for."""


class Program(Protocol):
    """What a loader opened: knows the program's maps, then loads it."""

    @property
    def maps(self) -> dict[str, DeclaredMap]: ...

    def load(self, map_fds: Mapping[str, int]) -> dict[str, int]: ...

    def close(self) -> None: ...


class Loader(Protocol):
    """One of the two ways from source to programs."""

    name: str

    def open(self) -> Program: ...


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


def instance_dir(root: Path, interfaces: Sequence[str]) -> Path:
    """Where the data plane of these interfaces is pinned. Raises XdpRouterError: too many."""
    name = "+".join(_escape(interface) for interface in interfaces)
    if len(name) > _NAME_MAX:
        raise XdpRouterError(
            f"{len(interfaces)} interfaces: their names make a pin of {len(name)} characters, "
            f"and {_NAME_MAX} is the limit: attach them by more than one daemon"
        )
    return root / f"v{abi.ABI_VERSION}" / name


def find_instances(root: Path) -> list[InstanceRef]:
    """All data planes of this version that are pinned under ``root``, by name."""
    folder = root / f"v{abi.ABI_VERSION}"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except PermissionError as cause:
        raise XdpRouterError(f"{folder}: permission denied: run it as root") from cause
    return [
        InstanceRef(tuple(_unescape(part) for part in name.split("+")), folder / name)
        for name in names
        if not name.startswith(_ASIDE)
    ]


def instance_of(root: Path, interface: str) -> InstanceRef | None:
    """The data plane that holds ``interface``, if any."""
    return next((i for i in find_instances(root) if interface in i.interfaces), None)


def link_pin(pin_dir: Path, interface: str) -> Path:
    """Where the attachment of ``interface`` is pinned."""
    return pin_dir / (_LINK_PREFIX + _escape(interface))


def pinned_links(pin_dir: Path) -> dict[str, Path]:
    """Pins of the attachments, by interface name."""
    names = sorted(n for n in os.listdir(pin_dir) if n.startswith(_LINK_PREFIX))
    return {_unescape(n.removeprefix(_LINK_PREFIX)): pin_dir / n for n in names}


def require_bpffs(root: Path) -> None:
    """Raise NoBpfFs, with the mount command, unless ``root`` is or will be on bpffs."""
    existing = root
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
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


@dataclass(slots=True)
class DataPlane:
    """Open maps and programs by name. ``pin_dir`` is None until they are pinned."""

    maps: dict[str, int]
    programs: dict[str, int]
    pin_dir: Path | None = None
    loader: str = ""
    _closed: bool = field(default=False, repr=False)

    @property
    def entry(self) -> int:
        """The fd of the program that is attached to interfaces."""
        return self.programs[ENTRY_PROGRAM]

    @classmethod
    def create(cls, loader: Loader, sizes: Sizes, pin_dir: Path | None) -> DataPlane:
        """Create the maps, load the programs, pin all of it under ``pin_dir`` (None: nowhere).

        Raises NoBpfFs, InstanceExists, ProgramMismatch, VerifierError, UnsupportedHost or
        BpfError; nothing is left behind then.
        """
        if pin_dir is not None:
            require_bpffs(pin_dir.parent.parent)
            _require_free(pin_dir)
        with contextlib.ExitStack() as undo:
            program = loader.open()
            undo.callback(program.close)
            plane = cls({}, {}, None, loader.name)
            with contextlib.ExitStack() as undo_plane:
                undo_plane.callback(plane.close)
                plane._load(program, sizes)
                if pin_dir is not None:
                    plane._pin(pin_dir)
                undo_plane.pop_all()
            return plane

    @classmethod
    def open(cls, pin_dir: Path) -> DataPlane:
        """Open a pinned data plane: for the CLI, ``detach``, and later adoption.

        Raises NoInstance when it is not there, BpfError when it may not be opened.
        """
        if not pin_dir.is_dir():
            raise NoInstance(
                f"{pin_dir}: no data plane is pinned there: sudo xdp-routerd attach IFACE"
            )
        plane = cls({}, {}, pin_dir)
        try:
            for name in os.listdir(pin_dir):
                path = str(pin_dir / name)
                if name.startswith(_PROG_PREFIX):
                    plane.programs[name.removeprefix(_PROG_PREFIX)] = bpf.open_pinned(path)
                elif not name.startswith(_LINK_PREFIX):
                    plane.maps[name] = bpf.open_pinned(path)
        except BaseException:
            plane.close()
            raise
        return plane

    def unpin(self) -> None:
        """Remove the directory with every pin in it, links included. Idempotent.

        A link whose last reference was its pin is detached by this.
        """
        if self.pin_dir is not None:
            remove_pins(self.pin_dir)
            self.pin_dir = None

    def close(self) -> None:
        """Close the fds. What is pinned or attached goes on."""
        if not self._closed:
            self._closed = True
            for fd in (*self.maps.values(), *self.programs.values()):
                os.close(fd)

    def _load(self, program: Program, sizes: Sizes) -> None:
        declared = program.maps
        check_declared(declared)
        for spec in MAP_SPECS:
            value_size = spec.value_size
            if value_size is None:
                if spec.name not in declared:
                    continue  # the program has no use for it
                value_size = declared[spec.name].value_size
            self.maps[spec.name] = bpf.map_create(
                spec.type, spec.name, spec.key_size, value_size, spec.entries(sizes), spec.flags
            )
        self.programs.update(program.load(self.maps))
        missing = [name for name in (ENTRY_PROGRAM, *STAGE_PROGRAMS) if name not in self.programs]
        if missing:
            raise ProgramMismatch(
                f"the compiled program has no {', '.join(missing)}: build it again (make build)"
            )
        stages = bpf.BpfMap(self.maps["stages"])
        for index, name in enumerate(STAGE_PROGRAMS):
            stages.write(_u32(index), _u32(self.programs[name]))

    def _pin(self, pin_dir: Path) -> None:
        pin_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(pin_dir.parent)
        aside = pin_dir.parent / f"{_ASIDE}{os.getpid()}-{time.monotonic_ns()}"
        try:
            aside.mkdir(mode=0o700)
            for name, fd in self._pins():
                bpf.pin(fd, str(aside / name))
            # rename(2) would replace an empty directory only, and ours are never empty.
            aside.rename(pin_dir)
        except OSError as cause:
            remove_pins(aside)
            if pin_dir.exists():
                raise InstanceExists(f"{pin_dir} was made by another daemon meanwhile") from cause
            raise
        self.pin_dir = pin_dir

    def _pins(self) -> Iterator[tuple[str, int]]:
        yield from self.maps.items()
        for name, fd in self.programs.items():
            yield _PROG_PREFIX + name, fd


def remove_pins(directory: Path) -> None:
    """Remove a directory of pins. Nothing happens when it is not there."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()


def heartbeat_age_ns(pin_dir: Path) -> int | None:
    """Nanoseconds since the daemon of a pinned data plane gave its last sign of life.

    None: it never did. Raises BpfError when the ``control`` map cannot be read.
    """
    fd = bpf.open_pinned(str(pin_dir / "control"))
    try:
        raw = bpf.BpfMap(fd).read(_u32(0))
    finally:
        os.close(fd)
    beat = abi.unpack_control(raw).heartbeat_ns if raw else 0
    return max(0, time.monotonic_ns() - beat) if beat else None


_ALIVE_NS = 1_000_000_000  # 100 missed heartbeats; a loaded machine is late, not that late


def _require_free(pin_dir: Path) -> None:
    root = pin_dir.parent.parent
    interfaces = tuple(_unescape(part) for part in pin_dir.name.split("+"))
    for interface in interfaces:
        taken = instance_of(root, interface)
        if taken is None:
            continue
        age = heartbeat_age_ns(taken.path)
        if age is not None and age < _ALIVE_NS:
            state = "a running daemon"
            mend = "stop that daemon first"
        else:
            state = "a daemon that is gone"
            mend = f"xdp-routerd detach {' '.join(taken.interfaces)}"
        raise InstanceExists(
            f"{interface} already has a data plane of {state} ({taken.path}): {mend}"
        )


def _remove_abandoned(folder: Path) -> None:
    """Directories that a process left half-made when it died."""
    for name in os.listdir(folder):
        if name.startswith(_ASIDE):
            pid = name.removeprefix(_ASIDE).split("-")[0]
            if not Path(f"/proc/{pid}").exists():
                remove_pins(folder / name)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)
