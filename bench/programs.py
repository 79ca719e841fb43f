# SPDX-License-Identifier: Apache-2.0
"""Compiles and loads the benchmark's own programs, and runs programs many times."""

from __future__ import annotations

import ctypes as ct
import os
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xdp_router import ebpf
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.map_specs import DeclaredMap

_SOURCES = Path(__file__).parent / "ebpf"
U32 = 4


def compile_program(name: str, directory: Path, family: int = 4) -> bytes:
    """Compile ``bench/ebpf/NAME.bpf.c`` as the router's own program of a family is compiled."""
    output = directory / f"{name}{'' if family == 4 else family}.bpf.o"
    if not output.exists():
        multiarch = sysconfig.get_config_var("MULTIARCH")
        subprocess.run(
            [
                *("clang", "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror"),
                *(
                    f"-DXR_FAMILY={family}",
                    "-fno-stack-protector",
                    f"-I{ebpf.FOLDER}",
                    f"-I/usr/include/{multiarch}",
                ),
                *("-c", str(_SOURCES / f"{name}.bpf.c"), "-o", str(output)),
            ],
            check=True,
            timeout=60,
        )
    return output.read_bytes()


@dataclass(slots=True)
class Programs:
    """Loaded programs by name, and all maps that they use. ``close`` closes what is ours."""

    programs: dict[str, int]
    maps: dict[str, int]
    own: list[int]

    def close(self) -> None:
        """Close the programs and the maps that were made for them."""
        for fd in (*self.programs.values(), *self.own):
            os.close(fd)
        self.programs.clear()
        self.own.clear()


def load(
    name: str,
    directory: Path,
    maps: Mapping[str, int] | None = None,
    entries: Mapping[str, int] | None = None,
    family: int = 4,
) -> Programs:
    """Load a program file. ``maps`` are used where names agree; the others are made.

    ``entries``: sizes other than those in the source.
    """
    opened = ObjectLoader(compile_program(name, directory, family)).open()
    fds = dict(maps or {})
    own = []
    for each in opened.maps.values():
        if each.name not in fds:
            fds[each.name] = _make(each, (entries or {}).get(each.name, 1))
            own.append(fds[each.name])
    try:
        return Programs(opened.load(fds), fds, own)
    finally:
        opened.close()


def _make(declared: DeclaredMap, entries: int) -> int:
    return bpf.map_create(
        declared.type, declared.name, declared.key_size, declared.value_size, entries
    )


class Runner:
    """Runs one program on one frame, many times in a system call."""

    def __init__(self, prog_fd: int, frame: bytes) -> None:
        self._frame = ct.create_string_buffer(frame, len(frame))
        self._run = bpf.TestRun(prog_fd, self._frame)

    def run(self, repeat: int) -> tuple[int, int]:
        """The last run's verdict, and nanoseconds a run as the kernel counts them.

        The kernel copies the frame once a call, not once a run.
        """
        self._run.opts.repeat = repeat
        self._run.opts.data_size_out = 0  # the last run's, which this one's may exceed
        code = self._run.run()
        if code:
            raise BpfError(code, f"run a program {repeat} times")
        return self._run.opts.retval, self._run.opts.duration


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Keep the calling thread on one CPU (the last one there is, if there are fewer)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[min(cpu, len(before) - 1)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
