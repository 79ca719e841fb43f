# SPDX-License-Identifier: Apache-2.0
"""How long our gateway takes to decide, by its own records of requests under load.

From the request's head (``llm``: its body, which has to be there, as well) to the moment at which
it is known who is asked: routes, tenants, what is known of each backend, the choice, and the head
as it goes on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Row, Table, percentile
from xdp_router.adapters.control_client import ControlClient
from xdp_router.core.config import parse_config
from xdp_router.daemon.gateway.board import RTT, RTT_AT, Board
from xdp_router.daemon.gateway.front import Front, World
from xdp_router.lab import BackendSpec, Lab, LabSpec

from .peers import Address, Proxy, Started, no_gateway, start_gateway
from .place import Arm, Place, calls, end, start_proxy, wait_for
from .run import WARM

SNAPSHOT_US = 100.0
INLINE_US = 1_000.0
_ENGINE_PORT, _FIRST_PORT = 9100, 8300
_SPEC = LabSpec((BackendSpec("e1"),))
_RATE = 200.0
_KEPT = 4_000
_LOOPS = 2_000
LOOKUP_BACKENDS = (3, 10, 100, 1_000)
_READY_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """One listener. ``prompt_bytes``: of each request."""

    kind: str
    mode: str
    backends: int
    prompt_bytes: int = 200

    @property
    def name(self) -> str:
        """As the listener is called."""
        return f"{self.kind}-{self.mode}-{self.backends}"


CASES = (
    Case("http", "inline", 3),
    Case("http", "inline", 100),
    Case("http", "snapshot", 3),
    Case("http", "snapshot", 100),
    Case("llm", "inline", 3, 4_000),
    Case("llm", "snapshot", 3, 4_000),
)


def gateway_toml(at: Address, cases: Sequence[Case] = CASES) -> str:
    """A listener for each case. Its backends are one server, by so many addresses of loopback."""
    lines = ["[gateway]", "access_log = false", f"decisions_kept = {_KEPT}"]
    for number, case in enumerate(cases):
        lines += ["[[listener]]", f'name = "{case.name}"', f'type = "{case.kind}"']
        lines += [f'mode = "{case.mode}"', f'address = "{at[0]}:{at[1] + number}"']
        if case.backends > 10:
            lines += ['probe_interval = "500ms"']  # of so many it is the server that is measured
        for backend in range(1, case.backends + 1):
            host = f"127.0.{1 + backend // 250}.{1 + backend % 250}"
            lines += ["[[listener.backend]]", f'address = "{host}:{_ENGINE_PORT}"']
    return "\n".join(lines) + "\n"


def gateway(directory: Path, at: Address, engines: Sequence[Address]) -> Started:
    """One worker of ours."""
    del engines
    return start_gateway(directory, gateway_toml(at))


PROXY = Proxy("decisions", gateway, no_gateway)


def measure(
    directory: Path, seconds: float, progress: Callable[[str], None]
) -> dict[Case, list[float]]:
    """Microseconds of each request of each case. Raises OSError, RuntimeError."""
    directory.mkdir()
    found: dict[Case, list[float]] = {}
    with Lab(_SPEC) as lab, ExitStack() as undo:
        engine = ("127.0.0.1", _ENGINE_PORT)
        argv = [sys.executable, "-m", "xdp_router.lab.engine", "0.0.0.0", str(_ENGINE_PORT)]
        process = lab.router.spawn(argv, stdout=subprocess.DEVNULL)
        undo.callback(end, process)
        wait_for(lab.router, engine, process, _READY_S, "the mock engine")
        at = (lab.addresses.client_router, _FIRST_PORT)
        start_proxy(lab, PROXY, at, (), directory, undo)
        here = Place(lab, (), (), {})
        with ControlClient(directory / PROXY.name / "gateway.sock", timeout_s=30) as control:
            for number, case in enumerate(CASES):
                arm = Arm(case.name, ((at[0], at[1] + number),))
                options = ("--rate", str(_RATE), "--seconds", str(seconds))
                size = ("--prompt-bytes", str(case.prompt_bytes))
                calls(here, arm, *options, *size, limit_s=seconds + 10)
                told = control.call("decisions", limit=round(_RATE * seconds) + WARM)
                found[case] = [
                    each["decided_us"] - each["head_us"]
                    for each in told
                    if each["listener"] == case.name and "decided_us" in each
                ]
            progress(f"decisions of {len(CASES)} listeners")
    return found


def lookups(loops: int = _LOOPS, counts: Sequence[int] = LOOKUP_BACKENDS) -> dict[int, list[float]]:
    """Microseconds of a look at what is known and the choice by it alone, by how many backends
    there are: a worker's own code and memory, in this process."""
    cases = [Case("http", "snapshot", count) for count in counts]
    text = gateway_toml(("127.0.0.1", _FIRST_PORT), cases)
    config = parse_config(text, "gateway.toml").gateway
    loop = asyncio.new_event_loop()
    fd = Board.create()
    board = Board(fd, 0)
    board.slots_used = 1
    rows: dict[str, int] = {}
    for listener in config.listeners:
        for backend in listener.backends:
            rows.setdefault(str(backend.address), len(rows))
    world = World(board, rows, config, loop, lambda _: None)
    try:
        return {
            case.backends: _lookups(Front(listener, world), world, loops)
            for case, listener in zip(cases, config.listeners, strict=True)
        }
    finally:
        board.close()
        os.close(fd)
        loop.close()


def _lookups(front: Front, world: World, loops: int) -> list[float]:
    every = range(len(front.listener.backends))
    times = []
    for number in range(loops):
        now_ns = world.clock()
        for backend in every:  # a snapshot that is fresh, and differs
            row = front.row(backend)
            world.board.say(row, RTT, 200_000 + 1_000 * ((backend + number) % 7))
            world.board.say(row, RTT_AT, now_ns)
        began_ns = time.perf_counter_ns()
        _, found = front.routes.find("", "/", {}, None)
        front.chooser.order(found, front.sight, (), 1.0, world.draws())
        times.append((time.perf_counter_ns() - began_ns) / 1e3)
    return times


def rows_of(found: dict[Case, list[float]], looked: dict[int, list[float]]) -> list[Row]:
    """A table, and both goals."""
    lines = [
        (
            f"{case.kind}, {case.mode}, {case.backends} backends",
            f"{len(times):,}",
            *(f"{percentile(times, share):.0f} us" for share in (0.5, 0.99)),
        )
        for case, times in found.items()
        if times
    ]
    if not lines:
        return []
    how = (
        f"from the head to the decision, by the worker's own records of {_RATE:.0f} requests a "
        "second; `llm` with the prompt of 4 kB, read and hashed"
    )
    rows = []
    if looked:
        shown = {number: percentile(times, 0.5) for number, times in looked.items()}
        told = ", ".join(f"{us:.0f} us of {number} backends" for number, us in shown.items())
        rows.append(
            Row(
                "gateway: snapshot lookup, p50",
                f"<= {SNAPSHOT_US:.0f} us",
                told,
                max(shown.values()) <= SNAPSHOT_US,
                "the route, what is known of the backends that are looked at, their scores and the "
                "choice, by a worker's own code and memory in a process of its own; judged by the "
                "slowest",
                {str(number): times for number, times in looked.items()},
            )
        )
    inline = {
        case: percentile(times, 0.99)
        for case, times in found.items()
        if case.mode == "inline" and times
    }
    told = ", ".join(
        f"{us:.0f} us ({case.kind}, {case.backends} backends)" for case, us in inline.items()
    )
    ok = max(inline.values(), default=0.0) <= INLINE_US
    rows.append(Row("gateway: inline decision, p99", f"<= {INLINE_US:.0f} us", told, ok, how))
    table = Table(("", "requests", "p50", "p99"), tuple(lines))
    values = {case.name: times for case, times in found.items()}
    rows.append(
        Row("gateway: time to decide", "no goal: told", "see the table", None, how, values, table)
    )
    return rows
