# SPDX-License-Identifier: Apache-2.0
"""Standard streams that are closed, or close, do not take the daemon with them."""

from __future__ import annotations

import errno
import os
from typing import IO

_GONE = {errno.EPIPE, errno.EIO, errno.EBADF}
"""The reader has ended, the terminal has hung up, the descriptor is closed: all for good."""


def hold_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr to nowhere.

    The next file that was opened, a map or a socket, would get its number otherwise, and with
    it what a library prints.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


class SurvivingStream:
    """A text stream that loses what cannot be written, and never raises.

    Once nobody reads it any more, its descriptor leads nowhere.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        """None: the stream was closed when the process started."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose, all of ``text``."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:
                self._failed(error)
        return len(text)

    def flush(self) -> None:
        """Hand on what is buffered."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._failed(error)

    def isatty(self) -> bool:
        """Whether there is a person, or at least a terminal."""
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def _failed(self, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno not in _GONE:
            return  # a full disk may have room again
        stream, self._stream = self._stream, None
        if stream is None or stream.closed:
            return
        # What is still in its buffer would fail again at exit, and spoil the exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        except OSError:
            pass  # it has no descriptor
        finally:
            os.close(nowhere)
