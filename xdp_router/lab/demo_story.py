# SPDX-License-Identifier: Apache-2.0
"""What the demo shows, and in which words. Every number is measured in that run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from xdp_router.core.quantile import percentile

from .demo_traffic import PAYLOAD_BYTES, Batch, connect_many, ended
from .lab import Lab
from .router import LabRouter
from .spec import BackendSpec, LabSpec

MS = 1_000_000
SPEC = LabSpec(
    (
        BackendSpec("near"),
        BackendSpec("middle", delay_ns=5 * MS),
        BackendSpec("far", delay_ns=20 * MS),
    )
)
CONNECTIONS = 300
STRAIGHT = 100
AFTER_KILL = 100
AFTER_OTHERS = 50
KEPT_OPEN = 6

_WIDTH = 100
_BAR = 40
_PICTURE = """\
                            +-- direct ---- near
    client --- XDP router --+-- +5 ms ----- middle     each a TCP echo server
                            +-- +20 ms ---- far\
"""
_HEALTH_S = 40.0
"""Health needs 3 s to call a server ill by default, and 13 s until it has its whole share again."""
_LOOK_AGAIN_S = 0.5
_LATE_ANSWERS_S = 0.1  # explain shall also have the answer of the slowest backend


def make_console() -> Console:
    """Our output: colours only on a terminal, at most 100 columns."""
    terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if terminal else _WIDTH,
        no_color=None if terminal else True,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.width = min(console.width, _WIDTH)
    return console


def milliseconds(value_ns: int) -> str:
    """``0.41 ms``: two digits after the point, for delays that differ by milliseconds."""
    return f"{value_ns / MS:.2f} ms"


class Story:
    """Tells it chapter by chapter. ``faults`` says what did not come out as it should.

    ``check`` is called after each connection and may raise to end the story.
    """

    def __init__(
        self,
        console: Console,
        lab: Lab,
        router: LabRouter,
        built_s: float,
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._console = console
        self._lab = lab
        self._router = router
        self._built_s = built_s
        self.faults: list[str] = []

    def tell(self) -> None:
        """The whole story. Raises LabError if the router, or the lab, does not go on."""
        self._scene()
        straight = self._straight()
        batch = self._through_the_router(straight)
        try:
            self._look_inside(batch)
            self._kill(batch)
        finally:
            batch.close()
        self._come_back()
        self._go_silent()

    # Chapters

    def _scene(self) -> None:
        status = self._router.ask("status")
        modes = ", ".join(sorted({row["mode"] for row in status["interfaces"]}))
        address, port = self._lab.addresses.service
        self._title("A router that asks who is fastest, anew for every connection")
        self._say("Five hosts, each a network namespace of this machine, joined by veth wires:")
        self._show(Text(_PICTURE))
        self._say(
            f"The client knows one address, {address}:{port}. The router holds the first packet "
            "(SYN) of each connection, sends a probe to every backend, gives the connection to "
            "the one that answers first, and lets the packet go on to it. Nobody told the router "
            "about the delays."
        )
        self._say(
            f"Lab and router were up in {self._built_s:.1f} s: XDP {modes} on "
            f"{len(status['interfaces'])} interfaces, loader {status['loader']}."
        )

    def _straight(self) -> dict[str, Batch]:
        self._title(f"1. The wires: {STRAIGHT} connections straight to each backend")
        found = {}
        for spec, address in zip(SPEC.backends, self._lab.addresses.backends, strict=True):
            found[spec.name] = self._connect(address, STRAIGHT, f"straight to {spec.name}")
        self._say(
            "To compare with: these use each backend's own address, so the router only forwards."
        )
        self._times([(f"straight to {name}", batch) for name, batch in found.items()])
        return found

    def _through_the_router(self, straight: dict[str, Batch]) -> Batch:
        self._title(f"2. {CONNECTIONS} connections to the service, through the router")
        batch = self._connect(
            self._lab.addresses.service, CONNECTIONS, "through the router", keep=KEPT_OPEN
        )
        good = len(batch.connections)
        self._say(
            f"{good} of {CONNECTIONS} connected, sent {PAYLOAD_BYTES} bytes and got the same "
            f"{PAYLOAD_BYTES} bytes back. Who got them, by the name that the backend itself says:"
        )
        self._shares(batch)
        self._say("How long connect() took for the client:")
        rows = [(f"straight to {name}", found) for name, found in straight.items()]
        self._times([("through the router", batch), *rows])
        fppl = self._router.ask("status")["fppl_us"]
        self._say(
            "What the router added is its first-packet processing latency (FPPL): from the first "
            "packet in to the same packet out to its backend, with the race in between. "
            f"FPPL p50 {fppl['p50'] / 1000:.2f} ms, p99 {fppl['p99'] / 1000:.2f} ms, "
            f"of {fppl['count']} connections."
        )
        return batch

    def _look_inside(self, batch: Batch) -> None:
        self._title("3. What the router knows")
        self._say(
            f"{len(batch.open)} of the connections were left open. This is the flow table, read "
            "from the kernel; packets of these flows no longer meet the daemon. IN: time to the "
            "decision. Packets and bytes: from the client / from the backend."
        )
        self._command("flows", "--state", "established", "--limit", str(KEPT_OPEN))
        self._say("Why did one of them go where it went? Its time line since its SYN came in:")
        self._explain(batch)

    def _kill(self, kept: Batch) -> None:
        self._title(f"4. The server on near is killed, then {AFTER_KILL} new connections")
        self._lab.kill_backend("near")
        lost = sum(ended(handle) for handle in kept.open)
        batch = self._connect(self._lab.addresses.service, AFTER_KILL, "after the kill")
        self._say(
            f"{lost} of the {len(kept.open)} open connections ended with their server. "
            f"Of the new ones {len(batch.connections)} connected, {len(batch.failures)} failed; "
            f"near got {batch.by_backend['near']}:"
        )
        self._outcome(batch)
        self._say(
            "No health check had to notice anything first: a closed port answers the probe with "
            "RST, and whoever refuses does not win, however fast. connect() now takes two round "
            "trips on the longer wire: the race's and its own."
        )
        self._explain(batch, 0)  # before health took near out of races
        self._expect_none("near", batch, "after it was killed")
        self._wait("near is ill", lambda health: health["state"] == "ill")
        self._say(
            "Health looks once a second, and has noticed as well, at the third bad look. From now "
            "on no race asks near, until it is well again:"
        )
        self._command("backends")

    def _come_back(self) -> None:
        self._title(f"5. near is started again, then twice {AFTER_OTHERS} new connections")
        self._lab.start_backend("near")
        began = time.monotonic()
        self._wait("near is well", lambda health: health["state"] == "well")
        well_s = time.monotonic() - began
        early = self._connect(self._lab.addresses.service, AFTER_OTHERS, "after the restart")
        self._wait("near has its share", lambda health: health["share"] == 1)
        whole_s = time.monotonic() - began
        batch = self._connect(self._lab.addresses.service, AFTER_OTHERS, "a little later")
        count = batch.by_backend["near"]
        self._say(
            f"It was well again after {well_s:.0f} s, by two good looks. A server that has just "
            "begun is not overrun: it takes part in every tenth race at first, in all of them 10 s "
            f"later. Of the first {AFTER_OTHERS} connections near got {early.by_backend['near']}, "
            f"{whole_s:.0f} s after its start {count} of {AFTER_OTHERS}; nothing had to be told or "
            "reset:"
        )
        self._outcome(batch)
        if not count:
            self.faults.append("near was started again, but no connection went there")

    def _go_silent(self) -> None:
        self._title(f"6. The host of near goes silent, then {AFTER_OTHERS} new connections")
        self._lab.silence_backend("near")
        batch = self._connect(self._lab.addresses.service, AFTER_OTHERS, "after the silence")
        slowest = milliseconds(max(batch.connect_ns, default=0))
        self._say(
            "Now there is no RST, no answer of any kind. "
            f"{len(batch.connections)} connected, {len(batch.failures)} failed; near got "
            f"{batch.by_backend['near']}. The slowest connect() took {slowest}: nobody waits for "
            "a silent host, the race is over at the first answer."
        )
        self._outcome(batch)
        self._explain(batch, 0)  # before health took near out of races
        self._expect_none("near", batch, "after its host went silent")

    # What chapters are made of

    def _connect(self, address: tuple[str, int], count: int, what: str, keep: int = 0) -> Batch:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
        with Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        ) as progress:
            task = progress.add_task(what, total=count)

            def done(number: int) -> None:
                progress.update(task, completed=number)
                self._check()
                self._router.check()  # without it connections go on, but nobody decides

            batch = connect_many(self._lab.client, address, count, keep=keep, progress=done)
        if batch.failures:
            failed = len(batch.failures)
            self.faults.append(f"{what}: {failed} of {count} failed, first {batch.failures[0]}")
        return batch

    def _wait(self, what: str, reached: Callable[[Any], bool]) -> None:
        """Until the health of near is so, as ``backends`` has it."""
        began = time.monotonic()
        while time.monotonic() - began < _HEALTH_S:
            self._check()
            rows = self._router.ask("backends")
            if reached(next(row["health"] for row in rows if row["name"] == "near")):
                return
            time.sleep(_LOOK_AGAIN_S)
        self.faults.append(f"{what}: not within {_HEALTH_S:.0f} s")

    def _expect_none(self, backend: str, batch: Batch, when: str) -> None:
        count = batch.by_backend[backend]
        if count:
            self.faults.append(f"{count} connections went to {backend} {when}")

    def _outcome(self, batch: Batch) -> None:
        self._shares(batch)
        self._times([("through the router", batch)])

    def _explain(self, batch: Batch, number: int = -1) -> None:
        if batch.connections:
            time.sleep(_LATE_ANSWERS_S)
            self._command("explain", batch.connections[number].client)

    def _shares(self, batch: Batch) -> None:
        table = plain_table("BACKEND", "WIRE", ">CONNECTIONS", "")
        total = max(1, len(batch.connections))
        for spec in SPEC.backends:
            count = batch.by_backend[spec.name]
            bar = Text("#" * round(_BAR * count / total), style="green")
            table.add_row(spec.name, f"+{spec.delay_ns // MS} ms", str(count), bar)
        self._show(table)

    def _times(self, rows: Sequence[tuple[str, Batch]]) -> None:
        table = plain_table("CONNECT TIME", ">CONNECTIONS", ">P50", ">P99")
        for name, batch in rows:
            values = batch.connect_ns
            shown = [milliseconds(percentile(values, p)) if values else "-" for p in (0.5, 0.99)]
            table.add_row(name, str(len(values)), *shown)
        self._show(table)

    # Printing: each block with an empty line before it

    def _title(self, text: str) -> None:
        self._show(Text(f"{text}\n{'-' * len(text)}", style="bold cyan"))

    def _say(self, text: str) -> None:
        self._show(Text(text))

    def _command(self, *command: str) -> None:
        self._show(Text(f"$ xdp-router {' '.join(command)}", style="bold green"))
        self._router.show(*command)

    def _show(self, block: Text | Table) -> None:
        self._console.print()
        self._console.print(block)


def plain_table(*columns: str) -> Table:
    """A table; a column whose title begins with ``>`` is aligned right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=True)
    return table
