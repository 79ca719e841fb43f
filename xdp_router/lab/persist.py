# SPDX-License-Identifier: Apache-2.0
"""Labs that outlive the process which built them: ``xdp-router lab up`` and ``down``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from . import libc, processes
from .errors import LabError
from .guests import Guest, guests, wait_for_loss
from .lab import DEFAULT_PREFIX, Lab
from .namespace import remove_name
from .spawn_guard import lock_within, no_births
from .spec import LabSpec
from .state import LabState

DEFAULT_DIRECTORY = Path("/run/xdp-router/lab")
DEFAULT_NETNS_DIR = Path("/run/netns")

_PARTS = r"(client|router|segment|be\d+|delay\d+)"
# What a killed builder was just starting holds its locks a moment longer.
_PATIENCE_S = 2.0
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Removed:
    """What ``down`` found and removed; ``guests`` were in it, and are not the lab's."""

    processes: int
    mounts: int
    namespaces: tuple[str, ...]
    guests: tuple[Guest, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there was no trace of a lab."""
        return not (self.processes or self.mounts or self.namespaces)


def up(
    spec: LabSpec,
    *,
    directory: Path = DEFAULT_DIRECTORY,
    prefix: str = DEFAULT_PREFIX,
    netns_dir: Path = DEFAULT_NETNS_DIR,
) -> Lab:
    """Build a lab that stays, with a bpffs of its own at ``directory``/bpf.

    The returned lab's ``close`` only lets go of it. Spawn further processes (the daemon) with its
    ``router.spawn``: they are recorded, and ``down`` ends them.
    Raises LabError if a lab is up already, or a part of one; nothing is left of a failed attempt.
    """
    with _locked(directory) as held:
        if LabState.load(held) is not None:
            raise LabError(
                f"a lab is up already in {held}: use it, or run 'xdp-router lab down' first"
            )
        state = LabState(held, prefix, netns_dir, spec)
        state.save()
        lab = Lab(spec, prefix=prefix, state=state)
        try:
            state.bpffs.mkdir()
            libc.mount("bpf", str(state.bpffs), "bpf")
            lab.build()
            state.complete = True
            state.save()
        except BaseException:
            lab.close()
            _remove(held, prefix, netns_dir)
            raise
        return lab


def open_lab(directory: Path = DEFAULT_DIRECTORY) -> Lab:
    """The lab that is up. Raises LabError if there is none, or only a part of one."""
    directory = directory.resolve()
    state = LabState.load(directory)
    if state is None:
        raise LabError(f"no lab is up in {directory}: run 'xdp-router lab up' first")
    if not state.complete:
        raise LabError(
            f"the lab in {directory} was not finished: run 'xdp-router lab down', then 'lab up'"
        )
    lab = Lab(state.spec, prefix=state.prefix, state=state)
    lab.adopt()
    return lab


def down(
    *,
    directory: Path = DEFAULT_DIRECTORY,
    prefix: str = DEFAULT_PREFIX,
    netns_dir: Path = DEFAULT_NETNS_DIR,
) -> Removed:
    """Remove a lab, a part of one, or none: it can always be called again.

    ``prefix`` and ``netns_dir`` matter only if the state file is lost.
    Raises LabError while another up or down is at work.
    """
    if not directory.exists():
        found = guests(_paths(prefix, netns_dir), directory, ())
        return Removed(0, 0, _remove_names(prefix, netns_dir), tuple(found))
    with _locked(directory, _PATIENCE_S) as held:
        return _remove(held, prefix, netns_dir)


def _remove(directory: Path, prefix: str, netns_dir: Path) -> Removed:
    with no_births(directory, _PATIENCE_S):
        recorded: list[processes.Process] = []
        with contextlib.suppress(LabError):  # an unreadable state: go by mark and prefix
            state = LabState.load(directory)
            if state is not None:
                recorded, prefix, netns_dir = state.processes, state.prefix, state.netns_dir
        ours = {each.pid for each in (*recorded, *processes.marked(directory)) if each.alive}
        found = guests(_paths(prefix, netns_dir), directory, ours)
        removed = _remove_all(directory, prefix, netns_dir, processes.end(recorded))
    wait_for_loss(found)
    return replace(removed, guests=tuple(found))


def _remove_all(directory: Path, prefix: str, netns_dir: Path, ended: int) -> Removed:
    for _ in range(_ROUNDS):  # processes of the lab may have started others meanwhile
        found = processes.marked(directory)
        if not found:
            break
        ended += processes.end(found)
    mounts = 0
    with contextlib.suppress(OSError):  # EINVAL, ENOENT: nothing (more) is mounted
        while True:
            libc.umount(str(directory / "bpf"))
            mounts += 1
    names = _remove_names(prefix, netns_dir)
    shutil.rmtree(directory)
    return Removed(ended, mounts, names)


def _paths(prefix: str, netns_dir: Path) -> list[Path]:
    """The names of the lab's namespaces."""
    pattern = re.compile(re.escape(f"{prefix}-") + _PARTS)
    found = sorted(netns_dir.iterdir()) if netns_dir.is_dir() else []
    return [path for path in found if pattern.fullmatch(path.name)]


def _remove_names(prefix: str, netns_dir: Path) -> tuple[str, ...]:
    paths = _paths(prefix, netns_dir)
    for path in paths:
        remove_name(path)
    return tuple(path.name for path in paths)


@contextlib.contextmanager
def _locked(directory: Path, patience_s: float = 0.0) -> Iterator[Path]:
    """Hold the directory, made if need be, against other ups and downs."""
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _lock(fd, directory, patience_s):
            raise LabError(f"another 'lab up' or 'lab down' is at work in {directory}: try again")
        yield directory
    finally:
        os.close(fd)


def _lock(fd: int, directory: Path, patience_s: float) -> bool:
    try:
        # A down that held the lock before us may have removed the directory meanwhile.
        return lock_within(fd, patience_s) and os.path.samestat(os.fstat(fd), os.stat(directory))
    except FileNotFoundError:
        return False
