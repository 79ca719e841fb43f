# SPDX-License-Identifier: Apache-2.0
"""The real program by either loader, and small programs compiled for one test."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.privileges import require_program
from xdp_router import ebpf
from xdp_router.adapters.bpf_syscall import prog_load
from xdp_router.adapters.dataplane import Program
from xdp_router.adapters.loader_bcc import BccLoader
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.map_specs import ENTRY_PROGRAM, STAGE_PROGRAMS, Sizes

LOADERS = ("object", "bcc")

SMALL = Sizes(max_flows=1000, pending=1024, ring_bytes=64 << 10)
"""Sizes that cost no time."""

# r0 = verdict; exit
_VERDICT = "b7000000{:02x}0000009500000000000000"


def real_loader(name: str) -> BccOnce | ObjectLoader:
    """The loader of that name for the program as built in this tree.

    What bcc has compiled is kept as long as the process: only loading it is done again.
    """
    if name == "bcc":
        return _ONCE
    return ObjectLoader(ebpf.object_bytes(4), ebpf.object_bytes(6))


class _Kept:
    """A compiled program that others go on to use after a ``close``."""

    def __init__(self, real: Program) -> None:
        self.maps = real.maps
        self.load = real.load

    def close(self) -> None:
        """Not yet."""


class BccOnce:
    """bcc's loader, which takes seconds to compile the same text."""

    name = "bcc"

    def __init__(self) -> None:
        self._compiled: dict[int | str, _Kept] = {}

    def open(self, family: int = 4) -> Program:
        """Compiled when it is first asked for."""
        return self._kept(family, lambda: self._loader().open(family))

    def open_lookup(self) -> Program:
        """Likewise."""
        return self._kept("lookup", lambda: self._loader().open_lookup())

    def _kept(self, which: int | str, compiled: Callable[[], Program]) -> Program:
        if which not in self._compiled:
            self._compiled[which] = _Kept(compiled())
        return self._compiled[which]

    @staticmethod
    def _loader() -> BccLoader:
        return BccLoader(ebpf.source_files(), ebpf.MAIN_SOURCE, ebpf.BCC_INCLUDE)


_ONCE = BccOnce()


class _Idle:
    """An opened object whose programs are not loaded: others of their names stand for them."""

    def __init__(self, real: Program) -> None:
        self.maps = real.maps
        self.close = real.close

    def load(self, map_fds: Mapping[str, int]) -> dict[str, int]:
        """Programs that pass everything; no map is used."""
        return {name: trivial_program(name) for name in (ENTRY_PROGRAM, *STAGE_PROGRAMS)}


class IdleLoader:
    """For tests of maps, pins and attachments through which no packet goes: the kernel takes a
    second to verify the real program, and these no time."""

    name = "object"

    def open(self, family: int = 4) -> _Idle:
        """The real object's maps, and idle programs."""
        return _Idle(real_loader("object").open(family))


def trivial_program(name: str, verdict: int = 2) -> int:
    """The fd of a loaded program that only returns a verdict (XDP_PASS)."""
    return prog_load(name, bytes.fromhex(_VERDICT.format(verdict)), "GPL")


def compile_object(source: str, directory: Path) -> bytes:
    """Compile C, which may include ``lib/maps.h``, to a BPF object."""
    clang = require_program("clang", "clang")
    multiarch = sysconfig.get_config_var("MULTIARCH")
    output = directory / "test.bpf.o"
    subprocess.run(
        [
            *(clang, "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror"),
            *(f"-I{ebpf.FOLDER}", f"-I/usr/include/{multiarch}"),
            *("-x", "c", "-", "-c", "-o", str(output)),
        ],
        input=source.encode(),
        check=True,
        timeout=60,
    )
    return output.read_bytes()
