# SPDX-License-Identifier: Apache-2.0
"""Connections to backends: made when they are needed, kept for a while when they are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from xdp_router.core.listeners import SocketAddress
from xdp_router.gateway.known_answers import KnownAnswers

from .leg import HEAD_LIMITS, Leg, LegUser

REFUSED = "it refused the connection"
IDLE_NS = 4_000_000_000
"""Servers close a connection after 5 s and more without a request (uvicorn; nginx 75 s)."""
RECENT_NS = 500_000_000
"""For requests that cannot be repeated: hardly a server closes a connection so soon."""
IDLE_MOST = 256
"""Connections without a request, to one backend."""


class Pool:
    """Of one worker, for all listeners; ``spawn`` keeps a task."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._idle: dict[SocketAddress, list[Leg]] = {}
        self._answers = KnownAnswers(HEAD_LIMITS)
        self._opening: set[asyncio.Task[None]] = set()

    def leg(
        self,
        address: SocketAddress,
        row: int,
        user: LegUser,
        number: int,
        timeout_s: float,
        *,
        waited_ns: int = IDLE_NS,
    ) -> Leg:
        """A connection for ``user``. One that has waited is ready at once; a new one calls
        ``leg_ready`` or ``leg_lost``. ``waited_ns``: for so long at most, 0: a new one."""
        waiting = self._idle.get(address) if waited_ns else None
        since_ns = self._clock() - waited_ns
        while waiting and waiting[-1].idle_since_ns >= since_ns:
            leg = waiting.pop()  # the newest: the others may run out
            if leg.transport is not None and not leg.transport.is_closing():
                leg.take_over(user, number)
                return leg
        leg = Leg(address, row, user, number, self._answers)
        task = self._loop.create_task(self._open(leg, timeout_s))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return leg

    def give_back(self, leg: Leg) -> None:
        """The request is over, and the backend keeps the connection."""
        transport = leg.transport
        if transport is None or transport.is_closing():
            leg.user = None
            return
        waiting = self._idle.setdefault(leg.address, [])
        if len(waiting) >= IDLE_MOST:
            leg.abort()
            return
        leg.user = None
        leg.body = leg.head = None
        leg.resume()
        leg.idle_since_ns = self._clock()
        waiting.append(leg)

    def sweep(self) -> None:
        """Close what has waited too long. To be called about once a second."""
        before_ns = self._clock() - IDLE_NS
        for address, waiting in list(self._idle.items()):
            kept = []
            for leg in waiting:
                if leg.transport is None or leg.transport.is_closing():
                    continue
                if leg.idle_since_ns < before_ns:
                    leg.transport.close()
                else:
                    kept.append(leg)
            if kept:
                self._idle[address] = kept
            else:
                del self._idle[address]

    @property
    def idle(self) -> int:
        """Connections without a request."""
        return sum(map(len, self._idle.values()))

    def close(self) -> None:
        """Close those without a request, and make no more."""
        for waiting in self._idle.values():
            for leg in waiting:
                leg.abort()
        self._idle.clear()
        for task in self._opening:
            task.cancel()

    async def _open(self, leg: Leg, timeout_s: float) -> None:
        reason = ""
        try:
            async with asyncio.timeout(timeout_s):
                await self._loop.create_connection(lambda: leg, leg.address.host, leg.address.port)
        except TimeoutError:
            reason = f"no connection within {timeout_s * 1000:g} ms"
        except ConnectionRefusedError:
            reason = REFUSED
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        if reason:
            user, leg.user = leg.user, None
            if user is not None:
                user.leg_lost(leg, reason, True)
