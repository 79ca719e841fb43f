# SPDX-License-Identifier: Apache-2.0
"""BPF programs of a few instructions, written as such and loaded without a compiler or libbpf.

    code = Code()
    code.load(4, R2, R1, 0)                  # r2 = *(u32 *)(r1 + 0)
    code.jump("!=", R2, 7, "out")
    ...
    code.label("out")
    code.end(2)

Only forward jumps, so every program ends.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import struct

from . import libc
from .errors import LabError

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)

_BPF_PROG_LOAD = 5
_LOG_BYTES = 1 << 16
_SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_JUMPS = {"==": 0x10, ">": 0x20, "!=": 0x50}


class ProgramType(enum.Enum):
    """(``prog_type``, ``expected_attach_type``) of the kernel."""

    CLS = (3, 0)
    XDP = (6, 37)


class Code:
    """A program being written."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def _add(
        self, opcode: int, target: int = 0, source: int = 0, offset: int = 0, imm: int = 0
    ) -> None:
        self._instructions.append((opcode, target, source, offset, imm))

    def set(self, register: int, value: int) -> None:
        """register = value, sign-extended from 32 bits."""
        self._add(0xB7, register, imm=value)

    def copy(self, register: int, source: int) -> None:
        """register = source."""
        self._add(0xBF, register, source)

    def add(self, register: int, value: int) -> None:
        """register += value."""
        self._add(0x07, register, imm=value)

    def mask(self, register: int, value: int) -> None:
        """register &= value, of 32 bits; the upper half becomes 0."""
        self._add(0x54, register, imm=value)

    def load(self, size: int, register: int, base: int, offset: int) -> None:
        """register = the ``size`` bytes at base + offset, in the machine's order."""
        self._add(0x61 | _SIZES[size], register, base, offset)

    def store(self, size: int, base: int, offset: int, register: int) -> None:
        """The ``size`` bytes at base + offset = register."""
        self._add(0x63 | _SIZES[size], base, register, offset)

    def jump(self, relation: str, register: int, value: int, label: str) -> None:
        """If the lower 32 bits of the register compare so with the value, go to the label."""
        self._jumps.append((len(self._instructions), label))
        self._add(0x06 | _JUMPS[relation], register, imm=value)

    def jump_beyond(self, register: int, limit: int, label: str) -> None:
        """If one pointer is beyond another, go to the label."""
        self._jumps.append((len(self._instructions), label))
        self._add(0x2D, register, limit)

    def go(self, label: str) -> None:
        """Go to the label."""
        self._jumps.append((len(self._instructions), label))
        self._add(0x05)

    def label(self, name: str) -> None:
        """The next instruction is where jumps to ``name`` lead."""
        self._labels[name] = len(self._instructions)

    def call(self, helper: int) -> None:
        """r0 = the kernel's helper of that number, of r1 to r5."""
        self._add(0x85, imm=helper)

    def end(self, result: int) -> None:
        """Return the result."""
        self.set(R0, result)
        self.leave()

    def leave(self) -> None:
        """Return r0."""
        self._add(0x95)

    def assembled(self) -> bytes:
        """The instructions as the kernel takes them."""
        instructions = list(self._instructions)
        for place, label in self._jumps:
            opcode, target, source, _, imm = instructions[place]
            instructions[place] = (opcode, target, source, self._labels[label] - place - 1, imm)
        return b"".join(
            struct.pack("<BBhI", opcode, source << 4 | target, offset, imm & 0xFFFFFFFF)
            for opcode, target, source, offset, imm in instructions
        )

    def install(self, name: str, kind: ProgramType) -> int:
        """Load the program; the caller closes the fd.

        Raises LabError with the verifier's words if it is refused, OSError without privileges.
        """
        code = self.assembled()
        try:
            return _load(name, kind, code, None)
        except OSError as error:
            if error.errno == errno.EPERM:  # no privileges; the verifier says EACCES or EINVAL
                raise
            log = ctypes.create_string_buffer(_LOG_BYTES)
            try:
                return _load(name, kind, code, log)
            except OSError:
                words = log.value.decode(errors="replace").strip()
            raise LabError(f"the kernel refuses program {name} ({error}): {words}") from error


def _load(
    name: str, kind: ProgramType, code: bytes, log: ctypes.Array[ctypes.c_char] | None
) -> int:
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    program_type, attach_type = kind.value
    attributes = struct.pack(
        "<IIQQIIQII16sII",
        program_type,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(licence),
        1 if log is not None else 0,
        len(log) if log is not None else 0,
        ctypes.addressof(log) if log is not None else 0,
        0,  # kern_version
        0,  # prog_flags
        name.encode()[:15],
        0,  # prog_ifindex
        attach_type,
    )
    return libc.bpf(_BPF_PROG_LOAD, ctypes.create_string_buffer(attributes, len(attributes)))
