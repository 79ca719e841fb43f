# SPDX-License-Identifier: Apache-2.0
"""What the gateway's control socket answers from what workers say; whole runs are in netns."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from xdp_router.adapters.control import CommandError
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon.gateway.control_commands import ControlCommands
from xdp_router.daemon.gateway.kept import Remembered
from xdp_router.daemon.gateway.supervisor import Supervisor


class Worker:
    """A worker with such decisions, oldest first; None: it does not answer."""

    def __init__(self, pid: int, *times: float, silent: bool = False) -> None:
        self.pid, self.open = pid, 2
        self._times, self._silent = times, silent

    async def ask(self, what: str, **args: Any) -> Any:
        """Answer as a worker does."""
        if self._silent:
            return None
        if what == "explain":
            known = args["request"] == f"r{self.pid}"
            return {"request": args["request"], "winner": "b1"} if known else None
        if what == "streams":
            return [{"id": f"r{self.pid}"}]
        return [{"request": str(each), "time_s": each} for each in self._times[-args["limit"] :]]


class Gateway:
    """What the commands ask of a supervisor."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = workers
        self.config = GatewayConfig(drain_timeout_ns=5 * 10**9)
        self.remembered = Remembered(9)
        self.stops: list[bool] = []
        self.refusal = ""

    def stop(self, *, now: bool) -> None:
        """Noted."""
        self.stops.append(now)

    async def reload(self, *, dry_run: bool) -> dict[str, Any]:
        """As asked."""
        if self.refusal:
            raise XdpRouterError(self.refusal)
        return {"applied": not dry_run}


def ask(gateway: Gateway, command: str, **args: object) -> Any:
    """One command's data."""
    commands = ControlCommands(cast(Supervisor, gateway))

    async def work() -> Any:
        data = {**commands.reading, **commands.changing}[command](args)
        return await data if asyncio.iscoroutine(data) else data

    data = asyncio.run(work())
    return list(data) if hasattr(data, "__next__") else data


def test_decisions_of_all_workers() -> None:
    """The newest first, with who made them; a worker that is about to end has none."""
    gateway = Gateway(Worker(1, 1.0, 4.0), Worker(2, 2.0, 3.0), Worker(3, silent=True))
    found = ask(gateway, "decisions")
    assert [(each["time_s"], each["worker"]) for each in found] == [
        *((4.0, 1), (3.0, 2), (2.0, 2), (1.0, 1))
    ]
    assert [each["time_s"] for each in ask(gateway, "decisions", limit=1)] == [4.0]
    for worker, at_s in ((9, 2.5), (1, 4.0)):  # that one is there, and about to end
        told = {"request": str(at_s), "time_s": at_s, "timeline": []}
        gateway.remembered.add(worker, [(f"r{worker}", at_s, json.dumps(told))])
    found = ask(gateway, "decisions", limit=4)
    assert [(each["time_s"], each["worker"]) for each in found] == [
        *((4.0, 1), (3.0, 2), (2.5, 9), (2.0, 2))
    ]
    assert [each["id"] for each in ask(gateway, "streams")] == ["r1", "r2"]
    assert len(ask(gateway, "streams", limit=1)) == 1


@pytest.mark.parametrize("limit", [-1, 1.5, "3", True])
def test_a_wrong_limit(limit: object) -> None:
    """It is told what one would be."""
    for command in ("decisions", "streams"):
        with pytest.raises(CommandError, match="a whole number from 0 on"):
            ask(Gateway(), command, limit=limit)


def test_explain() -> None:
    """Whoever knows the request answers; where nobody does, what may be the reason is said."""
    gateway = Gateway(Worker(1), Worker(2), Worker(3, silent=True))
    assert ask(gateway, "explain", request="r2") == {"worker": 2, "request": "r2", "winner": "b1"}
    with pytest.raises(CommandError, match="no request r9 is known: .*'xdp-router gateway dec"):
        ask(gateway, "explain", request="r9")
    told = {"id": "r9", "time_s": 1.0, "timeline": []}
    gateway.remembered.add(9, [("r9", 1.0, json.dumps(told)), ("r2", 1.0, "{}")])
    assert ask(gateway, "explain", request="r9") == {"worker": 9, **told}
    assert ask(gateway, "explain", request="r2")["worker"] == 2
    for wrong in ("", 5, None):
        with pytest.raises(CommandError, match="needs a request"):
            ask(gateway, "explain", request=wrong)


def test_drain() -> None:
    """How much there is to finish, and how long it may take."""
    gateway = Gateway(Worker(1), Worker(2))
    assert ask(gateway, "drain") == {"connections": 4, "timeout_s": 5.0}
    ask(gateway, "drain", now=True)
    assert gateway.stops == [False, True]


def test_reload() -> None:
    """A refusal is an answer."""
    gateway = Gateway()
    assert ask(gateway, "reload", dry_run=True) == {"applied": False}
    gateway.refusal = "no"
    with pytest.raises(CommandError, match="^no$"):
        ask(gateway, "reload")


def test_who_may_what() -> None:
    """What changes anything is apart from what only looks."""
    commands = ControlCommands(cast(Supervisor, SimpleNamespace()))
    assert set(commands.changing) == {"reload", "drain", "push", "upgrade"}
    assert set(commands.reading) == {
        *("status", "listeners", "backends", "streams", "decisions", "explain")
    }
