# SPDX-License-Identifier: Apache-2.0
"""The gateway's listening sockets, shown to the router on the same host.

    router  -> connects to <control>.sockets
    gateway -> {"listeners": ["web", ...], "more": false} with a descriptor for each, and again
               whenever these are others

The router leads connections for services with ``handler = "gateway"`` to them; what it has to
write for that takes privileges that the gateway need not have. One socket of each listener is
shown: the kernel deals connections among all that share its port. Over a unix socket beside the
control socket, which only root and the gateway's own user may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from xdp_router.adapters.control import peer_credentials
from xdp_router.core.errors import XdpRouterError

_AT_ONCE: Final = 200
"""The kernel takes 253 (SCM_MAX_FD)."""
_MESSAGE_MAX: Final = 64 << 10
"""A name has 64 characters at most."""
_SHARED_MAX: Final = 4_096
_ACCEPT_AGAIN_S: Final = 1.0

_log = structlog.get_logger()


class SharingError(XdpRouterError):
    """The sockets cannot be shown, or seen; the text says why."""


def sharing_path(control: Path) -> Path:
    """Where a gateway with that control socket shows its sockets."""
    return control.with_name(control.name + ".sockets")


class SocketSharing:
    """The gateway's side."""

    def __init__(self, control: Path, offered: Callable[[], Mapping[str, socket.socket]]) -> None:
        """``offered``: a listening socket of each listener, by its name."""
        self._path = sharing_path(control)
        self._offered = offered
        self._sock: socket.socket | None = None
        self._identity = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: set[asyncio.Event] = set()

    def start(self) -> None:
        """Show them, in the running loop. A path that is left is taken over: who has the control
        socket may. If it does not work that is told, and the gateway serves all the same."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        try:
            self._path.unlink(missing_ok=True)
            with _short(self._path) as path:
                sock.bind(path)
            self._path.chmod(0o600)
            sock.listen(8)
            self._identity = self._path.stat().st_ino
        except OSError as error:
            sock.close()
            _log.error(
                "sockets_not_shown",
                path=str(self._path),
                reason=error.strerror or str(error),
                consequence='services with handler = "gateway" are refused',
            )
            return
        self._sock = sock
        self._spawn(self._accept(sock), "sharing")

    def tell(self) -> None:
        """They are others now."""
        for each in self._changed:
            each.set()

    def close(self) -> None:
        """Show them no more. Calling it again does nothing."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._identity:  # else a successor's
                self._path.unlink()
        for task in self._tasks:
            task.cancel()
        sock.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(sock)
            except OSError as error:  # as when there are no descriptors left for a moment
                _log.warning("sockets_not_shown", reason=error.strerror, consequence="it goes on")
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self._spawn(self._serve(peer), "shown sockets")

    async def _serve(self, peer: socket.socket) -> None:
        changed = asyncio.Event()
        with peer:
            pid, user = peer_credentials(peer)
            if user not in (0, os.geteuid()):
                _log.warning("sockets_not_shown", process=pid, user=user, reason="it is not root")
                return
            gone = asyncio.create_task(_end_of(peer))
            self._changed.add(changed)
            try:
                while not gone.done():
                    self._send(peer)
                    told = asyncio.create_task(changed.wait())
                    await asyncio.wait({gone, told}, return_when=asyncio.FIRST_COMPLETED)
                    told.cancel()
                    changed.clear()
            except OSError as error:  # it reads nothing, or has just gone
                _log.warning("sockets_not_shown", process=pid, reason=error.strerror)
            finally:
                self._changed.discard(changed)
                gone.cancel()

    def _send(self, peer: socket.socket) -> None:
        offered = list(self._offered().items())
        for begin in range(0, max(len(offered), 1), _AT_ONCE):
            some = offered[begin : begin + _AT_ONCE]
            message = {
                "listeners": [name for name, _ in some],
                "more": begin + _AT_ONCE < len(offered),
            }
            fds = [sock.fileno() for _, sock in some]
            socket.send_fds(peer, [json.dumps(message).encode()], fds)


async def seen(control: Path) -> AsyncGenerator[dict[str, socket.socket]]:
    """The router's side: the sockets of the gateway with that control socket, by listener, and
    again whenever they are others. Who gets them closes them. Ends when the gateway hangs up.

    Raises SharingError if there is none, or it does not show them.
    """
    path = sharing_path(control)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        try:
            with _short(path) as short:
                await loop.sock_connect(sock, short)
        except OSError as error:
            raise SharingError(
                f"no gateway shows its sockets at {path}: {error.strerror or error}"
            ) from error
        found: dict[str, socket.socket] = {}
        try:
            while True:
                await _readable(sock)
                part = _receive(sock)
                if part is None:
                    return
                names, more = part
                found |= names
                if len(found) > _SHARED_MAX:
                    raise SharingError(f"{path}: more than {_SHARED_MAX} sockets")
                if not more:
                    whole, found = found, {}
                    yield whole
        finally:
            for each in found.values():
                each.close()


def _receive(sock: socket.socket) -> tuple[dict[str, socket.socket], bool] | None:
    """One message; None: the gateway has hung up."""
    try:
        data, fds, flags, _ = socket.recv_fds(sock, _MESSAGE_MAX, _AT_ONCE, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return {}, True
    except OSError:
        return None
    try:
        sockets = [socket.socket(fileno=fd) for fd in fds]
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise SharingError("what the gateway shows is no socket") from error
    try:
        if not data:
            return None
        if flags & socket.MSG_CTRUNC:
            raise SharingError("descriptors were lost: see 'ulimit -n'")
        message = json.loads(data)
        names = [str(each) for each in message["listeners"]]
        more = bool(message["more"])
        if len(names) != len(sockets) or len(set(names)) != len(names):
            raise SharingError("what the gateway says is not understood")
        found = dict(zip(names, sockets, strict=True))
        sockets = []
    except (KeyError, TypeError, ValueError) as error:
        raise SharingError("what the gateway says is not understood") from error
    finally:
        for each in sockets:
            each.close()
    return found, more


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path by its directory: it may be longer than the kernel takes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _end_of(peer: socket.socket) -> None:
    """Return when the other side has hung up; what it says is nobody's business."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while await loop.sock_recv(peer, 1):
            pass


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def told() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, told)
    try:
        await ready
    finally:
        loop.remove_reader(sock)
