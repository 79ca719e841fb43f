# SPDX-License-Identifier: Apache-2.0
"""Reloads of the gateway: one at a time, at most one that waits, and who else wants a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from xdp_router.core.errors import ConfigError
from xdp_router.daemon.config_file import ConfigFile
from xdp_router.daemon.gateway import supervisor as supervisor_module
from xdp_router.daemon.gateway.generation import Document
from xdp_router.daemon.gateway.handover import HandoverError
from xdp_router.daemon.gateway.reloads import CannotReload, NothingToServe, Reloads, load
from xdp_router.daemon.gateway.supervisor import GatewayOptions, Supervisor
from xdp_router.daemon.tasks import Tasks

TEXT = (
    '[[listener]]\nname = "web"\ntype = "http"\naddress = "127.0.0.1:80"\n'
    '[[listener.backend]]\naddress = "127.0.0.1:8000"\n'
)

SERVICE = '[[service]]\naddress = "198.18.0.1:80"\n[[service.backend]]\naddress = "198.18.0.2:80"\n'


class Place:
    """Reloads of a file that take until ``go_on`` is set; ``brought``: what they were for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gateway.toml"
        self.path.write_text(TEXT)
        self.file = ConfigFile(self.path)
        self.brought: list[str] = []
        self.go_on = asyncio.Event()
        self.refusal = ""
        self.tasks = Tasks()
        self.reloads = Reloads(self.file, self.tasks, self._require, self._bring)

    def _require(self) -> None:
        if self.refusal:
            raise CannotReload(self.refusal)

    async def _bring(self, document: Document) -> None:
        self.brought.append(document.text)
        await self.go_on.wait()

    def say(self, text: str) -> None:
        """The file says that now."""
        self.path.write_text(text)


def run(work: Callable[[Place], Awaitable[None]], folder: Path) -> None:
    """In a loop of its own, which does not hang."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work(Place(folder))

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Wait for it."""
    while not condition():  # noqa: ASYNC110 - nobody tells of such a change
        await asyncio.sleep(0.001)


def test_many_hangups(tmp_path: Path) -> None:
    """Fifty are two reloads: the one that runs, and one for all that came meanwhile, which reads
    what the file says when its turn has come. Another one later is a third."""

    async def work(place: Place) -> None:
        reloads = place.reloads
        reloads.hang_up()
        await until(lambda: place.brought)
        for number in range(50):
            place.say(f"{TEXT}# {number}\n")
            reloads.hang_up()
            await asyncio.sleep(0)
        assert place.brought == [TEXT]
        place.go_on.set()
        await until(lambda: reloads.done == 2)
        assert place.brought == [TEXT, f"{TEXT}# 49\n"]
        reloads.hang_up()
        await until(lambda: reloads.done == 3)
        await asyncio.sleep(0.02)
        assert (reloads.done, reloads.refused, len(place.brought)) == (3, 0, 3)

    run(work, tmp_path)


def test_those_who_wait_get_the_same(tmp_path: Path) -> None:
    """Commands and signals share a turn and what becomes of it, counted and logged once; whoever
    goes away keeps nobody else from it."""

    async def work(place: Place) -> None:
        reloads = place.reloads
        first = asyncio.create_task(reloads.reload())
        await until(lambda: place.brought)
        place.say("[gateway]\n")
        with capture_logs() as lines:
            waiting = [asyncio.create_task(reloads.reload()) for _ in range(3)]
            for _ in range(3):
                reloads.hang_up()
            await asyncio.sleep(0)
            waiting[0].cancel()
            place.go_on.set()
            await first
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            await until(lambda: reloads.refused)
            await place.tasks.cancel()
        assert [type(each) for each in outcomes] == [asyncio.CancelledError, *[ConfigError] * 2]
        assert (reloads.done, reloads.refused, place.file.text) == (1, 1, TEXT)
        (line,) = [each for each in lines if each["event"] == "reload_refused"]
        assert "at least one" in line["reason"]

    run(work, tmp_path)


def test_a_dry_run(tmp_path: Path) -> None:
    """Says what would be, counts nothing, changes nothing."""

    async def work(place: Place) -> None:
        load(place.file)
        place.say(TEXT.replace("8000", "8001"))
        document = await place.reloads.check()
        assert document.config.listeners[0].backends[0].address.port == 8001
        place.say("nonsense")
        with pytest.raises(ConfigError):
            await place.reloads.check()
        place.say(SERVICE)
        with pytest.raises(NothingToServe, match=r"gateway.toml: there is no \[\[listener\]\]"):
            await place.reloads.check()
        assert (place.brought, place.file.text, place.reloads.refused) == ([], TEXT, 0)

    run(work, tmp_path)


def test_not_now(tmp_path: Path) -> None:
    """What is said then is what is in the way; the next one may be done."""

    async def work(place: Place) -> None:
        place.refusal = "the gateway is draining"
        with pytest.raises(CannotReload, match="draining"):
            await place.reloads.reload()
        place.refusal = ""
        place.go_on.set()
        await place.reloads.reload()
        assert (place.reloads.done, place.reloads.refused) == (1, 1)

    run(work, tmp_path)


def supervisor_of(place: Place) -> Supervisor:
    """That serves."""
    made: Any = Supervisor(place.file, load(place.file), GatewayOptions(place.path))
    made._means = SimpleNamespace(
        board_fd=5, rows=SimpleNamespace(all={"b": 1}), sockets=SimpleNamespace(all=dict)
    )
    made.state = "serving"
    found: Supervisor = made
    return found


@pytest.mark.parametrize("state", ["serving", "starting"])
def test_a_successor_waits_for_a_reload(tmp_path: Path, state: str) -> None:
    """Or for a start that is under way, and gets what there is afterwards."""

    async def work(place: Place) -> None:
        supervisor = supervisor_of(place)
        async with supervisor.reloads.lock:
            supervisor.state = state
            asked = asyncio.create_task(supervisor._legacy())
            await asyncio.sleep(0.02)
            assert not asked.done()
            supervisor.state = "serving"
        assert (await asked).rows == {"b": 1}

    run(work, tmp_path)


def test_a_successor_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for what will not be: it is told what is in the way."""
    monkeypatch.setattr(supervisor_module, "BUSY_S", 0.01)

    async def work(place: Place) -> None:
        supervisor = supervisor_of(place)
        async with supervisor.reloads.lock:
            with pytest.raises(HandoverError, match="reloading for 0 s: try again when"):
                await supervisor._legacy()
            supervisor.state = "draining"
            with pytest.raises(HandoverError, match="it is draining"):
                await supervisor._legacy()

    run(work, tmp_path)
