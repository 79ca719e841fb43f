# SPDX-License-Identifier: Apache-2.0
"""The loaded data plane: maps, programs and their pins. One code path for both loaders.

Pins live under ``<root>/v<ABI>/<instance>/``: each map by its name, each program as
``prog_<function>``, each attachment as ``link_<interface>``. The directory is built aside and
renamed into place, so one that is there is whole. A link survives its creator as long as it
is pinned: that is how forwarding goes on when the daemon is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from . import bpf_syscall as bpf
from . import map_memory, resize
from .bpf_ctypes import BpfError
from .map_specs import (
    ENTRY_PROGRAM,
    MAP_SPECS,
    PREVIOUS,
    STAGE_PROGRAMS,
    DeclaredMap,
    ProgramMismatch,
    Sizes,
    check_declared,
    program_name,
    stage_slots,
)
from .pins import (
    ASIDE,
    CONTROL_PIN,
    LINK_PREFIX,
    LOOKUP_PIN,
    PROG_PREFIX,
    PinError,
    instance_interfaces,
)
from .pins import DEFAULT_ROOT as DEFAULT_ROOT
from .pins import InstanceRef as InstanceRef
from .pins import NoBpfFs as NoBpfFs
from .pins import exchange as exchange
from .pins import find_instances as find_instances
from .pins import identity as identity
from .pins import instance_dir as instance_dir
from .pins import instance_of as instance_of
from .pins import link_pin as link_pin
from .pins import pinned_links as pinned_links
from .pins import remove_abandoned as remove_abandoned
from .pins import remove_pins as remove_pins
from .pins import require_bpffs as require_bpffs

_ALIVE_NS = 1_000_000_000  # 100 missed heartbeats; a loaded machine is late, not that late
_LOOK_S = 0.02
_LOOKS = 5  # at pins that somebody takes away, or puts others in the place of, meanwhile


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

    def open(self, family: int = 4) -> Program:
        """What it has for an address family."""


@dataclass(slots=True)
class DataPlane:
    """Open maps and programs by name. ``pin_dir`` is None until they are pinned."""

    maps: dict[str, int]
    programs: dict[str, int]
    pin_dir: Path | None = None
    loader: str = ""
    lookup_link: int = -1
    """Fd of the link to the network namespace, see ``socket_lookup``; -1: there is none."""
    _identity: tuple[int, int] | None = field(default=None, repr=False)
    _closed: bool = field(default=False, repr=False)

    @property
    def entry(self) -> int:
        """The fd of the program that is attached to interfaces."""
        return self.programs[ENTRY_PROGRAM]

    @classmethod
    def create(cls, loader: Loader, sizes: Sizes, pin_dir: Path | None) -> DataPlane:
        """Create the maps, load the programs, pin all of it under ``pin_dir`` (None: nowhere).

        Raises NoBpfFs, InstanceExists, ProgramMismatch, VerifierError, UnsupportedHost, TooLarge
        or BpfError; nothing is left behind then.
        """
        if pin_dir is not None:
            require_bpffs(pin_dir.parent.parent)
            require_free(pin_dir.parent.parent, instance_interfaces(pin_dir))
        plane = cls({}, {}, None, loader.name)
        with contextlib.ExitStack() as undo:
            undo.callback(plane.close)
            plane._load(loader, sizes, {})
            if pin_dir is not None:
                plane._pin(pin_dir)
            undo.pop_all()
        return plane

    @classmethod
    def succeed(cls, loader: Loader, former: DataPlane, sizes: Sizes | None = None) -> DataPlane:
        """Load the programs over the maps of ``former``, except those that are a program's own.

        Tables that ``former`` had no use for are made anew if ``sizes`` want them, and so are
        those of another size (``resize.plan``): what was in them is for others to bring over, but
        flows, whose former tables the programs have in ``previous``. Nothing runs
        the programs yet, and nothing is pinned: see ``take_over``. Raises as ``create``.
        """
        plane = cls({}, {}, None, loader.name)
        anew = resize.plan(former.maps, sizes) if sizes is not None else {}
        given = {name: fd for name, fd in former.maps.items() if name not in anew}
        with contextlib.ExitStack() as undo:
            undo.callback(plane.close)
            plane._load(loader, sizes or Sizes(), given)
            if former.lookup_link >= 0:
                plane.lookup_link = os.dup(former.lookup_link)
            for table, (_, before) in PREVIOUS.items():
                plane._look_into(table, former.maps.get(table if table in anew else before))
            undo.pop_all()
        return plane

    def _look_into(self, table: str, before: int | None) -> None:
        """Let the programs have what was ``table`` before; None: there is nothing in it."""
        if before is not None:
            outer, name = PREVIOUS[table]
            bpf.BpfMap(self.maps[outer]).write(_u32(0), _u32(before))
            self.maps[name] = os.dup(before)

    def drop_previous(self, table: str) -> None:
        """No flow is any more in what was ``table`` before: the kernel frees it when nobody reads
        it. Waits until no program runs that has it. Raises BpfError or PinError; it can be tried
        again then."""
        outer, name = PREVIOUS[table]
        if name not in self.maps:
            return
        code = bpf.BpfMap(self.maps[outer]).delete(_u32(0))
        if code not in (0, errno.ENOENT):
            raise BpfError(code, f"take {name} out of map {outer}")
        if self.pin_dir is not None and self.owns_pins():
            try:
                (self.pin_dir / name).unlink(missing_ok=True)
            except OSError as cause:
                raise PinError(
                    f"{self.pin_dir / name}: the pin cannot be removed: {cause.strerror}: "
                    "make the directory writable; it is tried again"
                ) from cause
        os.close(self.maps.pop(name))

    def take_over(
        self,
        former: DataPlane,
        links: Mapping[str, int],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the attachments run this program, and put our pins in the place of the former's.

        ``links``: fds of the attachments, by interface. ``prepare`` is called as late as can be
        before. No packet is without a program; whatever
        instant this is cut short at, pins and attachments can be adopted or detached. Raises
        BpfError or PinError; the former's program runs again then.
        """
        assert former.pin_dir is not None
        where, entry = former.pin_dir, former.programs.get(ENTRY_PROGRAM)
        aside = self._pin_aside(where.parent, links)
        try:
            with contextlib.ExitStack() as undo:
                prepare()
                # First: flows that the new program moves must be in maps that a successor finds.
                exchange(aside, where)
                undo.callback(exchange, aside, where)
                for link in links.values():
                    bpf.link_update(link, self.entry)
                    if entry is not None:
                        undo.callback(bpf.link_update, link, entry)
                undo.pop_all()
        except OSError:  # a BpfError, too
            remove_pins(aside)
            raise
        except XdpRouterError:
            remove_pins(aside)
            raise
        self.pin_dir, former.pin_dir = where, None
        # Only now: a former program that ran until here has its slow paths by these pins.
        remove_pins(aside)
        remove_abandoned(where.parent, instance_interfaces(where))

    @classmethod
    def open(cls, pin_dir: Path) -> DataPlane:
        """Open a pinned data plane: for the CLI, ``detach``, and later adoption.

        A daemon may be taking pins away meanwhile, or taking over: then it is looked at again.

        Raises NoInstance when it is not there, BpfError when it may not be opened.
        """
        for left in reversed(range(_LOOKS)):
            if not pin_dir.is_dir():
                break
            try:
                return cls._open(pin_dir)
            except BpfError as error:
                if error.errno != errno.ENOENT or not left:
                    raise
        raise NoInstance(f"{pin_dir}: no data plane is pinned there: sudo xdp-routerd attach IFACE")

    @classmethod
    def _open(cls, pin_dir: Path) -> DataPlane:
        plane = cls({}, {}, pin_dir)
        plane._identity = identity(pin_dir)
        try:
            for name in os.listdir(pin_dir):
                path = str(pin_dir / name)
                if name.startswith(PROG_PREFIX):
                    plane.programs[name.removeprefix(PROG_PREFIX)] = bpf.open_pinned(path)
                elif name == LOOKUP_PIN:
                    plane.lookup_link = bpf.open_pinned(path)
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
            if self.lookup_link >= 0:
                os.close(self.lookup_link)

    def _load(self, loader: Loader, sizes: Sizes, given: Mapping[str, int]) -> None:
        with contextlib.ExitStack() as undo:
            opened: dict[int, Program] = {}
            for family in (4, 6) if sizes.ipv6 else (4,):
                opened[family] = program = loader.open(family)
                undo.callback(program.close)
                check_declared(program.maps)
            self._make_maps([each.maps for each in opened.values()], sizes, given)
            stages = bpf.BpfMap(self.maps["stages"])
            for family, program in opened.items():
                self._load_family(program, family)
                for slot, name in stage_slots(family).items():
                    if name in self.programs:
                        stages.write(_u32(slot), _u32(self.programs[name]))

    def _make_maps(
        self,
        declared: Sequence[Mapping[str, DeclaredMap]],
        sizes: Sizes,
        given: Mapping[str, int],
    ) -> None:
        for spec in MAP_SPECS:
            wanted = spec.entries(sizes)
            if spec.name in given and not spec.private:
                unused = spec.entries(replace(sizes, ipv6=False)) != wanted
                if not unused or bpf.map_info(given[spec.name]).max_entries > 1:
                    self.maps[spec.name] = os.dup(given[spec.name])
                    continue
            value_size = spec.value_size
            if value_size is None:
                used = [maps[spec.name].value_size for maps in declared if spec.name in maps]
                if not used:
                    continue  # no program has a use for it
                value_size = max(used)  # they run one after the other
            inner = self.maps[spec.inner] if spec.inner else 0
            try:
                self.maps[spec.name] = bpf.map_create(
                    spec.type, spec.name, spec.key_size, value_size, wanted, spec.flags, inner
                )
            except BpfError as error:
                if error.errno in (errno.ENOMEM, errno.E2BIG):
                    raise map_memory.too_large(sizes, given, error) from error
                raise

    def _load_family(self, program: Program, family: int) -> None:
        loaded = program.load(self.maps)
        self.programs.update({program_name(name, family): fd for name, fd in loaded.items()})
        wanted = (ENTRY_PROGRAM, *STAGE_PROGRAMS)
        missing = [name for name in wanted if name not in loaded]
        if missing:
            raise ProgramMismatch(
                f"the compiled program has no {', '.join(missing)}: build it again (make build)"
            )

    def _pin(self, pin_dir: Path) -> None:
        aside = None
        try:
            pin_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_abandoned(pin_dir.parent, instance_interfaces(pin_dir))
            aside = self._pin_aside(pin_dir.parent, {})
            # rename(2) would replace an empty directory only, and ours are never empty.
            aside.rename(pin_dir)
        except OSError as cause:  # a BpfError, too
            if aside is not None:
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

    def _pin_aside(self, folder: Path, links: Mapping[str, int]) -> Path:
        """All pins in a directory of their own, to be moved into place."""
        aside = folder / f"{ASIDE}{os.getpid()}-{time.monotonic_ns()}"
        try:
            aside.mkdir(mode=0o700)
            for name, fd in self._pins():
                bpf.pin(fd, str(aside / name))
            for interface, fd in links.items():
                bpf.pin(fd, str(link_pin(aside, interface)))
        except BaseException:
            remove_pins(aside)
            raise
        self._identity = identity(aside)
        return aside

    def _pins(self) -> Iterator[tuple[str, int]]:
        yield from self.maps.items()
        for name, fd in self.programs.items():
            yield PROG_PREFIX + name, fd
        if self.lookup_link >= 0:
            yield LOOKUP_PIN, self.lookup_link

    def hold_lookup(self, link: int) -> None:
        """Keep a link to the network namespace, and pin it beside all else. Raises BpfError: it
        is the caller's still then."""
        self.drop_lookup()
        if self.pin_dir is not None:
            bpf.pin(link, str(self.pin_dir / LOOKUP_PIN))
        self.lookup_link = link

    def drop_lookup(self) -> None:
        """Let go of that link, and its pin: the kernel detaches it. Nothing if there is none."""
        if self.lookup_link < 0:
            return
        if self.pin_dir is not None and self.owns_pins():
            (self.pin_dir / LOOKUP_PIN).unlink(missing_ok=True)
        os.close(self.lookup_link)
        self.lookup_link = -1


def daemon_alive(pin_dir: Path) -> bool:
    """Whether the daemon of a pinned data plane gave a sign of life within the last second.

    Without the pin of its heartbeat it has none: a shutdown was cut short. Raises BpfError when
    the heartbeat cannot be read.
    """
    beat_ns = _heartbeat_ns(pin_dir)
    return bool(beat_ns) and time.monotonic_ns() - beat_ns < _ALIVE_NS


def daemon_stays(pin_dir: Path) -> bool:
    """The same, by whether the next sign of life comes: waits for it for a second at most."""
    beat_ns = _heartbeat_ns(pin_dir)
    while beat_ns and time.monotonic_ns() - beat_ns < _ALIVE_NS:
        time.sleep(_LOOK_S)
        if _heartbeat_ns(pin_dir) > beat_ns:
            return True
    return False


def _heartbeat_ns(pin_dir: Path) -> int:
    if not (pin_dir / CONTROL_PIN).exists():
        return 0
    fd = bpf.open_pinned(str(pin_dir / CONTROL_PIN))
    try:
        raw = bpf.BpfMap(fd).read(_u32(0))
    finally:
        os.close(fd)
    return abi.unpack_control(raw).heartbeat_ns if raw else 0


def require_free(root: Path, interfaces: Sequence[str]) -> None:
    """Raise InstanceExists if one of the interfaces has a data plane that is pinned under ``root``.

    The message says whether its daemon lives, and what to do.
    """
    for interface in interfaces:
        taken = instance_of(root, interface)
        if taken is not None:
            raise occupied(interface, taken, alive=daemon_alive(taken.path))


def occupied(interface: str, taken: InstanceRef, *, alive: bool) -> InstanceExists:
    """The refusal: an interface has a data plane already."""
    names = " ".join(taken.interfaces)
    if alive:
        state, mend = "a running daemon", "stop that daemon first"
    else:
        state = "a daemon that is gone"
        mend = (
            f"attach {names}, all of them and no other, to take it over, or {taken.detach}, "
            "which ends its connections"
        )
    return InstanceExists(f"{interface} already has a data plane of {state} ({taken.path}): {mend}")


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)
