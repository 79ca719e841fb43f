# SPDX-License-Identifier: Apache-2.0
"""The binding to libbpf: what errors say."""

from __future__ import annotations

import ctypes
import errno

import pytest

from xdp_router.adapters.bpf_ctypes import BpfError, VerifierError, checked, libbpf
from xdp_router.core.errors import XdpRouterError


def test_an_error_names_the_action() -> None:
    """Message: what was tried and the kernel's words; the errno and both bases stay usable."""
    error = BpfError(errno.ENOSPC, "create map x", "make it smaller")
    assert str(error) == "cannot create map x: No space left on device (make it smaller)"
    assert (error.errno, error.action) == (errno.ENOSPC, "create map x")
    assert isinstance(error, XdpRouterError)
    assert isinstance(error, OSError)


def test_a_verifier_error_is_short_but_keeps_the_log() -> None:
    """The message has the log's last lines, not thousands of them."""
    log = "\n".join([f"{n}: (bf) r1 = r2" for n in range(5000)] + ["R3 invalid mem access", ""])
    error = VerifierError(errno.EACCES, "load program p", log)
    assert "R3 invalid mem access" in str(error)
    assert len(str(error)) < 500
    assert error.log == log


def test_a_failed_call_raises_with_the_kernels_errno() -> None:
    """A call on a bad fd raises EBADF."""
    with pytest.raises(BpfError, match="detach a link") as caught:
        checked("detach a link", "bpf_link_detach", -1)
    assert caught.value.errno == errno.EBADF


def test_libbpf_is_new_enough() -> None:
    """The library that is installed is libbpf 1.x."""
    major = ctypes.CFUNCTYPE(ctypes.c_uint32)(("libbpf_major_version", libbpf()))
    assert major() >= 1
