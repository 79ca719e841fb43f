# SPDX-License-Identifier: Apache-2.0
"""One listener in one worker: its connections are relayed to its first backend."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from xdp_router.core.listeners import GatewayConfig, Listener

from .board import IN_FLIGHT, Board


@dataclass(frozen=True, slots=True)
class World:
    """What all fronts of a worker share. ``rows``: of the board, by a backend's address."""

    board: Board
    rows: Mapping[str, int]
    config: GatewayConfig


class _Leg(asyncio.Protocol):
    """One side of a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: _Leg | None = None
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.peer is not None:
            for data in self.peer.early:
                self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)
        else:
            self.early.append(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()


class _Client(_Leg):
    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._front.begin(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._front.end(self)


class Front:
    """A relay."""

    def __init__(self, listener: Listener, world: World, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._world = world
        self._loop = loop
        self._clients: set[_Leg] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._row = world.rows[str(listener.backends[0].address)]

    def connection(self) -> asyncio.Protocol:
        """Of a client that has just come."""
        return _Client(self)

    def begin(self, client: _Leg) -> None:
        """A client is there."""
        self._accepted += 1
        self._clients.add(client)
        self._world.board.add_own(self._row, IN_FLIGHT, 1)
        task = self._loop.create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, client: _Leg) -> None:
        """It has gone."""
        self._clients.discard(client)
        self._world.board.add_own(self._row, IN_FLIGHT, -1)

    async def _connect(self, client: _Leg) -> None:
        address = self._listener.backends[0].address
        leg = _Leg()
        leg.peer = client
        client.peer = leg
        try:
            await self._loop.create_connection(lambda: leg, address.host, address.port)
        except OSError:
            if client.transport is not None:
                client.transport.abort()

    def retire(self) -> None:
        """Nothing new comes."""

    @property
    def open(self) -> int:
        """Connections."""
        return len(self._clients)

    def streams(self) -> list[dict[str, Any]]:
        """What is open."""
        return [
            {"listener": self._listener.name, "id": f"{os.getpid()}-{number}"}
            for number, _ in enumerate(self._clients)
        ]

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """What was decided last."""
        del limit
        return []

    def explain(self, request: str) -> dict[str, Any] | None:
        """How a request went where it went; None: unknown here."""
        del request
        return None

    def figures(self) -> dict[str, Any]:
        """What was counted, and what is."""
        return {
            "connections_total": [[[self._listener.name], self._accepted]],
            "connections": [[[self._listener.name], len(self._clients)]],
        }
