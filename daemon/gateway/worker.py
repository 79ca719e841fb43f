# SPDX-License-Identifier: Apache-2.0
"""A worker: the process that has clients' connections. The supervisor starts it, and tells it all.

    python -m xdp_router.daemon.gateway.worker CHANNEL-FD

Signals are the supervisor's business: a Ctrl-C at the terminal, or systemd's SIGTERM to all,
reaches workers as well, which have streams to finish. The end of the supervisor, however it comes,
is seen at the channel: the worker then takes nothing more, and ends with its last stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import uvloop

from xdp_router.core.config import parse_config
from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon import garbage, logs, streams

from .board import Board
from .certificates import Pem, server_context
from .channel import Channel
from .front import Front, World
from .listening import BACKLOG
from .totals import Figures, merge

DRAIN_POLL_S = 0.05
SWEEP_S = 1.0
LAST_WORDS_S = 5.0
RECORDS_S = 3.0
"""How long the telling of records may take at the end, beside that of what was counted."""
RECORDS_AT_ONCE = 100

_log = structlog.get_logger()


class Worker:
    """Serves until it is told to retire, or nobody is there to tell it."""

    def __init__(self, sock: socket.socket, access: Callable[[str], object]) -> None:
        """``access``: takes lines of the access log."""
        self._access = access
        self._channel = Channel(sock, self._handle)
        self._fronts: list[Front] = []
        self._servers: list[asyncio.Server] = []
        self._retiring: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._config = GatewayConfig()

    async def run(self) -> None:
        """All of its life."""
        asyncio.get_running_loop().set_exception_handler(logs.log_fault)
        await self._channel.open()
        keeper = asyncio.create_task(garbage.GarbageKeeper(self._is_quiet).run())
        await self._channel.ended()
        if self._fronts and self._retiring is None:
            _log.warning("supervisor_gone", pid=os.getpid(), consequence="it finishes its streams")
        self._retire(self._config.drain_timeout_ns, 0)
        assert self._retiring is not None
        await self._retiring
        keeper.cancel()

    def _is_quiet(self) -> bool:
        return not any(front.open for front in self._fronts)

    # What the supervisor asks

    async def _handle(self, what: str, args: Mapping[str, Any]) -> Any:
        if what == "begin":
            return await self._begin(args)
        if what == "serve":
            return await self._serve()
        if what == "retire":
            return self._retire(int(args["timeout_ns"]), int(args["records"]))
        if what == "end":
            os._exit(0)  # streams are cut, which is what was asked for
        if what == "figures":
            return {"open": self._open(), "figures": self._figures()}
        if what == "streams":
            return [each for front in self._fronts for each in front.streams()]
        if what == "decisions":
            limit = int(args["limit"])
            return [each for front in self._fronts for each in front.decisions(limit)]
        if what == "explain":
            found = (front.explain(str(args["request"])) for front in self._fronts)
            return next((each for each in found if each is not None), None)
        raise ValueError(f"unknown request {what!r}")

    async def _begin(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Be ready to serve."""
        with garbage.postponed():
            config = parse_config(args["text"], args["label"]).gateway
        loop = asyncio.get_running_loop()
        board = Board(args["board"], args["slot"])
        world = World(board, args["rows"], config, loop, self._access)
        with contextlib.ExitStack() as undo:
            undo.callback(self._stop_listening)
            for listener in config.listeners:
                pem = args["pems"].get(listener.name)
                context = server_context(listener, Pem(*pem)) if pem is not None else None
                front = Front(listener, world, context)
                for fd in args["sockets"].get(str(listener.address), ()):
                    server = await loop.create_server(
                        front.connection,
                        sock=socket.socket(fileno=fd),
                        backlog=BACKLOG,
                        start_serving=False,
                    )
                    self._servers.append(server)
                self._fronts.append(front)
            undo.pop_all()
        self._config = config
        self._sweeping = asyncio.create_task(self._sweep(world))
        return {"listeners": len(config.listeners)}

    async def _sweep(self, world: World) -> None:
        """Close what has been idle, or stood still, for too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for front in self._fronts:
                front.sweep()
            world.pool.sweep()

    async def _serve(self) -> None:
        """Accept: all workers of its generation are ready."""
        for server in self._servers:
            await server.start_serving()

    # How it ends

    def _retire(self, timeout_ns: int, records: int) -> None:
        if self._retiring is None:
            self._retiring = asyncio.create_task(self._finish(timeout_ns, records))

    async def _finish(self, timeout_ns: int, records: int) -> None:
        self._stop_listening()
        for front in self._fronts:
            front.retire()
        until_s = time.monotonic() + timeout_ns / 1e9
        # Fronts are asked rather than made to tell: it is for the end only.
        while self._open() and time.monotonic() < until_s:  # noqa: ASYNC110 - reason above
            await asyncio.sleep(DRAIN_POLL_S)
        # So that what was counted here is not lost.
        self._channel.tell("last", open=self._open(), figures=self._figures())
        await self._channel.flush(LAST_WORDS_S)
        await self._tell_records(records)
        self._channel.close()

    async def _tell_records(self, count: int) -> None:
        """The newest first: if it takes too long, old ones are not told."""
        found = [(front, each) for front in self._fronts for each in front.kept.newest()]
        found.sort(key=lambda pair: pair[1].wall_s, reverse=True)
        until_s = time.monotonic() + RECORDS_S
        for begin in range(0, min(count, len(found)), RECORDS_AT_ONCE):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            some = found[begin : min(begin + RECORDS_AT_ONCE, count)]
            rows = [
                (each.id, each.wall_s, json.dumps(front.explained(each))) for front, each in some
            ]
            self._channel.tell("records", rows=rows)
            await self._channel.flush(left_s)

    def _stop_listening(self) -> None:
        """Its own sockets alone: those who wait in the queue are another worker's from here on."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _open(self) -> int:
        return sum(front.open for front in self._fronts)

    def _figures(self) -> Figures:
        return merge(front.plain() for front in self._fronts)


def main() -> None:
    """Be a worker."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    log_format, fd = sys.argv[1], int(sys.argv[2])
    log = streams.LogStream(sys.stderr)
    log.lost_line = logs.configure(log_format, log)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Worker(socket.socket(fileno=fd), log.write).run())
    finally:
        log.close()


if __name__ == "__main__":
    main()
