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
from .pins import ASIDE, CONTROL_PIN, LINK_PREFIX, PROG_PREFIX, PinError, instance_interfaces
from .pins import DEFAULT_ROOT as DEFAULT_ROOT
from .pins import InstanceRef as InstanceRef
from .pins import NoBpfFs as NoBpfFs
from .pins import find_instances as find_instances
from .pins import identity as identity
from .pins import instance_dir as instance_dir
from .pins import instance_of as instance_of
from .pins import link_pin as link_pin
from .pins import pinned_links as pinned_links
from .pins import remove_pins as remove_pins
from .pins import require_bpffs as require_bpffs

_ALIVE_NS = 1_000_000_000  # 100 missed heartbeats; a loaded machine is late, not that late


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


@dataclass(slots=True)
class DataPlane:
    """Open maps and programs by name. ``pin_dir`` is None until they are pinned."""

    maps: dict[str, int]
    programs: dict[str, int]
    pin_dir: Path | None = None
    loader: str = ""
    _identity: tuple[int, int] | None = field(default=None, repr=False)
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
            require_free(pin_dir.parent.parent, instance_interfaces(pin_dir))
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
        plane._identity = identity(pin_dir)
        try:
            for name in os.listdir(pin_dir):
                path = str(pin_dir / name)
                if name.startswith(PROG_PREFIX):
                    plane.programs[name.removeprefix(PROG_PREFIX)] = bpf.open_pinned(path)
                elif not name.startswith(LINK_PREFIX):
                    plane.maps[name] = bpf.open_pinned(path)
        except BaseException:
            plane.close()
            raise
        return plane

    def owns_pins(self) -> bool:
        """Whether the pins are still those that were made here, and not a successor's."""
        return self.pin_dir is not None and identity(self.pin_dir) == self._identity

    def unpin(self) -> None:
        """Remove the directory with every pin in it, links included. Idempotent.

        A link whose last reference was its pin is detached by this. A successor's pins stay.
        """
        if self.pin_dir is not None:
            if self.owns_pins():
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
        aside = pin_dir.parent / f"{ASIDE}{os.getpid()}-{time.monotonic_ns()}"
        try:
            pin_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_abandoned(pin_dir.parent)
            aside.mkdir(mode=0o700)
            for name, fd in self._pins():
                bpf.pin(fd, str(aside / name))
            self._identity = identity(aside)
            # rename(2) would replace an empty directory only, and ours are never empty.
            aside.rename(pin_dir)
        except OSError as cause:  # a BpfError, too
            remove_pins(aside)
            if pin_dir.exists():
                raise InstanceExists(f"{pin_dir} was made by another daemon meanwhile") from cause
            if isinstance(cause, XdpRouterError):
                raise
            raise PinError(
                f"{pin_dir}: the data plane cannot be pinned there: {cause.strerror}: "
                "make the directory writable, or choose another with --pins"
            ) from cause
        self.pin_dir = pin_dir

    def _pins(self) -> Iterator[tuple[str, int]]:
        yield from self.maps.items()
        for name, fd in self.programs.items():
            yield PROG_PREFIX + name, fd


def daemon_alive(pin_dir: Path) -> bool:
    """Whether the daemon of a pinned data plane gave a sign of life within the last second.

    Without the pin of its heartbeat it has none: a shutdown was cut short. Raises BpfError when
    the heartbeat cannot be read.
    """
    if not (pin_dir / CONTROL_PIN).exists():
        return False
    fd = bpf.open_pinned(str(pin_dir / CONTROL_PIN))
    try:
        raw = bpf.BpfMap(fd).read(_u32(0))
    finally:
        os.close(fd)
    beat_ns = abi.unpack_control(raw).heartbeat_ns if raw else 0
    return bool(beat_ns) and time.monotonic_ns() - beat_ns < _ALIVE_NS


def require_free(root: Path, interfaces: Sequence[str]) -> None:
    """Raise InstanceExists if one of the interfaces has a data plane that is pinned under ``root``.

    The message says whether its daemon lives, and what to do.
    """
    for interface in interfaces:
        taken = instance_of(root, interface)
        if taken is None:
            continue
        if daemon_alive(taken.path):
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
        if name.startswith(ASIDE):
            pid = name.removeprefix(ASIDE).split("-")[0]
            if not Path(f"/proc/{pid}").exists():
                remove_pins(folder / name)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)
