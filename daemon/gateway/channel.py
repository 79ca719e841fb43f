# SPDX-License-Identifier: Apache-2.0
"""What supervisor and worker say to each other: JSON, a line each, over a pair of sockets.

    {"ask": NAME, "id": N, "args": {...}}  ->  {"answer": N, "data": ...}
                                           or  {"answer": N, "error": TEXT}
    {"tell": NAME, "args": {...}}              (nobody answers)

Both ends ask and tell. The end of one process is the end of the channel at the other.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from xdp_router.core.errors import XdpRouterError

Handler = Callable[[str, Mapping[str, Any]], Any | Awaitable[Any]]
"""Takes what was asked or told, and its arguments; returns what JSON can express."""

LINE_MAX: Final = 256 << 20
"""A configuration with all backends that there can be is a tenth of it."""

_log = structlog.get_logger()


class ChannelClosed(XdpRouterError):
    """The other process has ended, or has closed its end."""


class Refused(XdpRouterError):
    """What the other end answered instead of data."""


class Channel:
    """One end. ``handle`` is called for everything that is asked and told."""

    def __init__(self, sock: socket.socket, handle: Handler) -> None:
        self._sock = sock
        self._handle = handle
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Begin to read, in the running loop."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock, limit=LINE_MAX)
        self._reading = asyncio.create_task(self._read(reader), name="channel")

    async def ended(self) -> None:
        """Return when the other end is gone, and what it has said before was handled."""
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def ask(self, what: str, timeout_s: float, **args: object) -> Any:
        """Have something answered. Raises ChannelClosed, Refused, TimeoutError."""
        if self._closed:
            raise ChannelClosed("the channel is closed")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._write({"ask": what, "id": number, "args": args})
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._waiting.pop(number, None)

    def tell(self, what: str, **args: object) -> None:
        """Say something; nothing happens if nobody is there to hear it."""
        if not self._closed:
            self._write({"tell": what, "args": args})

    async def flush(self, timeout_s: float) -> None:
        """Wait until what was said has left, or cannot leave."""
        if self._writer is None or self._closed:
            return
        self._writer.transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except (OSError, TimeoutError):
            pass

    def close(self) -> None:
        """Hang up. Calling it again does nothing."""
        self._hung_up()
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._sock.close()

    def _write(self, line: Mapping[str, object]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                self._take(json.loads(line))
        except OSError:
            pass
        except ValueError as error:
            _log.error("channel_fault", error=repr(error))
        finally:
            self._hung_up()

    def _take(self, line: Mapping[str, Any]) -> None:
        if "answer" in line:
            waiting = self._waiting.pop(line["answer"], None)
            if waiting is None or waiting.done():
                return  # nobody waits for it any more
            if "error" in line:
                waiting.set_exception(Refused(line["error"]))
            else:
                waiting.set_result(line["data"])
            return
        task = asyncio.create_task(self._serve(line), name="channel request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, line: Mapping[str, Any]) -> None:
        what = line.get("ask") or line["tell"]
        answer: dict[str, object]
        try:
            data = self._handle(what, line["args"])
            if inspect.isawaitable(data):
                data = await data
            answer = {"data": data}
            json.dumps(data)
        except XdpRouterError as error:
            answer = {"error": str(error)}
        except Exception as error:
            _log.error("channel_fault", what=what, error=repr(error))
            answer = {"error": f"internal error in {what}: {type(error).__name__}: {error}"}
        if "ask" in line and not self._closed:
            self._write({"answer": line["id"], **answer})

    def _hung_up(self) -> None:
        self._closed = True
        for each in self._waiting.values():
            if not each.done():
                each.set_exception(ChannelClosed("the other process has ended"))
        self._waiting.clear()
