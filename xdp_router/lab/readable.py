# SPDX-License-Identifier: Apache-2.0
"""Waits for something to read, whatever the number of its descriptor."""

from __future__ import annotations

import math
import select
import socket
from typing import IO


def is_readable(file: int | socket.socket | IO[bytes], timeout_s: float) -> bool:
    """Whether there is something to read, or the end, within a time.

    ``select.select`` cannot have descriptors from 1024 on (select(2)), which a process with many
    namespaces and maps comes to.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(math.ceil(timeout_s * 1000)))
