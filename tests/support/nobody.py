# SPDX-License-Identifier: Apache-2.0
"""What a function does for a user without privileges."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable


def as_nobody(call: Callable[[], int]) -> tuple[int, str]:
    """Exit code of ``call`` in a process without privileges, and what it wrote to stderr."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            with os.fdopen(theirs, "w") as stream, contextlib.redirect_stderr(stream):
                code = call()
            os._exit(code)
        finally:
            os._exit(99)
    os.close(theirs)
    with os.fdopen(ours) as stream:
        text = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text
