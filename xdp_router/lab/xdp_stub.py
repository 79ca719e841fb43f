# SPDX-License-Identifier: Apache-2.0
"""XDP programs of a few instructions, loaded without a compiler or libbpf.

An XDP program on a veth end starts NAPI there. That makes the end take redirected frames without
GRO, which a user-space delay line can't have: AF_PACKET can't send merged frames on.
"""

from __future__ import annotations

import ctypes
import struct

from . import libc

XDP_DROP = 1
XDP_PASS = 2

_BPF_PROG_LOAD = 5
_BPF_PROG_TYPE_XDP = 6
_BPF_XDP = 37
_HELPER_REDIRECT = 23


def _instruction(opcode: int, register: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhi", opcode, register, 0, immediate)


_EXIT = _instruction(0x95)


def _move(register: int, immediate: int) -> bytes:
    return _instruction(0xB7, register, immediate)


def _load(name: str, code: bytes) -> int:
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    attributes = struct.pack(
        "<IIQQIIQII16sII",
        _BPF_PROG_TYPE_XDP,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(licence),
        0,  # log_level
        0,  # log_size
        0,  # log_buf
        0,  # kern_version
        0,  # prog_flags
        name.encode()[:15],
        0,  # prog_ifindex
        _BPF_XDP,
    )
    return libc.bpf(_BPF_PROG_LOAD, ctypes.create_string_buffer(attributes, len(attributes)))


def load_constant(action: int) -> int:
    """Load a program that answers every frame with ``action``; the caller closes the fd."""
    return _load("xr_lab_const", _move(0, action) + _EXIT)


def load_redirect(ifindex: int) -> int:
    """Load a program that redirects every frame to ``ifindex``; the caller closes the fd."""
    call = _instruction(0x85, 0, _HELPER_REDIRECT)
    return _load("xr_lab_redir", _move(1, ifindex) + _move(2, 0) + call + _EXIT)
