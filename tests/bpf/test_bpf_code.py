# SPDX-License-Identifier: Apache-2.0
"""Programs written instruction by instruction do what was written, or are refused in words."""

from __future__ import annotations

import os

import pytest

from tests.bpf.test_xdp_stub import verdict
from tests.support.privileges import require_root
from xdp_router.lab import LabError
from xdp_router.lab.bpf_code import R0, R2, R3, R4, R5, R6, R7, R10, Code, ProgramType


def run(code: Code) -> int:
    """What the program returns for a frame of zeros."""
    program = code.install("xr_test", ProgramType.XDP)
    try:
        return verdict(program)
    finally:
        os.close(program)


@pytest.mark.parametrize(
    ("relation", "value", "taken"),
    [("==", 5, True), ("==", 6, False), ("!=", 6, True), (">", 4, True), (">", 5, False)],
)
def test_jumps(relation: str, value: int, taken: bool) -> None:
    """A jump leads to its label if the relation holds, else to the next instruction."""
    require_root()
    code = Code()
    code.set(R2, 5)
    code.jump(relation, R2, value, "there")
    code.end(1)
    code.label("there")
    code.end(2)
    assert run(code) == 1 + taken


def test_jump_compares_32_bits() -> None:
    """A value with the uppermost bit set is no negative one."""
    require_root()
    code = Code()
    code.set(R2, 0x7FFFFFFF)
    code.add(R2, 0x7FFFFFFF)
    code.jump("!=", R2, 0xFFFFFFFE, "other")
    code.end(1)
    code.label("other")
    code.end(2)
    assert run(code) == 1


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_memory_arithmetic_and_frame(size: int) -> None:
    """Loads and stores have their size, masks and sums theirs; the frame ends where it ends."""
    require_root()
    code = Code()
    code.copy(R6, 1)
    code.load(4, R2, R6, 0)
    code.load(4, R3, R6, 4)
    code.copy(R4, R2)
    code.add(R4, 64)
    code.jump_beyond(R4, R3, "short")
    code.set(R5, 0)
    code.store(8, R10, -8, R5)
    code.set(R5, 0x1C3)
    code.store(size, R10, -8, R5)
    code.load(8, R7, R10, -8)
    code.mask(R7, 0x1FF)
    code.copy(R0, R7)
    code.leave()
    code.label("short")
    code.end(0)
    assert run(code) == (0xC3 if size == 1 else 0x1C3)


def test_go_leads_to_its_label() -> None:
    """An unconditional jump goes on at its label."""
    require_root()
    code = Code()
    code.set(R0, 7)
    code.jump("==", R0, 8, "eight")
    code.go("end")
    code.label("eight")
    code.set(R0, 9)
    code.label("end")
    code.leave()
    assert run(code) == 7


def test_refusal_quotes_the_verifier() -> None:
    """A program that the kernel refuses is an error with its name and the verifier's reason."""
    require_root()
    code = Code()
    code.copy(R0, R5)
    code.leave()
    with pytest.raises(LabError, match=r"(?s)refuses program xr_test.*R5 !read_ok"):
        run(code)
