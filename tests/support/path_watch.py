# SPDX-License-Identifier: Apache-2.0
"""Conversations with a watcher of the path to one address."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire
from xdp_router.adapters.netlink import LinkEvent, Path, PathWatcher

_Result = TypeVar("_Result")
PathChange = tuple[int, Path | None, str]


async def do(action: Callable[[IPRoute], _Result]) -> _Result:
    """Run blocking netlink work beside the event loop; the thread inherits the namespace."""

    def run() -> _Result:
        with IPRoute() as ipr:
            return action(ipr)

    return await asyncio.to_thread(run)


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 5.0) -> None:
    """Let the loop run until something is so; fail if it takes too long."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)


class Watch:
    """A watcher with what it reported."""

    def __init__(self, refresh_ns: int = 3_000_000_000, grace_ns: int = 300_000_000) -> None:
        self.changes: list[PathChange] = []
        self.links: list[LinkEvent] = []
        self.watcher = PathWatcher(
            lambda addr, path, reason: self.changes.append((addr, path, reason)),
            self.links.append,
            refresh_ns=refresh_ns,
            loss_grace_ns=grace_ns,
        )

    @property
    def path(self) -> Path | None:
        """What was reported last."""
        return self.changes[-1][1] if self.changes else None

    @property
    def reason(self) -> str:
        """Why there is none."""
        return self.changes[-1][2] if self.changes else ""

    def saw(self, what: str, name: str) -> bool:
        """Whether a change of an interface was reported."""
        return any(event.what == what and event.link.name == name for event in self.links)


def watch_wire(
    lay: Callable[[IPRoute], Wire],
    addr: int,
    conversation: Callable[[Wire, Watch], Awaitable[None]],
    watch: Watch,
) -> None:
    """Lay a wire, watch ``addr``, which has to be reached, and go on with the conversation."""

    async def main() -> None:
        try:
            watch.watcher.start([addr])
            await until(lambda: watch.path is not None, "first resolution")
            await conversation(wire, watch)
        finally:
            watch.watcher.close()

    with IPRoute() as ipr:
        wire = lay(ipr)
        try:
            asyncio.run(main())
        finally:
            os.close(wire.far_ns)
