# SPDX-License-Identifier: Apache-2.0
"""System calls that fail raise the kernel's errno."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable

import pytest

from xdp_router.lab import libc


@pytest.mark.parametrize(
    ("call", "number"),
    [
        (lambda: libc.setns(-1), {errno.EBADF}),
        (lambda: libc.unshare(1), {errno.EINVAL}),
        (lambda: libc.mount("x", "/nonexistent"), {errno.ENOENT, errno.EPERM}),
        (lambda: libc.umount("/nonexistent"), {errno.ENOENT, errno.EPERM}),
        (lambda: libc.prctl(-1, 0), {errno.EINVAL}),
        (lambda: libc.bpf(-1, ctypes.create_string_buffer(8)), {errno.EINVAL, errno.EPERM}),
    ],
    ids=["setns", "unshare", "mount", "umount", "prctl", "bpf"],
)
def test_failure_is_an_oserror(call: Callable[[], object], number: set[int]) -> None:
    """The exception carries the errno and names the call."""
    with pytest.raises(OSError, match=r": ") as failure:
        call()
    assert failure.value.errno in number
