# SPDX-License-Identifier: Apache-2.0
"""A timer of the kernel as a file: an event loop that knows whole milliseconds can wait for it."""

from __future__ import annotations

import ctypes
import os
import struct

_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """By CLOCK_MONOTONIC (timerfd_create(2))."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_MONOTONIC, _FLAGS)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_create: {os.strerror(code)}")

    def arm(self, at_ns: int) -> None:
        """Readable from ``at_ns`` on; what is past is due at once. Raises OSError."""
        seconds, rest = divmod(max(1, at_ns), 1_000_000_000)
        value = struct.pack("4q", 0, 0, seconds, rest)
        if _libc.timerfd_settime(self.fd, _ABSOLUTE, value, None) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_settime: {os.strerror(code)}")

    def taken(self) -> None:
        """It is not readable any more."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Give it back."""
        os.close(self.fd)
