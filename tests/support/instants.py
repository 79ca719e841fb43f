# SPDX-License-Identifier: Apache-2.0
"""Instants of the kernel's clock that lie before a machine was started.

CLOCK_MONOTONIC begins at about 0 with the machine. XDP subtracts instants as unsigned 64-bit
numbers, so an instant below 0 is as good as any, modulo 2^64: tests of long times need no
machine that has been up for so long.
"""

from __future__ import annotations

_MODULUS = 1 << 64


def before(now_ns: int, age_ns: int) -> int:
    """The instant ``age_ns`` before ``now_ns``, as the kernel's maps hold it."""
    return (now_ns - age_ns) % _MODULUS


def age(now_ns: int, then_ns: int) -> int:
    """How long before ``now_ns`` that was, in ns; negative: it is still to come."""
    passed = (now_ns - then_ns) % _MODULUS
    return passed - _MODULUS if passed >= _MODULUS // 2 else passed
