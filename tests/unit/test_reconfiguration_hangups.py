# SPDX-License-Identifier: Apache-2.0
"""Signals that have the router read its file again: one reload that runs, and one that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from xdp_router.core.changes import Changes
from xdp_router.daemon.config_file import ConfigFile
from xdp_router.daemon.reconfiguration import Reconfiguration
from xdp_router.daemon.tasks import Tasks

TEXT = (
    '[[service]]\naddress = "198.18.0.1:80"\n[[service.backend]]\naddress = "198.18.0.2:80"\n'
    '[[service.backend]]\naddress = "198.18.0.3:80"\n'
)


class Slow(Reconfiguration):
    """Takes until ``go_on`` is set; ``brought``: how many backends there were to be."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "router.toml"
        self.path.write_text(TEXT)
        source = ConfigFile(self.path)
        source.text = TEXT
        self.router = SimpleNamespace(ready=True, gateway=None, tasks=Tasks())
        super().__init__(self.router, source)  # type: ignore[arg-type] # all that is asked of it
        self.go_on = asyncio.Event()
        self.brought: list[int] = []

    async def bring(self, wanted: Any, *, dry_run: bool = False) -> Changes:
        """As the router's own, which is not there."""
        self.brought.append(len(wanted.services[0].backends))
        await self.go_on.wait()
        return Changes(())


async def until(condition: Callable[[], object]) -> None:
    """Wait for it."""
    while not condition():  # noqa: ASYNC110 - nobody tells of such a change
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("ready", [True, False])
def test_many_hangups(tmp_path: Path, ready: bool) -> None:
    """The one that waits stands for all that came, and reads what the file says when its turn has
    come; also behind one that was refused."""

    async def work() -> None:
        made = Slow(tmp_path)
        if not ready:
            made.router.ready = False
            with capture_logs() as lines:
                made.hang_up()
                await until(lambda: lines)
            assert lines[0]["event"] == "reload_refused"
            made.router.ready = True
        made.hang_up()
        await until(lambda: made.brought)
        made.path.write_text(TEXT[: TEXT.rindex("[[")])
        for _ in range(50):
            made.hang_up()
            await asyncio.sleep(0)
        made.go_on.set()
        await until(lambda: len(made.brought) > 1)
        made.hang_up()
        await until(lambda: len(made.brought) > 2)
        await asyncio.sleep(0.05)
        assert made.brought == [2, 1, 1]

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())
