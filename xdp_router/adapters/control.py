# SPDX-License-Identifier: Apache-2.0
"""The control socket: one JSON object a line each way over a unix stream socket.

Request ``{"command": NAME, ARG: VALUE...}``; answer ``{"ok": true, "data": ...}`` or
``{"ok": false, "error": TEXT}``. A connection may carry several requests in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import inspect
import json
import os
import socket
import stat
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xdp_router.core.errors import XdpRouterError

DEFAULT_CONTROL_PATH: Final = "/run/xdp-router/control.sock"
DEFAULT_GATEWAY_CONTROL_PATH: Final = "/run/xdp-router/gateway.sock"
UNIT_GATEWAY_CONTROL_PATH: Final = "/run/xdp-router-gateway/gateway.sock"
"""Of xdp-router-gateway.service, which has a user and a directory of its own."""

Handler = Callable[[Mapping[str, Any]], Any | Awaitable[Any]]
"""Takes the request's arguments, returns what JSON can express, or raises CommandError.

An iterator is answered as a list, some elements at a time: for lists that may be long. An
asynchronous one, of lists, as a stream: a line for each element, until the client goes.
"""

_MAX_REQUEST_BYTES: Final = 64 << 10
_MAX_CONNECTIONS: Final = 64
_IDLE_S: Final = 10.0  # a connection without a request is closed
_BUSY: Final = (
    f"busy: too many connections ({_MAX_CONNECTIONS}) to the control socket: try again in "
    f"{_IDLE_S:.0f} s, when those that ask nothing are closed"
)
_HANDLER_S: Final = 120.0
LONG_S: Final = _HANDLER_S + 10
"""What a client has to wait for an answer that may take long: a large file that is read again, a
large table that is looked through."""
_SLOW_CLIENT_S: Final = 5.0  # an answer that is not read by then is given up
_ROWS_AT_ONCE: Final = 50  # of a long list: about 1 ms of the event loop, fewer if they take longer
_ROWS_S: Final = 0.001
_PATH_BYTES: Final = 107  # sun_path has 108, with a zero at the end
_MODE: Final = 0o660
_GROUP_MAX: Final = (1 << 32) - 2  # the number after it means "leave it as it is"
_DIRECTORY_MODE: Final = 0o755
_PEER: Final = struct.Struct("=3i")  # struct ucred: process, user, group


class ControlError(XdpRouterError):
    """A control request, or the control socket itself, failed; the text says how."""


class ControlInUse(ControlError):
    """A live daemon listens on the path."""


class NoDaemon(ControlError):
    """Nobody listens on the path."""


class CommandError(ControlError):
    """What a handler raises to refuse a request: the text is the answer's ``error``."""


def group_id(name: str) -> int:
    """Number of the group that may use the control socket. Raises ControlError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        if name.isascii() and name.isdigit() and len(name) <= 10 and int(name) <= _GROUP_MAX:
            return int(name)
        raise ControlError(
            f"--control-group {name}: there is no such group: make it (groupadd --system {name}), "
            "or name another"
        ) from error


def _probe_socket(path: Path) -> bool:
    """Whether somebody listens. Raises ControlError if ``path`` is no socket or not ours."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ControlError(
                f"{path} exists and is not a socket: remove it, or choose another --control path"
            )
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (BlockingIOError, TimeoutError):
            return True  # its backlog is full
        except OSError as error:
            raise ControlError(f"cannot look at {path}: {error.strerror}") from error
        return True


def remove_stale_socket(path: Path) -> bool:
    """Remove a control socket that nobody listens on. False: there is none, or it is in use.

    Raises ControlError if ``path`` is no socket, or cannot be looked at or removed.
    """
    if _probe_socket(path):
        return False
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ControlError(f"cannot remove {path}: {error.strerror}") from error
    return True


def _make_directory(directory: Path) -> None:
    """Make the socket's directory if there is none; the socket's own mode says who may talk."""
    if not directory.is_dir():
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, f"{directory} is not a directory") from error
        directory.chmod(_DIRECTORY_MODE)  # whatever the umask


def require_path(path: Path) -> None:
    """Raise ControlError if a socket's path is longer than the kernel takes."""
    length = len(os.fsencode(path))
    if length > _PATH_BYTES:
        raise ControlError(
            f"{path}: a control socket's path has at most {_PATH_BYTES} bytes, this one has "
            f"{length}: choose a shorter one with --control"
        )


class ControlServer:
    """Serves requests from the running event loop.

    ``handlers`` maps command names to callables, plain or coroutine functions. A handler's
    unexpected exception is answered as an internal error and handed to ``on_fault`` with the
    command's name. ``group``: number of the group that may use the socket beside its owner;
    None: the process's own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        handlers: Mapping[str, Handler],
        on_fault: Callable[[str, Exception], None] | None = None,
        group: int | None = None,
        changing: Mapping[str, Handler] | None = None,
    ) -> None:
        """``changing``: handlers of commands that only root and the daemon's own user may give."""
        self._path = Path(path)
        self._changing = frozenset(changing or ())
        self._handlers = {**handlers, **(changing or {})}
        self._on_fault = on_fault
        self._group = group
        self._server: asyncio.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._answering: set[asyncio.Future[None]] = set()

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        return len(self._writers)

    async def start(self) -> None:
        """Listen. A dead daemon's socket is replaced. Raises ControlInUse, ControlError."""
        listener = self._bind()
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listener, limit=_MAX_REQUEST_BYTES
            )
        except BaseException:
            listener.close()
            self._unlink()
            raise

    async def close(self, answers_s: float = 0.0) -> None:
        """Stop listening, cut connections, remove the path. Calling it again does nothing.

        ``answers_s``: how long those are waited for who have asked, and have no answer yet.
        """
        server, self._server = self._server, None
        if server is None:
            return
        self._unlink()
        server.close()
        if answers_s and self._answering:
            await asyncio.wait(set(self._answering), timeout=answers_s)
        for writer in list(self._writers):
            writer.transport.abort()
        await server.wait_closed()

    def _bind(self) -> socket.socket:
        path = self._path
        require_path(path)
        with contextlib.ExitStack() as undo:
            try:
                _make_directory(path.parent)
                if _probe_socket(path):
                    raise ControlInUse(
                        f"another xdp-routerd listens on {path}: stop it, or choose another "
                        "path with --control"
                    )
                # Made aside and renamed into place: nobody meets a half-made one.
                aside = path.with_name(f".{os.getpid()}")
                aside.unlink(missing_ok=True)
                listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                listener.setblocking(False)
                # By its directory: it may be longer than the path itself.
                folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                undo.callback(os.close, folder)
                listener.bind(f"/proc/self/fd/{folder}/{aside.name}")
                undo.callback(aside.unlink, missing_ok=True)
                self._give_to_group(aside)
                os.chmod(aside, _MODE)
                listener.listen(_MAX_CONNECTIONS)
                found = aside.stat()
                os.rename(aside, path)
            except OSError as error:
                text = error.strerror or str(error)
                raise ControlError(f"cannot make the control socket {path}: {text}") from error
            self._identity = (found.st_dev, found.st_ino)
            os.close(folder)
            undo.pop_all()
            return listener

    def _give_to_group(self, path: Path) -> None:
        if self._group is None:
            return
        try:
            os.chown(path, -1, self._group)
        except PermissionError as error:
            raise ControlError(
                f"the control socket cannot be given to group {self._group}: the daemon is neither "
                "a member nor has it CAP_CHOWN (systemd: SupplementaryGroups=)"
            ) from error

    def _unlink(self) -> None:
        """Remove the path unless somebody put another file there."""
        with contextlib.suppress(FileNotFoundError):
            found = self._path.lstat()
            if (found.st_dev, found.st_ino) == self._identity:
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= _MAX_CONNECTIONS:
            writer.write(_encode({"ok": False, "error": _BUSY}))
            writer.transport.abort()
            return
        self._writers.add(writer)
        # drain() then means "read by the client", so that nothing is lost at the close.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            while True:
                try:
                    async with asyncio.timeout(_IDLE_S):
                        line = await reader.readline()
                except ValueError:
                    text = f"request is longer than {_MAX_REQUEST_BYTES} bytes"
                    await self._write(writer, {"ok": False, "error": text})
                    return
                if not line.endswith(b"\n"):
                    return
                with self._while_answering():
                    answer = await self._answer(line, _user_of(writer))
                    rows = answer.get("data")
                    if isinstance(rows, Iterator):
                        await self._write_rows(writer, line, rows)
                    elif not isinstance(rows, AsyncIterator):
                        await self._write(writer, answer)
                if isinstance(rows, AsyncIterator):
                    await self._write_stream(reader, writer, line, rows)
                    return
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    @contextlib.contextmanager
    def _while_answering(self) -> Iterator[None]:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answering.add(answered)
        try:
            yield
        finally:
            self._answering.discard(answered)
            answered.cancel()

    async def _write(self, writer: asyncio.StreamWriter, answer: Mapping[str, object]) -> None:
        await self._write_raw(writer, _encode(answer))

    async def _write_raw(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        async with asyncio.timeout(_SLOW_CLIENT_S):
            await writer.drain()

    async def _write_rows(
        self, writer: asyncio.StreamWriter, line: bytes, rows: Iterator[object]
    ) -> None:
        """A long answer, piece by piece; cut off, and the connection with it, by a fault."""
        before = b'{"ok":true,"data":['
        try:
            while some := _next_rows(rows):
                await self._write_raw(writer, before + _compact(some)[1:-1])
                before = b","
                await asyncio.sleep(0)  # drain() gives up the loop only when it has to wait
        except OSError:  # the client is gone, or too slow
            raise
        except Exception as error:
            if self._on_fault is not None:
                self._on_fault(line.decode(errors="replace").strip(), error)
            raise ConnectionError(f"an answer could not be finished: {error!r}") from error
        await self._write_raw(writer, (b"" if before == b"," else before) + b"]}\n")

    async def _write_stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: bytes,
        parts: AsyncIterator[Sequence[object]],
    ) -> None:
        """What happens, a line each, until the client goes, says something, or is too slow."""
        await self._write(writer, {"ok": True, "stream": True})
        gone = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                part = asyncio.ensure_future(anext(parts))
                await asyncio.wait({part, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    part.cancel()
                    await asyncio.gather(part, return_exceptions=True)
                    return
                await self._write_raw(writer, b"".join(_encode(each) for each in part.result()))
        except OSError:  # it is gone, or too slow
            raise
        except Exception as error:
            if self._on_fault is not None:
                self._on_fault(line.decode(errors="replace").strip(), error)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()

    async def _answer(self, line: bytes, user: int) -> dict[str, object]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:
            return {"ok": False, "error": f"request is not JSON: {error}"}
        if not isinstance(request, dict) or not isinstance(request.get("command"), str):
            return {"ok": False, "error": 'request must be an object with a string "command"'}
        command = request.pop("command")
        handler = self._handlers.get(command)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            return {"ok": False, "error": f"unknown command {command!r}; known: {known}"}
        if command in self._changing and user not in (0, os.geteuid()):
            text = f"{command} changes the router, which is root's: run the command with sudo"
            return {"ok": False, "error": text}
        try:
            data = handler(request)
            if inspect.isawaitable(data):
                async with asyncio.timeout(_HANDLER_S):
                    data = await data
            if not isinstance(data, Iterator | AsyncIterator):
                json.dumps(data)
        except CommandError as error:
            return {"ok": False, "error": str(error)}
        except TimeoutError:
            return {"ok": False, "error": f"{command} took longer than {_HANDLER_S:.0f} s"}
        except Exception as error:
            # A fault of ours in one command must not end the connection, let alone the daemon.
            if self._on_fault is not None:
                self._on_fault(command, error)
            text = f"internal error in {command}: {type(error).__name__}: {error}"
            return {"ok": False, "error": text}
        return {"ok": True, "data": data}


def _next_rows(rows: Iterator[object]) -> list[object]:
    """So many as take about a millisecond."""
    some: list[object] = []
    until_s = time.monotonic() + _ROWS_S
    for row in rows:
        some.append(row)
        if len(some) >= _ROWS_AT_ONCE or time.monotonic() > until_s:
            break
    return some


def peer_credentials(peer: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a unix socket, when it connected (unix(7))."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    process, user, _ = _PEER.unpack(raw)
    return process, user


def _user_of(writer: asyncio.StreamWriter) -> int:
    return peer_credentials(writer.get_extra_info("socket"))[1]


def _encode(answer: object) -> bytes:
    return _compact(answer) + b"\n"


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
