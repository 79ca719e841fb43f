# SPDX-License-Identifier: Apache-2.0
"""A hitless restart: a new gateway gets from the running one what it listens with.

    successor -> {"want": "handover", "version": 1, "release": "0.1.0"}
    former    -> {"sockets": [[address, count]...], "rows": {...}, "layout": [...], "metrics": ...}
    successor -> {"next": N}
    former    -> descriptors from the N-th on, in that order, the board before all; again if need be
    successor -> {"ready": true}       its workers serve
    former    -> {"yours": true, "figures": ...}
                                       its control socket and metrics are closed, its workers retire
    former    -> {"figures": ...}, {"records": ...}     again and again, until they have ended

Until ``ready`` has come nothing of the former one is changed, and it goes on when the successor
hangs up. Over a unix socket beside the control socket, which only root and the gateway's own user
may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from xdp_router import __version__
from xdp_router.adapters.control import peer_credentials
from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon import former

from .estate import Estate

VERSION: Final = 1
ANSWER_S: Final = 10.0
ACCEPT_AGAIN_S: Final = 1.0
START_S: Final = 120.0
"""How long a successor may take until its workers serve."""
FIRST_ANSWER_S: Final = 60.0
"""How long a successor waits for the first answer: the running one may have to finish a reload."""
SAY_S: Final = 1.0
"""How often the successor is told what the former one's last workers have counted."""
FINISH_S: Final = 5.0
_LINE_MAX: Final = 64 << 20
_FDS_AT_ONCE: Final = 200
"""The kernel takes 253 (SCM_MAX_FD)."""

_log = structlog.get_logger()


class HandoverError(XdpRouterError):
    """The running gateway does not hand over; the text says why."""


def handover_path(control: Path) -> Path:
    """Where a gateway with that control socket hands over."""
    return control.with_name(control.name + ".handover")


@dataclass(slots=True)
class Legacy:
    """What a successor gets. ``layout``: of the board, which must be the successor's, too."""

    board_fd: int
    layout: Sequence[int]
    rows: Mapping[str, int]
    sockets: Mapping[str, Sequence[socket.socket]]
    metrics: Sequence[Any] | None
    pid: int = field(default_factory=os.getpid)

    def close(self) -> None:
        """Let go of the descriptors."""
        os.close(self.board_fd)
        for some in self.sockets.values():
            for sock in some:
                sock.close()


class _Line:
    """JSON lines and descriptors over a socket, in the running loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = bytearray()

    async def send(self, value: Mapping[str, object]) -> None:
        """Raises OSError, TimeoutError."""
        async with asyncio.timeout(ANSWER_S):
            await asyncio.get_running_loop().sock_sendall(
                self._sock, json.dumps(value).encode() + b"\n"
            )

    async def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """Raises HandoverError, as when it hangs up."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                end = self._rest.find(b"\n")
                while end < 0:
                    data = await loop.sock_recv(self._sock, 1 << 16)
                    if not data:
                        raise HandoverError("it hung up")
                    self._rest += data
                    end = self._rest.find(b"\n", len(self._rest) - len(data))
                    if len(self._rest) > _LINE_MAX:
                        raise HandoverError("what it says is too long")
        except TimeoutError as error:
            raise HandoverError(f"it did not answer within {timeout_s:.0f} s") from error
        except OSError as error:
            raise HandoverError(error.strerror or str(error)) from error
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        try:
            value = json.loads(line)
        except ValueError as error:
            raise HandoverError("what it says is not JSON") from error
        if not isinstance(value, dict):
            raise HandoverError("what it says is no object")
        if "refused" in value:
            raise HandoverError(str(value["refused"]))
        return value

    async def send_fds(self, fds: Sequence[int]) -> None:
        for begin in range(0, len(fds), _FDS_AT_ONCE):
            # Asked for each time: with a read(2) of anything else the kernel would drop them.
            await self.receive(ANSWER_S)
            socket.send_fds(self._sock, [b"\0"], fds[begin : begin + _FDS_AT_ONCE])

    async def receive_fds(self, count: int) -> list[int]:
        fds: list[int] = []
        while len(fds) < count:
            await self.send({"next": len(fds)})
            await _readable(self._sock)
            data, some, flags, _ = socket.recv_fds(self._sock, 1, _FDS_AT_ONCE)
            for fd in some:
                os.set_inheritable(fd, False)  # recv_fds() forgets flags (CPython 3.11)
            fds += some
            if not data or not some or flags & socket.MSG_CTRUNC:
                for fd in fds:
                    os.close(fd)
                raise HandoverError("descriptors were lost: see 'ulimit -n'")
        return fds


class HandoverServer:
    """The running gateway's side. One successor at a time."""

    def __init__(
        self,
        control: Path,
        legacy: Callable[[], Awaitable[Legacy]],
        release: Callable[[], Awaitable[None]],
        estate: Estate,
    ) -> None:
        """``legacy`` raises HandoverError if there is nothing to hand over now. ``release`` is
        awaited when the successor serves: it lets go of what can be one's only; HandoverError: it
        is not to be that one."""
        self._path = handover_path(control)
        self._legacy = legacy
        self._release = release
        self._estate = estate
        self._over = asyncio.Event()
        self._is_given = False
        self._sock: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._busy = False
        self.successor: tuple[int, str] = 0, ""
        """Process and version of the newest one, when ``release`` is awaited."""
        self._served: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether a successor has got what it needs, and has not come to serve yet."""
        return self._is_given

    def start(self) -> None:
        """Listen. Raises HandoverError. Whoever has the control socket may take this path."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            self._path.unlink(missing_ok=True)
            # By its directory: the path may be longer than the kernel takes.
            folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sock.bind(f"/proc/self/fd/{folder}/{self._path.name}")
            finally:
                os.close(folder)
            self._path.chmod(0o600)
            sock.listen(8)
        except OSError as error:
            sock.close()
            raise HandoverError(
                f"cannot make the socket {self._path}: {error.strerror or error}"
            ) from error
        self._sock = sock
        self._identity = self._path.stat().st_ino
        self._task = asyncio.create_task(self._accept(sock), name="handover")

    def close(self) -> None:
        """Stop listening. Calling it again does nothing."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._identity:
                self._path.unlink()
        if self._task is not None:
            self._task.cancel()
        sock.close()

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(sock)
            except OSError as error:  # as when there are no descriptors left for a moment
                _log.warning("handover_failed", reason=error.strerror, consequence="it goes on")
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            task = asyncio.create_task(self._serve(peer), name="successor")
            self._served.add(task)
            task.add_done_callback(self._served.discard)

    async def _serve(self, peer: socket.socket) -> None:
        with peer:
            line = _Line(peer)
            pid, user = peer_credentials(peer)
            try:
                if user not in (0, os.geteuid()):
                    await line.send({"refused": "only root and the gateway's own user may"})
                    return
                if self._busy:
                    await line.send({"refused": "another successor is about to take over"})
                    return
                self._busy = True
                try:
                    await self._hand_over(line, pid)
                finally:
                    self._busy = self._is_given = False
            except (HandoverError, OSError, TimeoutError) as error:
                reason = str(error) or "it takes nothing of what it is told"
                _log.warning(
                    "handover_failed", successor=pid, reason=reason, consequence="it goes on"
                )

    async def _hand_over(self, line: _Line, pid: int) -> None:
        want = await line.receive(ANSWER_S)
        if want.get("want") != "handover" or want.get("version") != VERSION:
            await line.send({"refused": f"it speaks another version than {VERSION}: stop it first"})
            return
        try:
            legacy = await self._legacy()
        except HandoverError as error:
            await line.send({"refused": str(error)})
            return
        self._is_given = True  # in the same turn: no reload may begin between
        await line.send(
            {
                "pid": legacy.pid,
                "layout": list(legacy.layout),
                "rows": dict(legacy.rows),
                "metrics": legacy.metrics,
                "sockets": [[name, len(some)] for name, some in legacy.sockets.items()],
            }
        )
        fds = [each.fileno() for some in legacy.sockets.values() for each in some]
        await line.send_fds([legacy.board_fd, *fds])
        if (await line.receive(START_S)).get("ready") is not True:
            raise HandoverError("it did not become ready")
        self.successor = pid, str(want.get("release", "unknown"))
        await self._release()
        # It is the one that serves, whatever became of it; and it may be of a version that does
        # not listen any more.
        with contextlib.suppress(OSError, TimeoutError):
            await line.send({"yours": True, **self._estate.figures()})
            is_over = False
            while not is_over:
                is_over = await self._is_over()
                for each in self._estate.lines():
                    await line.send(each)

    async def _is_over(self) -> bool:
        """After a moment, or when it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAY_S):
                await self._over.wait()
        return self._over.is_set()

    async def finish(self) -> None:
        """Nothing more will be counted here: have a successor told the last of it."""
        self._over.set()
        if self._served:
            await asyncio.wait(self._served, timeout=FINISH_S)


class Succession:
    """The successor's side, from ``ask`` on."""

    def __init__(self, sock: socket.socket, legacy: Legacy) -> None:
        self._sock = sock
        self._line = _Line(sock)
        self.legacy = legacy

    async def take(self) -> dict[str, Any]:
        """Our workers serve: have the former one let go. What it says to that (see ``estate``).

        Raises HandoverError if it is gone.
        """
        try:
            await self._line.send({"ready": True})
        except OSError as error:  # a TimeoutError is one
            raise HandoverError(error.strerror or "it does not listen any more") from error
        return await self._line.receive(ANSWER_S)

    async def follow(self, heard: Callable[[Mapping[str, Any]], None]) -> None:
        """Hear what else it has to say, until it has ended."""
        while True:
            try:
                line = await self._line.receive(None)
            except HandoverError:
                return
            heard(line)

    def close(self) -> None:
        """Hang up: before ``take`` the former one goes on."""
        self._sock.close()


async def ask(control: Path) -> Succession | None:
    """Ask the running gateway for what it has; None: there is none. Raises HandoverError."""
    path = handover_path(control)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            await loop.sock_connect(sock, str(path))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        sock.close()
        if former.is_waiting():
            raise HandoverError("the gateway that started this one has ended") from None
        return None
    except (OSError, TimeoutError) as error:
        sock.close()
        text = getattr(error, "strerror", None) or "no answer"
        raise HandoverError(f"the running gateway cannot be asked at {path}: {text}") from error
    try:
        return await _receive(sock)
    except BaseException as error:
        sock.close()
        if isinstance(error, HandoverError | OSError):
            raise HandoverError(
                f"the running gateway ({path}) does not hand over: {error}"
            ) from error
        raise


async def _receive(sock: socket.socket) -> Succession:
    line = _Line(sock)
    await line.send({"want": "handover", "version": VERSION, "release": __version__})
    said = await line.receive(FIRST_ANSWER_S)
    try:
        counts = [(str(name), int(count)) for name, count in said["sockets"]]
        rows = {str(key): int(value) for key, value in said["rows"].items()}
        layout, metrics, pid = said["layout"], said["metrics"], int(said["pid"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HandoverError("what it says is not understood: stop it first") from error
    fds = await line.receive_fds(1 + sum(count for _, count in counts))
    board, *rest = fds
    sockets = {
        name: [socket.socket(fileno=rest.pop(0)) for _ in range(count)] for name, count in counts
    }
    for some in sockets.values():
        for each in some:
            each.setblocking(False)
    return Succession(sock, Legacy(board, layout, rows, sockets, metrics, pid))


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def told() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, told)
    try:
        async with asyncio.timeout(ANSWER_S):
            await ready
    except TimeoutError as error:
        raise HandoverError("it did not send what it has") from error
    finally:
        loop.remove_reader(sock)
