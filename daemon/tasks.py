# SPDX-License-Identifier: Apache-2.0
"""What runs beside everything else: made here, kept, named, and ended at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from .app import Router
    from .garbage import GarbageKeeper

AGAIN_S = 1.0
"""How long after a fault work begins again that has to go on."""

CANCELLATIONS, CANCEL_S = 5, 1.0
"""How often a task is cancelled that does not end, and after how long each time."""

_log = structlog.get_logger()


class Tasks:
    """Tasks of one router. One that fails is told in the log, and ends no other."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin, in the running loop. ``name``: for the log."""
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """The same with work that goes on until it is cancelled: if it fails, it begins again.

        A map that cannot be read or written, because memory is short, must not be the end of it.
        """
        self.spawn(_again_and_again(work, name), name)

    async def cancel(self) -> None:
        """Cancel all of them, and wait until they have ended.

        Again and again: a task may swallow a cancellation that comes together with what it waits
        for. One that goes on all the same is named, and left.
        """
        for _ in range(CANCELLATIONS):
            tasks = list(self._running)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_S)
        for task in self._running:
            _log.error("task_not_ended", task=task.get_name(), consequence="it is left")

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_failed", task=task.get_name(), error=repr(task.exception()))


async def _again_and_again(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    told = ""
    while True:
        try:
            await work()
            return
        except Exception as error:
            if repr(error) != told:  # once: it may go on for long
                told = repr(error)
                _log.error("task_failed", task=name, error=told, consequence="it begins again")
        await asyncio.sleep(AGAIN_S)


def keep_up(router: Router, garbage: GarbageKeeper) -> None:
    """Begin all that goes on beside the event loop's own work for as long as the router runs."""
    keep = router.tasks.keep
    keep(router.ager.run, "aging")
    keep(router.figures.latencies.run, "latencies")
    if router.config.settings.metrics is not None:
        keep(router.figures.fill.run, "map fill")
    keep(router.shares.run, "event shares")
    keep(router.service_watch.run, "service watch")
    keep(router.forwarding.run, "forwarding")
    keep(router.scraper.run, "scraper")
    keep(router.handoff.run, "hand-off")
    keep(router.attachments.run, "attachments")
    keep(garbage.run, "garbage")
    keep(router.health.watch, "signs of backends")
    keep(router.health.work, "dead backends")
    keep(router.steering.look, "local routes")
    keep(router.steering.follow, "the gateway's sockets")
