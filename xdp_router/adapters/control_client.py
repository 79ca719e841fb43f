# SPDX-License-Identifier: Apache-2.0
"""The other end of the control socket, for the CLI; see :mod:`.control`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from .control import CommandError, ControlError, NoDaemon, require_path

ANSWER_S = 10.0
"""How long a client waits for an answer."""


class ControlClient:
    """Synchronous client for the CLI. Also a context manager; connects at the first call."""

    def __init__(
        self, path: str | os.PathLike[str], timeout_s: float = ANSWER_S, *, in_all: bool = False
    ) -> None:
        """``timeout_s``: how long the daemon may be silent; ``in_all``: how long all may take."""
        self._path = os.fspath(path)
        self._timeout_s = timeout_s
        self._until_s = time.monotonic() + timeout_s if in_all else None
        self._socket: socket.socket | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calling it again does nothing."""
        sock, self._socket = self._socket, None
        self._rest = b""
        if sock is not None:
            sock.close()

    def call(self, command: str, **args: object) -> Any:
        """Send a command and return the answer's ``data``.

        Raises NoDaemon, CommandError (the daemon refused), ControlError (anything else).
        """
        return self._ask(command, args).get("data")

    def _ask(self, command: str, args: Mapping[str, object]) -> dict[str, Any]:
        request = json.dumps({"command": command, **args}).encode() + b"\n"
        sock = self._connect()
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(request)  # it may have answered that it is busy, and gone
            line = self._read_line(sock)
        except TimeoutError as error:
            self.close()
            raise ControlError(
                f"the daemon on {self._path} did not answer within {self._timeout_s:.0f} s; "
                f"when it goes on it may still do what it was asked for ({command})"
            ) from error
        except OSError as error:
            self.close()
            raise ControlError(
                f"lost the daemon on {self._path}: {error.strerror or error}"
            ) from error
        try:
            answer = json.loads(line)
            if answer["ok"]:
                if "data" not in answer and "stream" not in answer:
                    raise KeyError("data")
                return dict(answer)
            text = str(answer["error"])
        except (ValueError, TypeError, KeyError) as error:
            self.close()
            raise ControlError(
                f"{self._path} did not answer like an xdp-routerd: {line[:80]!r}"
            ) from error
        raise CommandError(text)

    def stream(self, command: str, **args: object) -> Iterator[dict[str, Any]]:
        """Send a command that is answered by a stream, and give what comes, as it comes.

        Raises as ``call``, and ControlError when the daemon ends it.
        """
        opening = self._ask(command, args)
        if opening.get("stream") is not True:
            self.close()
            raise ControlError(f"{self._path}: {command} was not answered by a stream")
        sock = self._connect()
        sock.settimeout(None)
        return self._lines(sock)

    def _lines(self, sock: socket.socket) -> Iterator[dict[str, Any]]:
        try:
            while True:
                yield json.loads(self._read_line(sock))
        except (OSError, ValueError) as error:
            raise ControlError(
                f"the daemon on {self._path} has ended the stream: it was stopped, or what it "
                "said was not read for too long"
            ) from error
        finally:
            self.close()

    def _connect(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        require_path(Path(self._path))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self._timeout_s)
        try:
            sock.connect(self._path)
        except OSError as error:
            sock.close()
            if error.errno == errno.ECONNREFUSED and not Path(self._path).is_socket():
                raise ControlError(
                    f"{self._path} is not a socket: name the daemon's with --control"
                ) from error
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
                raise NoDaemon(
                    f"no daemon listens on {self._path}: start one with "
                    "'sudo xdp-routerd attach IFACE', or name its socket with --control"
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM):
                raise ControlError(
                    f"no permission to use {self._path}: run the command with sudo"
                ) from error
            raise ControlError(
                f"cannot reach the daemon on {self._path}: {error.strerror or error}"
            ) from error
        self._socket = sock
        return sock

    def _read_line(self, sock: socket.socket) -> bytes:
        chunks = [self._rest]
        while b"\n" not in chunks[-1]:
            if self._until_s is not None:
                # 0 would mean not to wait at all, and that is another error.
                sock.settimeout(max(self._until_s - time.monotonic(), 1e-6))
            chunk = sock.recv(1 << 16)
            if not chunk:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            chunks.append(chunk)
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        return line
