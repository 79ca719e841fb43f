# SPDX-License-Identifier: Apache-2.0
"""Waiting for something to read."""

from __future__ import annotations

import fcntl
import os

from xdp_router.lab.readable import is_readable


def test_descriptors_of_any_number() -> None:
    """Not beyond the time; bytes and the end are both something."""
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert not is_readable(high, 0.001)
        os.write(writer, b"x")
        assert is_readable(high, 5)
        assert os.read(high, 1) == b"x"
        os.close(writer)
        assert is_readable(high, 5)
    finally:
        os.close(reader)
        os.close(high)
