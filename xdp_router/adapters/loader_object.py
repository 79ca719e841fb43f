# SPDX-License-Identifier: Apache-2.0
"""Loads the compiled BPF object with libbpf; its maps are replaced by ours."""

from __future__ import annotations

import ctypes as ct
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from xdp_router import ebpf

from .bpf_ctypes import BpfError, UnsupportedHost, VerifierError, hint, libbpf
from .bpf_syscall import VerifierLog
from .map_specs import DeclaredMap
from .side_by_side import load_side_by_side

_PTR, _FD, _SIZE = ct.c_void_p, ct.c_int, ct.c_size_t
_SIGNATURES: dict[str, tuple[type, tuple[type, ...]]] = {
    "bpf_object__open_mem": (_PTR, (ct.c_char_p, _SIZE, _PTR)),
    "bpf_object__load": (ct.c_int, (_PTR,)),
    "bpf_object__close": (ct.c_int, (_PTR,)),  # void; the value is not looked at
    "bpf_object__next_map": (_PTR, (_PTR, _PTR)),
    "bpf_object__next_program": (_PTR, (_PTR, _PTR)),
    "bpf_map__name": (ct.c_char_p, (_PTR,)),
    "bpf_map__type": (ct.c_int, (_PTR,)),
    "bpf_map__key_size": (ct.c_uint32, (_PTR,)),
    "bpf_map__value_size": (ct.c_uint32, (_PTR,)),
    "bpf_map__max_entries": (ct.c_uint32, (_PTR,)),
    "bpf_map__reuse_fd": (ct.c_int, (_PTR, _FD)),
    "bpf_program__name": (ct.c_char_p, (_PTR,)),
    "bpf_program__fd": (ct.c_int, (_PTR,)),
    "bpf_program__insn_cnt": (_SIZE, (_PTR,)),
    "bpf_program__set_autoload": (ct.c_int, (_PTR, ct.c_bool)),
    "bpf_program__set_log_buf": (ct.c_int, (_PTR, _PTR, _SIZE)),
}


def _bind() -> ct.CDLL:
    library = libbpf()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class ObjectProgram:
    """A compiled object, opened but not yet loaded."""

    def __init__(self, data: bytes) -> None:
        """Parse ``data``. Raises BpfError when it is not a BPF object."""
        self._bpf = _bind()
        self._data = data
        self._object = self._bpf.bpf_object__open_mem(data, len(data), None)
        if not self._object:
            raise BpfError(errno.EINVAL, "read the BPF object", "build it again (make build)")

    @property
    def maps(self) -> dict[str, DeclaredMap]:
        """The maps that the object declares."""
        bpf = self._bpf
        declared = {}
        for handle in self._each("map"):
            name = bpf.bpf_map__name(handle).decode()
            declared[name] = DeclaredMap(
                name,
                bpf.bpf_map__type(handle),
                bpf.bpf_map__key_size(handle),
                bpf.bpf_map__value_size(handle),
                bpf.bpf_map__max_entries(handle),
            )
        return declared

    def load(self, map_fds: Mapping[str, int]) -> dict[str, int]:
        """Load every program with the given maps in place of the object's own.

        Returns program fds by function name; the caller closes them. Raises VerifierError.
        """
        bpf = self._bpf
        sizes = {
            bpf.bpf_program__name(handle).decode(): bpf.bpf_program__insn_cnt(handle)
            for handle in self._each("program")
        }
        names = sorted(sizes, key=lambda name: -sizes[name])
        return load_side_by_side(names, lambda name: _load_alone(self._data, name, map_fds))

    def _load_one(self, name: str, map_fds: Mapping[str, int]) -> int:
        """Load one of the programs; ``close`` does not take it away."""
        bpf = self._bpf
        for handle in self._each("map"):
            map_name = bpf.bpf_map__name(handle).decode()
            result = bpf.bpf_map__reuse_fd(handle, map_fds[map_name])
            if result < 0:
                raise BpfError(-result, f"use map {map_name}")
        log = VerifierLog()
        program = 0
        for handle in self._each("program"):
            wanted = bpf.bpf_program__name(handle).decode() == name
            bpf.bpf_program__set_autoload(handle, wanted)
            program = handle if wanted else program
        bpf.bpf_program__set_log_buf(program, log.address, log.size)
        result = bpf.bpf_object__load(self._object)
        if result < 0:
            if text := log.text():
                raise VerifierError(-result, f"load program {name}", text)
            raise BpfError(-result, f"load program {name}", hint(-result))
        return os.dup(bpf.bpf_program__fd(program))

    def close(self) -> None:
        """Free the object. The program fds that ``load`` returned stay open."""
        if self._object:
            self._bpf.bpf_object__close(self._object)
            self._object = None

    def _each(self, kind: str) -> Iterator[int]:
        following = getattr(self._bpf, f"bpf_object__next_{kind}")
        handle = following(self._object, None)
        while handle:
            yield handle
            handle = following(self._object, handle)


def _load_alone(data: bytes, name: str, map_fds: Mapping[str, int]) -> int:
    """Load one program of an object that is opened for it alone: it costs less than 1 ms."""
    program = ObjectProgram(data)
    try:
        return program._load_one(name, map_fds)
    finally:
        program.close()


class ObjectLoader:
    """``--loader object``: the object that was built with the package."""

    name = "object"

    def __init__(self, data: bytes, data6: bytes = b"", lookup: Path = ebpf.LOOKUP_PATH) -> None:
        """``data6``: the object of IPv6; ``lookup``: where that of ``open_lookup`` is."""
        self._objects = {4: data, 6: data6}
        self._lookup = lookup

    def open(self, family: int = 4) -> ObjectProgram:
        """Parse the object of an address family."""
        return ObjectProgram(self._objects[family])

    def open_lookup(self) -> ObjectProgram:
        """Parse the object that leads connections to the gateway's sockets."""
        try:
            return ObjectProgram(self._lookup.read_bytes())
        except OSError as cause:
            if isinstance(cause, BpfError):
                raise
            raise UnsupportedHost(
                f'{self._lookup}: the compiled program for services with handler = "gateway" '
                f"cannot be read: {cause.strerror}: run 'make build', or choose --loader bcc"
            ) from cause
