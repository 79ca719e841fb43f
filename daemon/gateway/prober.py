# SPDX-License-Identifier: Apache-2.0
"""Asks backends in the background how they are: the supervisor does it, for all workers.

One task for each way that a backend is asked: an address, what is asked, and how often. What is
found goes to the board. A listener in mode ``snapshot`` decides by it, hence its short interval;
the others only want to know who is there.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import h11
import structlog

from xdp_router.core.errors import XdpRouterError
from xdp_router.core.estimator import RttEstimator
from xdp_router.core.listeners import GatewayConfig, ProbeWay, SocketAddress
from xdp_router.core.model import Mode

from .board import ILL, RTT, RTT_AT, STATE, UNKNOWN, WELL, Board

SLOW_NS: Final = 1_000_000_000
"""How often a backend is asked whose answers nobody decides by."""
GOOD: Final = 2
BAD: Final = 3
"""So many answers in a row, or none, make a backend well, or ill."""
JITTER: Final = 0.1
_TIMEOUT_LEAST_S: Final = 0.2
_TIMEOUT_MOST_S: Final = 1.0
_HEAD_MAX: Final = 32 << 10
_BODY_MAX: Final = 1 << 20
_NOT_IMPLEMENTED: Final = 501
"""Of HEAD, by simple servers: it was answered."""
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: no TIME_WAIT for each probe

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """One way in which one backend is asked."""

    address: SocketAddress
    way: ProbeWay
    path: str = ""


class Refusal(XdpRouterError):
    """Nobody listens there: no need to ask again."""


class ProbeFailure(XdpRouterError):
    """No good answer; the text says why."""


def targets(config: GatewayConfig) -> dict[Target, int]:
    """Who is to be asked what, and how often, in nanoseconds."""
    found: dict[Target, int] = {}
    for listener in config.listeners:
        fast = listener.mode is Mode.SNAPSHOT
        interval_ns = listener.probe_interval_ns if fast else SLOW_NS
        for backend in listener.backends:
            path = "" if listener.probe is ProbeWay.CONNECT else listener.probe_path
            target = Target(backend.address, listener.probe, path)
            found[target] = min(interval_ns, found.get(target, interval_ns))
    return found


class Standing:
    """How one target is, from its answers."""

    def __init__(self) -> None:
        self.state = UNKNOWN
        self._good = self._bad = 0

    def good(self) -> None:
        """It has answered."""
        self._good, self._bad = self._good + 1, 0
        if self._good >= GOOD:
            self.state = WELL

    def bad(self, *, refused: bool = False) -> None:
        """It has not, or badly."""
        self._good, self._bad = 0, self._bad + 1
        if refused or self._bad >= BAD:
            self.state = ILL


class _Row:
    """All targets of one backend: it is ill if one of them is, well if all are. Its round trip is
    that of the target that is asked most often."""

    def __init__(self, board: Board, row: int, name: str) -> None:
        self._board, self._row, self._name = board, row, name
        self._standings: dict[Target, Standing] = {}
        self._intervals: dict[Target, int] = {}

    def join(self, target: Target, standing: Standing, interval_ns: int) -> None:
        self._standings[target], self._intervals[target] = standing, interval_ns

    def leave(self, target: Target) -> None:
        self._standings.pop(target, None)
        self._intervals.pop(target, None)

    def measured(self, target: Target, rtt_ns: int, now_ns: int) -> None:
        if rtt_ns and self._intervals[target] == min(self._intervals.values()):
            self._board.say(self._row, RTT, rtt_ns)
            self._board.say(self._row, RTT_AT, now_ns)

    def judged(self, why: str) -> None:
        states = {each.state for each in self._standings.values()}
        state = ILL if ILL in states else UNKNOWN if UNKNOWN in states else WELL
        before = self._board.common(self._row, STATE)
        if state == before:
            return
        self._board.say(self._row, STATE, state)
        if state == ILL:
            _log.warning("backend_ill", address=self._name, reason=why)
        elif before == ILL and state == WELL:
            _log.info("backend_well", address=self._name)


class Prober:
    """``clock_ns`` is the board's clock."""

    def __init__(self, board: Board, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._board = board
        self._clock_ns = clock_ns
        self._rows: dict[int, _Row] = {}
        self._running: dict[Target, tuple[int, int, asyncio.Task[None]]] = {}

    def follow(self, config: GatewayConfig, rows: Mapping[str, int]) -> None:
        """Ask those of a configuration from now on, and nobody else."""
        wanted = targets(config)
        for target in list(self._running):
            row, interval_ns, _ = self._running[target]
            if wanted.get(target) != interval_ns or rows[str(target.address)] != row:
                self._stop(target)
        for target, interval_ns in wanted.items():
            if target not in self._running:
                self._begin(target, interval_ns, rows[str(target.address)])

    def _begin(self, target: Target, interval_ns: int, row: int) -> None:
        shared = self._rows.setdefault(row, _Row(self._board, row, str(target.address)))
        work = _Work(target, interval_ns, shared, self._clock_ns)
        shared.join(target, work.standing, interval_ns)
        task = asyncio.create_task(work.run(), name=f"probing {target.address}")
        self._running[target] = (row, interval_ns, task)

    def _stop(self, target: Target) -> None:
        row, _, task = self._running.pop(target)
        task.cancel()
        self._rows[row].leave(target)
        if not any(each == row for each, _, _ in self._running.values()):
            del self._rows[row]

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = [task for _, _, task in self._running.values()]
        for target in list(self._running):
            self._stop(target)
        await asyncio.gather(*tasks, return_exceptions=True)


class _Work:
    """Asks one target until it is cancelled."""

    def __init__(
        self, target: Target, interval_ns: int, row: _Row, clock_ns: Callable[[], int]
    ) -> None:
        self.standing = Standing()
        self._target = target
        self._interval_s = interval_ns / 1e9
        self._timeout_s = min(max(10 * self._interval_s, _TIMEOUT_LEAST_S), _TIMEOUT_MOST_S)
        self._row = row
        self._clock_ns = clock_ns
        self._estimator = RttEstimator()
        self._http = HttpProbe(target) if target.way is not ProbeWay.CONNECT else None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + random.random() * min(self._interval_s, 0.1)
        try:
            while True:
                await asyncio.sleep(due_s - loop.time())
                await self._once()
                spread = 1 + random.uniform(-JITTER, JITTER)
                due_s = max(due_s + self._interval_s * spread, loop.time())
        finally:
            if self._http is not None:
                self._http.close()

    async def _once(self) -> None:
        sent_ns = self._clock_ns()
        self._estimator.sent(sent_ns)
        probe = asyncio.ensure_future(self._probe())
        why = ""
        refused = False
        try:
            while not probe.done():
                await asyncio.wait({probe}, timeout=self._interval_s)
                now_ns = self._clock_ns()
                if not probe.done():
                    self._tell(now_ns)
                    if now_ns - sent_ns > self._timeout_s * 1e9:
                        why = f"no answer within {self._timeout_s * 1000:.0f} ms"
                        break
            else:
                rtt_ns = probe.result()
                self._estimator.answered(sent_ns, rtt_ns)
        except Refusal as error:
            why, refused = str(error), True
        except (OSError, XdpRouterError) as error:
            why = getattr(error, "strerror", None) or str(error)
        finally:
            if not probe.done():
                probe.cancel()
                await asyncio.gather(probe, return_exceptions=True)
        if why:
            # What it owes stays unanswered: it looks the slower the longer that is so.
            self.standing.bad(refused=refused)
        else:
            self._tell(self._clock_ns())
            self.standing.good()
        self._row.judged(why.lower())

    def _tell(self, now_ns: int) -> None:
        self._row.measured(self._target, self._estimator.rtt_ns(now_ns), now_ns)

    async def _probe(self) -> int:
        if self._http is not None:
            return await self._http.ask(self._clock_ns)
        begin_ns = self._clock_ns()
        with await connected(self._target.address):
            return self._clock_ns() - begin_ns


async def connected(address: SocketAddress) -> socket.socket:
    """A connection; its end is a RST. Raises OSError, Refusal."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    except ConnectionRefusedError as error:
        sock.close()
        raise Refusal("connection refused") from error
    except BaseException:
        sock.close()
        raise
    return sock


class HttpProbe:
    """Asks over a connection that is kept as long as the backend keeps it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sock: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, clock_ns: Callable[[], int]) -> int:
        """Time from the request to the end of the answer. Raises OSError, Refusal, ProbeFailure."""
        kept = self._sock is not None
        try:
            return await self._ask(clock_ns)
        except (OSError, ProbeFailure):
            self.close()
            if not kept:
                raise
        except BaseException:
            self.close()
            raise
        # It had closed what we kept: that is its right.
        try:
            return await self._ask(clock_ns)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up. Calling it again does nothing."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    async def _ask(self, clock_ns: Callable[[], int]) -> int:
        loop = asyncio.get_running_loop()
        if self._sock is None:
            self._sock = await connected(self._target.address)
            self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_MAX)
        begin_ns = clock_ns()
        try:
            request = h11.Request(
                method=self._target.way.value.upper(),
                target=self._target.path,
                headers=[
                    ("Host", str(self._target.address)),
                    ("User-Agent", "xdp-router"),
                    ("Accept", "*/*"),
                ],
            )
            data = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
            await loop.sock_sendall(self._sock, data)
            status = await self._answer(loop, self._sock)
            took_ns = clock_ns() - begin_ns
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
            else:
                self.close()
        except h11.RemoteProtocolError as error:
            raise ProbeFailure(f"no good HTTP: {error}") from error
        if status >= 500 and status != _NOT_IMPLEMENTED:
            raise ProbeFailure(f"status {status}")
        return took_ns

    async def _answer(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> int:
        status = length = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await loop.sock_recv(sock, 1 << 14))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                length += len(event.data)
                if length > _BODY_MAX:
                    raise ProbeFailure(f"the answer is longer than {_BODY_MAX >> 20} MiB")
            elif isinstance(event, h11.EndOfMessage):
                return status
            elif not isinstance(event, h11.InformationalResponse):
                raise ProbeFailure("the connection was closed before there was an answer")
