# SPDX-License-Identifier: Apache-2.0
"""The lab's tiny XDP programs load, and give the verdict that they were made for."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from tests.support.privileges import require_root
from xdp_router.lab import libc, xdp_stub

BPF_PROG_TEST_RUN = 10
XDP_REDIRECT = 4


def verdict(program: int) -> int:
    """What the program returns for a frame of zeros."""
    frame = ctypes.create_string_buffer(64)
    attributes = struct.pack("<IIIIQQII", program, 0, 64, 0, ctypes.addressof(frame), 0, 1, 0)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc.bpf(BPF_PROG_TEST_RUN, buffer)
    result: int = struct.unpack_from("<I", buffer, 4)[0]
    return result


@pytest.mark.parametrize("action", [xdp_stub.XDP_DROP, xdp_stub.XDP_PASS])
def test_constant_program_returns_its_action(action: int) -> None:
    """The verdict is the action, whatever the frame."""
    require_root()
    program = xdp_stub.load_constant(action)
    try:
        assert verdict(program) == action
    finally:
        os.close(program)


def test_redirect_program_redirects() -> None:
    """The verdict is a redirect (to the loopback's index, which a test run never reaches)."""
    require_root()
    program = xdp_stub.load_redirect(1)
    try:
        assert verdict(program) == XDP_REDIRECT
    finally:
        os.close(program)
