# SPDX-License-Identifier: Apache-2.0
"""A tunnel's end as an XDP program: it takes an outer IPv4 or IPv6 header off.

As an ``ipip`` and an ``ip6tnl`` device would, also on kernels that have neither: what is inside is
IPv4 or IPv6, the outer destination is one of the own addresses, the outer header has no options
and is no fragment. Everything else reaches the kernel as it came.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

from .bpf_code import R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Code, ProgramType

_XDP_DROP = 1
_XDP_PASS = 2
_ADJUST_HEAD = 44
_ETH = 14
_IPV4 = socket.htons(0x0800)
_IPV6 = socket.htons(0x86DD)


def load(own4: str, own6: str) -> int:
    """Load the program for a host with these addresses; the caller closes the fd."""
    code = Code()
    code.copy(R6, R1)
    _outer(code, own4, own6)
    _strip(code)
    code.label("pass")
    code.end(_XDP_PASS)
    code.label("drop")
    code.end(_XDP_DROP)
    return code.install("xr_lab_decap", ProgramType.XDP)


def _frame(code: Code, length: int, otherwise: str) -> None:
    """r2 = the frame, of which ``length`` bytes are there, else go on ``otherwise``."""
    code.load(4, R2, R6, 0)
    code.load(4, R3, R6, 4)
    code.copy(R4, R2)
    code.add(R4, length)
    code.jump_beyond(R4, R3, otherwise)


def _outer(code: Code, own4: str, own6: str) -> None:
    """r7 = length of the outer header, r8 = Ethernet type of what is inside."""
    _frame(code, _ETH + 20, "pass")
    code.load(2, R5, R2, 12)
    code.jump("==", R5, _IPV6, "outer6")
    code.jump("!=", R5, _IPV4, "pass")
    code.load(1, R5, R2, _ETH)
    code.jump("!=", R5, 0x45, "pass")
    code.load(2, R5, R2, _ETH + 6)
    code.mask(R5, socket.htons(0x3FFF))  # more fragments, or an offset
    code.jump("!=", R5, 0, "pass")
    _destination(code, own4, _ETH + 16)
    code.load(1, R5, R2, _ETH + 9)
    code.set(R7, 20)
    code.go("inner")
    code.label("outer6")
    _frame(code, _ETH + 40, "pass")
    _destination(code, own6, _ETH + 24)
    code.load(1, R5, R2, _ETH + 6)
    code.set(R7, 40)
    code.label("inner")
    code.set(R8, _IPV4)
    code.jump("==", R5, socket.IPPROTO_IPIP, "strip")
    code.set(R8, _IPV6)
    code.jump("!=", R5, socket.IPPROTO_IPV6, "pass")
    code.label("strip")


def _destination(code: Code, address: str, at: int) -> None:
    packed = ipaddress.ip_address(address).packed
    for offset in range(0, len(packed), 4):
        code.load(4, R5, R2, at + offset)
        code.jump("!=", R5, struct.unpack_from("=I", packed, offset)[0], "pass")


def _strip(code: Code) -> None:
    code.load(4, R5, R2, 0)  # the MACs, over the call: on the stack
    code.store(4, R10, -16, R5)
    code.load(4, R5, R2, 4)
    code.store(4, R10, -12, R5)
    code.load(4, R5, R2, 8)
    code.store(4, R10, -8, R5)
    code.copy(R1, R6)
    code.copy(R2, R7)
    code.call(_ADJUST_HEAD)
    code.jump("!=", 0, 0, "drop")
    _frame(code, _ETH, "drop")
    for offset in (0, 4, 8):
        code.load(4, R9, R10, offset - 16)
        code.store(4, R2, offset, R9)
    code.store(2, R2, 12, R8)
