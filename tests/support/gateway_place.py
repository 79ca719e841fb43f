# SPDX-License-Identifier: Apache-2.0
"""A gateway's listeners and mock engines, in one event loop, in a thread of the test's namespace.

Real sockets on the loopback interface of a namespace that is the test's alone; the test itself
talks from its own thread, and asks for state by ``call``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import uvloop
from pyroute2 import IPRoute

from tests.support.gateway_client import Address, RawClient
from tests.support.netns import wait_for
from xdp_router.core.config import parse_config
from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon.gateway.board import Board
from xdp_router.daemon.gateway.certificates import read_certificates, server_context
from xdp_router.daemon.gateway.front import Front, World
from xdp_router.daemon.gateway.listening import ListeningSockets
from xdp_router.lab.engine import Engine
from xdp_router.lab.engine_behaviour import Behaviour

_Result = TypeVar("_Result")
PATIENCE_S = 20.0
FIRST_PORT = 18_000
"""Listeners have the ports from here on, in the order of the file; engines those from 19,000."""
ENGINE_PORT = 19_000


class Place:
    """``fronts`` by listener, ``engines`` by name. Both belong to the loop: use ``call``."""

    def __init__(self, config: GatewayConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.fronts: dict[str, Front] = {}
        self.engines: dict[str, Engine] = {}
        self.lines: list[str] = []
        """Of the access log."""
        self.board = Board(Board.create(), 0)
        self.board.slots_used = 1
        rows: dict[str, int] = {}
        for listener in config.listeners:
            for backend in listener.backends:
                rows.setdefault(str(backend.address), len(rows))
        self.rows = rows
        self.world = World(self.board, rows, config, loop, self.lines.append)

    def call(self, ask: Callable[[], _Result]) -> _Result:
        """What ``ask`` says, in the loop's own thread."""

        async def asked() -> _Result:
            return ask()

        return asyncio.run_coroutine_threadsafe(asked(), self.loop).result(PATIENCE_S)

    def address(self, listener: str | None = None) -> Address:
        """Where a listener is (None: the first)."""
        found = next(x for x in self.config.listeners if listener in (None, x.name))
        return found.address.host, found.address.port

    def connect(self, listener: str | None = None) -> RawClient:
        """A client of a listener."""
        return RawClient.connect(self.address(listener))

    def explain(self, request: str, listener: str | None = None) -> dict[str, Any]:
        """What became of a request, by its X-Request-ID."""
        front = self.fronts[listener or self.config.listeners[0].name]
        found = self.call(lambda: front.explain(request))
        assert found is not None, request
        return found

    def last(self, listener: str | None = None) -> dict[str, Any]:
        """The newest request that is over, once all are."""
        front = self.fronts[listener or self.config.listeners[0].name]
        wait_for(lambda: not self.call(front.streams), PATIENCE_S, "no request is under way")
        (row,) = self.call(lambda: front.decisions(1))
        found = self.call(lambda: front.explain(row["id"]))
        assert found is not None
        return found

    def in_flight(self) -> list[int]:
        """Requests at each backend, as the board has them."""
        return self.call(lambda: [self.board.in_flight(row) for row in self.rows.values()])

    def settled(self) -> None:
        """Wait until nothing is under way, then hold that nothing was left behind."""

        def is_quiet() -> bool:
            return not any(each.streams() for each in self.fronts.values())

        wait_for(lambda: self.call(is_quiet), PATIENCE_S, "no request is under way")
        assert not any(self.in_flight())

    async def _begin(self, engines: Mapping[str, Engine]) -> None:
        for number, (name, engine) in enumerate(engines.items()):
            self.engines[name] = engine
            await engine.listen("127.0.0.1", ENGINE_PORT + number)
        sockets = ListeningSockets()
        sockets.prepare(self.config)
        pems = read_certificates(self.config)
        for listener in self.config.listeners:
            pem = pems.get(listener.name)
            context = server_context(listener, pem) if pem is not None else None
            front = self.fronts[listener.name] = Front(listener, self.world, context)
            for sock in sockets.of(listener.address):
                await self.loop.create_server(front.connection, sock=sock)


@contextlib.contextmanager
def gateway(
    listener: str, engines: Mapping[str, Engine | Behaviour | str], *, more: str = ""
) -> Iterator[Place]:
    """Serve a listener with the keys in ``listener`` (TOML) over these engines.

    A behaviour may be its text, ``"ttft-ms=20,tokens=5"``. ``more``: TOML behind it. Backends have
    the engines' names. In the calling thread's network namespace, whose loopback is brought up.
    """
    made = {
        name: each
        if isinstance(each, Engine)
        else Engine(name, each if isinstance(each, Behaviour) else Behaviour().changed(each))
        for name, each in engines.items()
    }
    backends = "".join(
        f'[[listener.backend]]\nname = "{name}"\naddress = "127.0.0.1:{ENGINE_PORT + number}"\n'
        for number, name in enumerate(made)
    )
    head, table, tables = listener.partition("\n[")
    text = (
        f'[[listener]]\nname = "front"\naddress = "127.0.0.1:{FIRST_PORT}"\n{head}\n'
        f"{table.strip() and '['}{tables}\n{backends}{more}"
    )
    with serving(text, made) as place:
        yield place


@contextlib.contextmanager
def serving(text: str, engines: Mapping[str, Engine]) -> Iterator[Place]:
    """The same with a whole configuration."""
    with IPRoute() as ipr:
        ipr.link("set", index=ipr.link_lookup(ifname="lo")[0], state="up")
    config = parse_config(text, "test").gateway
    loop = uvloop.new_event_loop()
    place = Place(config, loop)
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    thread = threading.Thread(target=loop.run_forever, name="gateway")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(place._begin(engines), loop).result(PATIENCE_S)
        yield place
        assert not faults, faults
    finally:
        asyncio.run_coroutine_threadsafe(_end(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


async def _end() -> None:
    tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
