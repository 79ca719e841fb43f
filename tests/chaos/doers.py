# SPDX-License-Identifier: Apache-2.0
"""Makes trouble, and ends it: servers, links and floods, and what is done to the daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.router import Router
from xdp_router.lab import links

from .cast import BY_NAME, HOSTS, Wishes
from .schedule import Kind, Trouble

SYN_RATE = 6_000
UDP_RATE = 1_000
"""A second: the first is three times the event budget, the second as much as the servers bear."""
OPTIONS = ("--persist",)
_LINES = 40
"""Of the daemon's log that are told with a connection that was lost."""

Act = Callable[[Trouble], None]


def _nothing(_trouble: Trouble) -> None:
    """There is nothing to do."""


class Flooder:
    """The process that floods, from the clients' namespace; a context manager."""

    def __init__(self, router: Router, seed: int) -> None:
        macs = (links.mac(0, 0, 1) + links.mac(0, 0, 2)).replace(":", "")
        targets = [BY_NAME[name].address for name in ("web4", "ask4")]
        argv = [sys.executable, "-m", "tests.chaos.flooder", macs]
        argv += [f"{address}:{port}" for address, port in targets]
        self._process = router.lab.client.spawn(
            [*argv, str(seed)],
            name="flooder",
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.sent = 0

    def __enter__(self) -> Flooder:
        assert self._line() == b"ready\n"
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _t: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return bytes(self._process.stdout.readline())

    def begin(self, what: str, rate: int, for_s: float) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {rate} {for_s}\n".encode())
        self._process.stdin.flush()

    def wait(self) -> None:
        """Until it is over."""
        self.sent += int(json.loads(self._line())["sent"])


class Doers:
    """What happens to one router and its lab. ``wishes`` is what its configuration says."""

    def __init__(self, router: Router, flooder: Flooder, wishes: Wishes) -> None:
        self._router = router
        self._lab = router.lab
        self._flooder = flooder
        self._wishes = wishes
        self.logs: list[str] = []
        """Of the daemons that are gone."""
        host: dict[Kind, tuple[Act, Act]] = {
            Kind.KILL: (self._on_host("kill_backend"), self._on_host("start_backend")),
            Kind.STALL: (self._on_host("pause_backend"), self._on_host("resume_backend")),
            Kind.HOST_FLAP: (self._on_host("down_backend"), self._on_host("up_backend")),
            Kind.ROUTER_FLAP: (self._link(False), self._link(True)),
            Kind.CLIENT_FLAP: (self._link(False), self._link(True)),
            Kind.SYN_FLOOD: (self._flood("syn", SYN_RATE), self._flood_over),
            Kind.UDP_FLOOD: (self._flood("udp", UDP_RATE), self._flood_over),
        }
        control: dict[Kind, tuple[Act, Act]] = {
            Kind.DAEMON_KILL: (self._end_daemon(signal.SIGKILL), self._start_daemon),
            Kind.RESTART: (self._end_daemon(signal.SIGTERM), self._start_daemon),
            Kind.WEIGHTS: (self._weigh, _nothing),
            Kind.REMOVE: (self._remove, self._bring_back),
            Kind.DRAIN: (self._ask("drain"), self._ask("undrain")),
            Kind.MODE: (self._set_mode, _nothing),
        }
        self._acts = host | control

    def begin(self, trouble: Trouble) -> None:
        """Make it."""
        self._acts[trouble.kind][0](trouble)

    def end(self, trouble: Trouble) -> None:
        """Undo it."""
        self._acts[trouble.kind][1](trouble)

    # Hosts, links, floods

    def _on_host(self, method: str) -> Act:
        act = getattr(self._lab, method)
        return lambda trouble: act(trouble.target)

    def _link(self, up: bool) -> Act:
        def act(trouble: Trouble) -> None:
            name = f"be{HOSTS.index(trouble.target) + 1}" if trouble.target else "client0"
            links.set_up(self._lab.router, name, up)

        return act

    def _flood(self, what: str, rate: int) -> Act:
        return lambda trouble: self._flooder.begin(what, rate, trouble.for_s)

    def _flood_over(self, _trouble: Trouble) -> None:
        self._flooder.wait()

    # The daemon

    def start_daemon(self) -> None:
        """With what is wished."""
        if self._router.log.exists():
            self.logs.append(self._router.log.read_text())
        self._router.start(self._wishes.text(), *OPTIONS)

    def _start_daemon(self, _trouble: Trouble) -> None:
        self.start_daemon()

    def _end_daemon(self, number: signal.Signals) -> Act:
        expected = 0 if number is signal.SIGTERM else -number

        def act(_trouble: Trouble) -> None:
            code = self._router.stop(number)
            assert code == expected, f"the daemon ended with {code}, not {expected}"

        return act

    def _reload(self) -> None:
        self._router.config.write_text(self._wishes.text())
        self._router.ask("reload", dry_run=False)

    def _weigh(self, trouble: Trouble) -> None:
        self._wishes.weights[trouble.target] = int(trouble.detail)
        self._reload()

    def _remove(self, trouble: Trouble) -> None:
        self._wishes.absent.add(trouble.target)
        self._reload()

    def _bring_back(self, trouble: Trouble) -> None:
        self._wishes.absent.discard(trouble.target)
        self._reload()

    def _set_mode(self, trouble: Trouble) -> None:
        self._wishes.modes[trouble.target] = trouble.detail
        keys = {"mode": trouble.detail}
        self._router.ask("service", verb="set", name=trouble.target, keys=keys)

    def _ask(self, command: str) -> Act:
        def act(trouble: Trouble) -> None:
            self._router.ask(command, backend=trouble.target)

        return act

    def explain(self, client: str) -> dict[str, Any]:
        """What the router knows of a connection, as far as somebody can be asked."""
        found: dict[str, Any] = {}
        try:
            found["explain"] = self._router.ask("explain", client=client)
        except Exception as error:
            found["explain"] = str(error)
        try:
            rows = self._router.json("flows", "--client", client.partition("/")[0])
            found["flows"] = rows
        except (AssertionError, Exception) as error:
            found["flows"] = str(error)
        if self._router.log.exists():
            found["log"] = self._router.log.read_text().splitlines()[-_LINES:]
        return found
