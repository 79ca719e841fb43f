# SPDX-License-Identifier: Apache-2.0
"""What the gateway answers on its control socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from xdp_router import __version__
from xdp_router.adapters.control import CommandError, Handler
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import Listener, ListenerBackend

from .board import ILL, RTT, RTT_AT, STATE, WELL
from .worker_process import WorkerProcess

if TYPE_CHECKING:
    from .supervisor import Supervisor

RECENT_S: Final = 60.0
"""How old a first-token time may be that is shown."""
LIMIT: Final = 100
_STATES: Final = {WELL: "well", ILL: "ill"}


class ControlCommands:
    """``reading`` may be asked by whoever may use the socket; ``changing`` by root alone, and the
    gateway's own user."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.reading: dict[str, Handler] = {
            "status": self._status,
            "listeners": self._listeners,
            "backends": self._backends,
            "streams": self._streams,
            "decisions": self._decisions,
            "explain": self._explain,
        }
        self.changing: dict[str, Handler] = {
            "reload": self._reload,
            "drain": self._drain,
            "upgrade": self._upgrade,
            "push": self._push,
        }

    async def _status(self, _args: Mapping[str, Any]) -> dict[str, Any]:
        supervisor = self._supervisor
        await supervisor.look()
        workers = [
            {
                "pid": worker.pid,
                "state": worker.state,
                "generation": generation.number,
                "connections": worker.open,
                "uptime_s": round(time.monotonic() - worker.started_s, 1),
            }
            for generation in supervisor.generations
            for worker in generation.workers
        ]
        config = supervisor.config
        return {
            "state": supervisor.state,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - supervisor.started_s, 1),
            "config": supervisor.file.shown,
            "listeners": len(config.listeners),
            "backends": len({each.address for one in config.listeners for each in one.backends}),
            "connections": sum(each.open for each in supervisor.workers),
            "generation": supervisor.generation,
            "workers": workers,
            "control_arms": [
                supervisor.hearsay.arms.view(each) for each in config.listeners if each.control_arm
            ],
        }

    def _listeners(self, _args: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "type": each.kind.value,
                "address": str(each.address),
                "mode": each.mode.name.lower(),
                "policy": each.policy.value,
                "tls": each.certificate is not None,
                "backends": len(each.backends),
                "routes": len(each.routes),
            }
            for each in self._supervisor.config.listeners
        ]

    def _backends(self, _args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._require_started()
        return self._backend_rows(time.monotonic_ns())

    def _require_started(self) -> None:
        if self._supervisor.state == "starting":
            raise CommandError("the gateway is starting: try again in a moment")

    def _push(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self._require_started()
        return self._supervisor.hearsay.push(args)

    def _backend_rows(self, now_ns: int) -> Iterator[dict[str, Any]]:
        for listener in self._supervisor.config.listeners:
            for backend in listener.backends:
                yield self._backend(listener, backend, now_ns)

    def _backend(self, listener: Listener, backend: ListenerBackend, now_ns: int) -> dict[str, Any]:
        board = self._supervisor.board
        row = self._supervisor.rows.all[str(backend.address)]
        rtt_at = board.common(row, RTT_AT)
        held_ns = board.held_until_ns(row) - now_ns
        return {
            "listener": listener.name,
            "name": backend.name,
            "address": str(backend.address),
            "state": _STATES.get(board.common(row, STATE), "unknown"),
            "rtt_us": _us(board.common(row, RTT)) if rtt_at else None,
            "rtt_age_s": round(max(now_ns - rtt_at, 0) / 1e9, 3) if rtt_at else None,
            "in_flight": board.in_flight(row),
            "ttft_us": _us(board.ttft_ns(row, now_ns - int(RECENT_S * 1e9))),
            "held_s": round(held_ns / 1e9, 3) if held_ns > 0 else 0.0,
            "weight": backend.weight,
            "models": list(backend.models),
            **self._supervisor.hearsay.view(listener, backend),
        }

    async def _streams(self, args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        rows = await self._ask_all("streams")
        return iter(rows[: _limit(args, len(rows))])

    async def _decisions(self, args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        limit = _limit(args, LIMIT)
        rows = await self._ask_all("decisions", limit=limit)
        # A worker that is about to end has told them already, and was asked all the same.
        twice = {_key(each) for each in rows}
        told = self._supervisor.remembered.newest(limit)
        rows += [each for each in told if _key(each) not in twice]
        rows.sort(key=lambda each: each.get("time_s", 0), reverse=True)
        return iter(rows[:limit])

    async def _ask_all(self, what: str, **args: object) -> list[dict[str, Any]]:
        workers = self._supervisor.workers
        answers = await asyncio.gather(*(each.ask(what, **args) for each in workers))
        return list(_flat(workers, answers))

    async def _explain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        request = args.get("request")
        if not isinstance(request, str) or not request:
            raise CommandError("explain needs a request: its ID, as 'decisions' shows it")
        workers = self._supervisor.workers
        answers = await asyncio.gather(*(each.ask("explain", request=request) for each in workers))
        for worker, answer in zip(workers, answers, strict=True):
            if answer is not None:
                return {"worker": worker.pid, **answer}
        told = self._supervisor.remembered.find(request)
        if told is not None:
            return told
        raise CommandError(
            f"no request {request} is known: it may be older than the decisions that are kept, or "
            "its worker has died: 'xdp-router gateway decisions' shows which there are"
        )

    async def _reload(self, args: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._supervisor.reload(dry_run=bool(args.get("dry_run")))
        except XdpRouterError as error:
            raise CommandError(str(error)) from error

    async def _upgrade(self, _args: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._supervisor.upgrades.upgrade()
        except XdpRouterError as error:
            raise CommandError(str(error)) from error

    def _drain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self._supervisor.stop(now=bool(args.get("now")))
        return {
            "connections": sum(each.open for each in self._supervisor.workers),
            "timeout_s": self._supervisor.config.drain_timeout_ns / 1e9,
        }


def _us(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1000


def _flat(workers: Iterable[WorkerProcess], answers: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for worker, answer in zip(workers, answers, strict=True):
        for each in answer or ():
            yield {"worker": worker.pid, **each}


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    """One request of one worker."""
    return row["worker"], row.get("id"), row.get("time_s")


def _limit(args: Mapping[str, Any], default: int) -> int:
    limit = args.get("limit", default)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise CommandError("limit must be a whole number from 0 on")
    return limit
