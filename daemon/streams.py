# SPDX-License-Identifier: Apache-2.0
"""Standard streams that are closed, close, or stand still do not take the daemon with them."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import IO

MAX_LINES = 10_000
"""Lines that wait for a reader: about 2 MB."""
FLUSH_S = 0.5
"""How long the end of the process waits for the reader."""

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


class LogStream:
    """A text stream for lines: writing neither blocks nor raises.

    A thread hands the lines on. While nobody reads them they wait, up to ``max_lines``; then
    they are lost until half of those have been read. ``lost_line`` makes the line that says
    how many. Used by one thread at a time.
    """

    def __init__(
        self,
        stream: IO[str] | None,
        lost_line: Callable[[int], str] = "{} lines lost\n".format,
        max_lines: int = MAX_LINES,
    ) -> None:
        """``stream`` None: it was closed when the process started."""
        self._isatty = stream is not None and not stream.closed and stream.isatty()
        self._fd = stream.fileno() if stream is not None and not stream.closed else -1
        # Its own: the thread may still be in write(2) when the process ends.
        self._out = os.dup(self._fd) if self._fd >= 0 else -1
        self.lost_line = lost_line
        self._max_lines = max_lines
        self._line = ""
        self._lost = 0
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._hand_on, name="log", daemon=True)
        if self._out >= 0:
            self._thread.start()

    def write(self, text: str) -> int:
        """Have the lines in ``text`` written, or lose them."""
        if self._out >= 0:
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                self._put(f"{line}\n")
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back but a line that has no end yet."""

    def isatty(self) -> bool:
        """Whether there is a person, or at least a terminal."""
        return self._isatty

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Wait for the reader for so long; then the stream's descriptor leads nowhere.

        Calling it again does nothing.
        """
        if self._out < 0:
            return
        if self._lost:
            self._queue.put(self.lost_line(self._lost))
        self._queue.put(None)
        self._thread.join(flush_s)
        if self._thread.is_alive():
            self._lead_nowhere()  # or whatever is still said would wait for ever
            self._fd = -1  # the number may be another file's by the time the thread goes on
        else:
            os.close(self._out)
        self._out = -1

    def _put(self, line: str) -> None:
        waiting = self._queue.qsize()
        if waiting >= self._max_lines or (self._lost and waiting > self._max_lines // 2):
            self._lost += 1
            return
        if self._lost:
            self._queue.put(self.lost_line(self._lost))
            self._lost = 0
        self._queue.put(line)

    def _hand_on(self) -> None:
        out, gone = self._out, False
        while (line := self._queue.get()) is not None:
            if gone:
                continue
            try:
                _write_all(out, line.encode(errors="backslashreplace"))
            except OSError as error:  # a full disk may have room again
                gone = error.errno in _GONE
                if gone:
                    self._lead_nowhere()

    def _lead_nowhere(self) -> None:
        if self._fd < 0:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._fd)
        os.close(nowhere)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # somebody who shares it made it so
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
