# SPDX-License-Identifier: Apache-2.0
"""A gateway that starts its successor, which is a few lines of Python here."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.former import VARIABLE
from xdp_router.daemon.gateway import upgrade as upgrade_module
from xdp_router.daemon.gateway.detached import Detached
from xdp_router.daemon.gateway.handover import HandoverError
from xdp_router.daemon.gateway.reloads import CannotReload
from xdp_router.daemon.gateway.upgrade import (
    PARENT_VARIABLE,
    CannotUpgrade,
    Upgrades,
    environment_of_successor,
    own_command,
    require_possible,
)
from xdp_router.daemon.tasks import Tasks
from xdp_router.daemon.watchdog import watchdog_interval_s

FAILS = f"import os; os.write(int(os.environ[{VARIABLE!r}]), b'no listener')"
DIES = "import os; os._exit(1)"
LIVES = "import time; time.sleep(600)"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Hears what is said to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


class Place:
    """``started`` is the pid of the successor, when there is one."""

    def __init__(self, text: str) -> None:
        self.refusal = ""
        self.lock = asyncio.Lock()
        self.tasks = Tasks()
        command = [sys.executable, "-I", "-S", "-c", text]
        self.upgrades = Upgrades(self.tasks, self._require, self.lock, command)

    def _require(self) -> None:
        if self.refusal:
            raise CannotReload(self.refusal)

    async def started(self) -> int:
        """Pid of the successor."""
        while (successor := self.upgrades._successor) is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
        return successor.pid


def run(work: Callable[[Place], Awaitable[None]], text: str) -> None:
    """In a loop of its own, which does not hang."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work(Place(text))

    asyncio.run(bounded())


def is_gone(pid: int) -> bool:
    """Ended, whether somebody has seen that or not."""
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or ") Z " in state.read_text()


def silent(systemd: socket.socket) -> bool:
    """Whether nothing was said."""
    try:
        systemd.recv(1000)
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "why"), [(FAILS, "failed: no listener\n"), (DIES, "ended without a word")]
)
def test_a_successor_that_fails(systemd: socket.socket, text: str, why: str) -> None:
    """It says why; nothing has changed, and another one may be tried."""

    async def work(place: Place) -> None:
        for _ in range(2):
            with capture_logs() as lines, pytest.raises(CannotUpgrade, match=why) as caught:
                await place.upgrades.upgrade()
            assert f"Nothing has changed: process {os.getpid()} goes on." in str(caught.value)
            assert [each["event"] for each in lines] == ["successor_started", "upgrade_failed"]
            assert not place.upgrades.busy
        assert silent(systemd)

    run(work, text)


def test_one_that_serves(systemd: socket.socket) -> None:
    """systemd is told, then; and hears nothing more of us."""

    async def work(place: Place) -> None:
        asked = asyncio.create_task(place.upgrades.upgrade())
        pid = await place.started()
        assert place.upgrades.busy
        assert silent(systemd)
        place.upgrades.taken(pid, "9.9")
        assert systemd.recv(1000) == f"MAINPID={pid}\nWATCHDOG=1".encode()
        assert "NOTIFY_SOCKET" not in os.environ
        assert await asked == {"pid": pid, "version": "9.9", "former": os.getpid()}
        await place.upgrades.cancel()
        assert not is_gone(pid)
        os.kill(pid, 9)

    run(work, LIVES)


def test_one_that_somebody_else_started(systemd: socket.socket) -> None:
    """It is not systemd's business; ours is too late."""

    async def work(place: Place) -> None:
        place.upgrades.taken(77, "9.9")
        asked = asyncio.create_task(place.upgrades.upgrade())
        pid = await place.started()
        place.upgrades.taken(78, "9.9")
        with pytest.raises(CannotUpgrade, match=r"\(process 78\) has taken over meanwhile"):
            await asked
        assert is_gone(pid)
        assert silent(systemd)
        assert "NOTIFY_SOCKET" in os.environ

    run(work, LIVES)


def test_one_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and does not take over in its last moment."""
    monkeypatch.setattr(upgrade_module, "LIMIT_S", 0.05)

    async def work(place: Place) -> None:
        end, late = Detached.end, []

        async def meanwhile(successor: Detached) -> None:
            late.append(successor.pid)
            with pytest.raises(HandoverError, match="given up"):
                place.upgrades.taken(successor.pid, "9.9")
            await end(successor)

        monkeypatch.setattr(Detached, "end", meanwhile)
        with pytest.raises(CannotUpgrade, match="did not serve within 0 s, and was ended"):
            await place.upgrades.upgrade()
        assert [is_gone(pid) for pid in late] == [True]

    run(work, LIVES)


def test_the_gateway_is_told_to_stop() -> None:
    """So is the one that does not serve yet."""

    async def work(place: Place) -> None:
        asked = asyncio.create_task(place.upgrades.upgrade())
        pid = await place.started()
        await place.upgrades.cancel()
        with pytest.raises(CannotUpgrade, match="told to stop meanwhile"):
            await asked
        assert is_gone(pid)

    run(work, LIVES)


def test_not_now() -> None:
    """One at a time, and neither while it reloads nor while it drains; SIGUSR2 says so in the log.
    Who asked may go meanwhile."""

    async def work(place: Place) -> None:
        upgrades = place.upgrades
        place.refusal = "the gateway is draining"
        with pytest.raises(XdpRouterError, match="draining"):
            await upgrades.upgrade()
        place.refusal = ""
        async with place.lock:
            with pytest.raises(CannotUpgrade, match="reading its configuration"):
                await upgrades.upgrade()
        asked = asyncio.create_task(upgrades.upgrade())
        pid = await place.started()
        with pytest.raises(CannotUpgrade, match="an upgrade is under way"):
            await upgrades.upgrade()
        asked.cancel()
        with capture_logs() as lines:
            upgrades.signalled()
            while not lines:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        assert (lines[0]["event"], lines[0]["consequence"]) == ("upgrade_failed", "it goes on")
        assert not is_gone(pid)
        await upgrades.cancel()
        assert is_gone(pid)

    run(work, LIVES)


def test_where_it_cannot_be() -> None:
    """Under whoever starts another one, and as the first process of a container."""
    require_possible({}, 5, 4)
    require_possible({PARENT_VARIABLE: "3"}, 5, 1)  # that one has ended
    with pytest.raises(CannotUpgrade, match="run by the router's daemon"):
        require_possible({PARENT_VARIABLE: "4"}, 5, 4)
    with pytest.raises(CannotUpgrade, match="is process 1"):
        require_possible({}, 1, 0)


def test_who_is_watched() -> None:
    """The successor, if this process is; what is another one's stays that one's."""
    environment = {"WATCHDOG_PID": "5", "WATCHDOG_USEC": "9", "NOTIFY_SOCKET": "/x", "A": "b"}
    assert environment_of_successor(environment, 4) == environment
    del (theirs := environment_of_successor(environment, 4))["WATCHDOG_PID"]
    assert environment_of_successor(environment, 5) == theirs
    assert watchdog_interval_s(theirs, 6) == 9e-6 / 2


def test_the_same_command() -> None:
    """What the interpreter was given, by its path."""
    assert own_command() == [sys.executable, *sys.orig_argv[1:]]
    assert os.path.isabs(own_command()[0])
