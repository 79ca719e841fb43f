# SPDX-License-Identifier: Apache-2.0
"""Standard output as it is found: closed, full, or in an encoding without a micro sign."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import TextIO

from xdp_router.core.errors import XdpRouterError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_STAND_INS = {"\N{MICRO SIGN}": "u"}
_NARROW = "xdp_router_narrow"


class OutputError(XdpRouterError):
    """What a command has to show cannot be shown."""


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_STAND_INS.get(char, "?") for char in unknown), error.end


codecs.register_error(_NARROW, _stand_in)


def accept_any_encoding() -> None:
    """Characters that standard output cannot take are printed as something near."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_NARROW)


def stdout() -> TextIO:
    """Standard output. Raises OutputError when it is closed."""
    if not _is_open(sys.stdout):
        raise OutputError("standard output is closed: there is nowhere to print to")
    return sys.stdout


def flush() -> None:
    """Hand on what was printed. Raises OSError."""
    if _is_open(sys.stdout):
        sys.stdout.flush()


def as_output_error(error: Exception) -> OutputError | None:
    """The error as one of standard output, if it is one; its rest is then thrown away."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM or error.filename is not None:
        return None
    # Or it would fail again at exit, with a message and an exit code of Python's.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    finally:
        os.close(nowhere)
    return OutputError(f"cannot write to standard output: {error.strerror}")


def _is_open(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed
