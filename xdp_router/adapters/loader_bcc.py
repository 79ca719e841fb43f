# SPDX-License-Identifier: Apache-2.0
"""Compiles the C sources with bcc at start; from the instructions on, loading is ours."""

from __future__ import annotations

import atexit
import contextlib
import ctypes as ct
import os
import posixpath
import re
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xdp_router import ebpf
from xdp_router.core.errors import XdpRouterError

from .bpf_ctypes import UnsupportedHost
from .bpf_syscall import LOOKUP_PROGRAM, XDP_PROGRAM, ProgKind, map_info, prog_load
from .map_specs import DeclaredMap

_LICENCE = "Dual BSD/GPL"
_LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
_BPF_LD_IMM64 = 0x18
_BPF_PSEUDO_MAP_FD = 1


class CompileError(XdpRouterError):
    """bcc could not compile the program. ``log`` is the compiler's output."""

    def __init__(self, log: str) -> None:
        self.log = log
        errors = [line for line in log.splitlines() if " error: " in line] or log.splitlines()
        super().__init__("bcc cannot compile the program: " + (" | ".join(errors[:3]) or "no log"))


def inline_headers(sources: Mapping[str, str], main: str) -> str:
    """One text of ``main`` and, each once, the headers that it includes by ``"..."``.

    ``sources`` maps paths to texts. bcc rewrites map calls in the main text only. ``#line``
    keeps the compiler's messages pointing at the real files. Raises CompileError when an
    included file is not among the sources.
    """
    done: set[str] = set()

    def expand(path: str) -> str:
        done.add(path)
        text, folder = sources[path], posixpath.dirname(path)

        def include(match: re.Match[str]) -> str:
            target = posixpath.normpath(posixpath.join(folder, match[1]))
            if target not in sources:
                raise CompileError(f"{path}: error: no such header: {match[1]}")
            line = text.count("\n", 0, match.start()) + 2
            body = "" if target in done else expand(target)
            return f'{body}\n#line {line} "{path}"'

        return f'#line 1 "{path}"\n' + _LOCAL_INCLUDE.sub(include, text)

    return expand(main)


def replace_map_fds(instructions: bytes, fds: Mapping[int, int]) -> bytes:
    """Put other map fds into a program. ``fds`` maps each old fd to the new one.

    A map is referred to by a 64-bit immediate load whose source register is
    BPF_PSEUDO_MAP_FD. Raises KeyError on an fd that is not in ``fds``.
    """
    code = bytearray(instructions)
    for offset in range(0, len(code), 8):  # a load's second half has opcode 0
        opcode, registers = code[offset], code[offset + 1]
        if opcode == _BPF_LD_IMM64 and registers >> 4 == _BPF_PSEUDO_MAP_FD:
            (old,) = struct.unpack_from("=i", code, offset + 4)
            struct.pack_into("=i", code, offset + 4, fds[old])
    return bytes(code)


class BccProgram:
    """The sources, compiled but not yet loaded. bcc's own maps exist until ``close``."""

    def __init__(
        self, text: str, include: Path, family: int = 4, kind: ProgKind = XDP_PROGRAM
    ) -> None:
        """Compile programs of a kind. Raises UnsupportedHost without bcc or uapi headers, or
        CompileError."""
        self._kind = kind
        if not Path("/usr/include/linux/if_ether.h").exists():
            raise UnsupportedHost(
                "--loader bcc needs the kernel's uapi headers in /usr/include/linux: install "
                "linux-libc-dev (Debian, Ubuntu) or kernel-headers (Fedora)"
            )
        self._library, bpf_class = _import_bcc()
        # bcc optimizes by itself afterwards; its debug information is not used. Saves 0.4 s.
        flags = ["-DXR_LOADER_BCC", "-g0", "-Xclang", "-disable-llvm-passes", "-I/usr/include"]
        flags.append(f"-DXR_FAMILY={family}")
        multiarch = sysconfig.get_config_var("MULTIARCH")
        if multiarch:
            flags.append(f"-I/usr/include/{multiarch}")
        with _captured_stderr() as log, _environment("BCC_KERNEL_SOURCE", str(include)):
            try:
                self._bpf = bpf_class(text=text.encode(), cflags=flags)
            except Exception as cause:  # bcc raises nothing more specific
                raise CompileError(_read_back(log)) from cause
        module = self._bpf.module
        names = [
            self._library.bpf_table_name(module, i).decode()
            for i in range(self._library.bpf_num_tables(module))
        ]
        self._fds = {name: self._library.bpf_table_fd(module, name.encode()) for name in names}

    @property
    def maps(self) -> dict[str, DeclaredMap]:
        """The maps that the program declares."""
        declared = {}
        for name, fd in self._fds.items():
            info = map_info(fd)
            declared[name] = DeclaredMap(name, info.type, info.key_size, info.value_size)
        return declared

    def load(self, map_fds: Mapping[str, int]) -> dict[str, int]:
        """Load every program with the given maps in place of bcc's.

        Returns program fds by function name; the caller closes them. Raises VerifierError.
        """
        module = self._bpf.module
        fds = {fd: map_fds[name] for name, fd in self._fds.items()}
        loaded: dict[str, int] = {}
        try:
            for i in range(self._library.bpf_num_functions(module)):
                name = self._library.bpf_function_name(module, i).decode()
                code = replace_map_fds(self._bpf.dump_func(name.encode()), fds)
                loaded[name] = prog_load(name, code, _LICENCE, self._kind)
        except Exception:
            for fd in loaded.values():
                os.close(fd)
            raise
        return loaded

    def close(self) -> None:
        """Free the compiled module and bcc's own maps."""
        atexit.unregister(self._bpf.cleanup)
        self._bpf.cleanup()


class BccLoader:
    """``--loader bcc``: compiled on this host from the packaged sources."""

    name = "bcc"

    def __init__(self, sources: Mapping[str, str], main: str, include: Path) -> None:
        """``include``: the directory that stands in for a kernel tree (``ebpf/bcc_include``)."""
        self._sources = sources
        self._main = main
        self._include = include

    def open(self, family: int = 4) -> BccProgram:
        """Compile the sources for an address family."""
        return BccProgram(inline_headers(self._sources, self._main), self._include, family)

    def open_lookup(self) -> BccProgram:
        """Compile what leads connections to the gateway's sockets."""
        text = inline_headers(self._sources, ebpf.LOOKUP_SOURCE)
        return BccProgram(text, self._include, kind=LOOKUP_PROGRAM)


def bcc_available() -> bool:
    """Whether bcc can be imported here; imports nothing of it."""
    import importlib.util

    return importlib.util.find_spec("bcc") is not None


def _import_bcc() -> tuple[Any, Any]:
    try:
        from bcc import BPF, lib
    except (ImportError, OSError) as cause:
        raise UnsupportedHost(
            "--loader bcc needs the distribution's bcc for this Python "
            f"({sys.executable}): install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora) "
            "and use a virtual environment made with --system-site-packages; "
            "the PyPI package called bcc is something else"
        ) from cause
    # bcc declares the other functions itself; without this, pointers would be cut to 32 bits.
    lib.bpf_num_tables.argtypes, lib.bpf_num_tables.restype = (ct.c_void_p,), ct.c_size_t
    lib.bpf_table_name.argtypes = (ct.c_void_p, ct.c_size_t)
    lib.bpf_table_name.restype = ct.c_char_p
    return lib, BPF


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    old = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if old is None:
            del os.environ[name]
        else:
            os.environ[name] = old


@contextlib.contextmanager
def _captured_stderr() -> Iterator[int]:
    """The compiler writes to fd 2 itself: collect it in a file, whose fd is given."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file.fileno()
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _read_back(fd: int) -> str:
    return os.pread(fd, 1 << 20, 0).decode(errors="replace")
