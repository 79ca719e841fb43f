# SPDX-License-Identifier: Apache-2.0
"""Readable tables and JSON for what the commands show.

Colours only on a terminal; 100 columns where the width is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .output import stdout

Row = Mapping[str, Any]

_WIDTH = 100
_NONE = "-"


def json_out(data: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(data, indent=2), file=stdout())


def _console() -> Console:
    file = stdout()
    terminal = file.isatty()
    return Console(
        file=file,
        width=None if terminal else _WIDTH,
        no_color=None if terminal else True,
        highlight=False,
        emoji=False,
        markup=False,
    )


def count(value: float | None) -> str:
    """``999``, ``1.2k``, ``34M``."""
    if value is None:
        return _NONE
    units = ["T", "G", "M", "k", ""]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop()
    unit = units[-1]
    exact = value >= 10 or value == int(value)
    return f"{value:.0f}{unit}" if exact else f"{value:.1f}{unit}"


def micros(value: float | None) -> str:
    """Microseconds as ``0.5 µs``, ``850 µs``, ``1.2 ms`` or ``3.0 s``."""
    if value is None:
        return _NONE
    if value < 1000:
        exact = value >= 10 or value == int(value)
        return f"{value:.0f} µs" if exact else f"{value:.1f} µs"
    if value < 1_000_000:
        return f"{value / 1000:.1f} ms"
    return f"{value / 1_000_000:.1f} s"


def rtt(value: float | None) -> str:
    """A round trip time; 0 and None mean that there was no answer."""
    return micros(value) if value else _NONE


def seconds(value: float | None) -> str:
    """A duration in seconds as ``4s``, ``3m``, ``2h`` or ``5d``."""
    if value is None:
        return _NONE
    for limit, unit, size in ((100, "s", 1), (6000, "m", 60), (172_800, "h", 3600)):
        if value < limit:
            return f"{value / size:.0f}{unit}"
    return f"{value / 86400:.0f}d"


def words(name: str | None) -> str:
    """``race_won`` as ``race won``."""
    return (name or _NONE).replace("_", " ")


def choice(mode: str, reason: str) -> str:
    """How a flow's backend was chosen, and why: ``race won``, ``hash: deadline``."""
    mode, reason = mode.lower(), reason.lower()
    if reason.startswith(mode):
        return words(reason)
    if reason in ("", "none"):
        return words(mode)
    return f"{words(mode)}: {words(reason)}"


def _table(*columns: str, gap: int = 2) -> Table:
    """A table; a column whose title begins with ``>`` is aligned right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        right = column.startswith(">")
        # Folded rather than cut: an address without its end is worth nothing.
        table.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return table


def _print(table: Table, empty: str) -> None:
    _console().print(table if table.row_count else Text(empty))


def _pairs(rows: Iterable[tuple[str, str | Text]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    _console().print(table)


def _state(up: bool, yes: str, no: str) -> Text:
    return Text(yes, style="green") if up else Text(no, style="red")


def status(data: Row) -> None:
    """Print the answer of ``status``."""
    fppl = data.get("fppl_us") or {}
    interfaces = ", ".join(
        f"{row['name']} ({row['mode'] or 'not attached'}"
        f"{'' if row['takes_xdp_frames'] else ', takes no XDP frames'}"
        f"{'' if row['ready'] else ', not ready'})"
        for row in data["interfaces"]
    )
    reasons = [f"{row['name']}: {row['reason']}" for row in data["interfaces"] if row["reason"]]
    first_packet = (
        f"p50 {micros(fppl['p50'])}, p99 {micros(fppl['p99'])} of {count(fppl['count'])}"
        if fppl.get("count")
        else "none yet"
    )
    _pairs(
        [
            ("router", _state(data["ready"], "ready", "not ready")),
            ("version", f"{data['version']}, pid {data['pid']}, up {seconds(data['uptime_s'])}"),
            ("interfaces", "\n".join([interfaces or "none", *reasons])),
            ("program", f"id {data['xdp_program_id']}, loader {data['loader']}"),
            ("pins", str(data["pins"])),
            ("services", str(data["services"])),
            ("backends", f"{data['backends_up']} of {data['backends']} up"),
            ("flows", f"{data['flows']}, and {data['flows_stateless']} without a place"),
            ("decisions", f"{data['decisions_total']}, {data['open_decisions']} open"),
            ("first packet", first_packet),
        ]
    )
    engine = {name: value for name, value in (data.get("engine") or {}).items() if value}
    if engine:
        counters(engine, show_all=False)


def services(rows: Sequence[Row]) -> None:
    """Print the answer of ``services``."""
    table = _table(
        "SERVICE", "ADDRESS", "MODE", "FORWARDING", "FALLBACK", ">DEADLINE", "BACKENDS", ">DECIDED"
    )
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['address']}/{row['protocol']}",
            row["mode"],
            row["forwarding"],
            row["fallback"] or _NONE,
            micros(row["deadline_ms"] * 1000),
            " ".join(row["backends"]),
            count(row["decisions"]),
        )
    _print(table, "No services.")


def backends(rows: Sequence[Row]) -> None:
    """Print the answer of ``backends``."""
    table = _table(
        "BACKEND", "SERVICE", "ADDRESS", "STATE", "VIA", ">RTT", ">WINS", ">ANSWERS", ">LOSSES"
    )
    down: list[Text] = []
    for row in rows:
        table.add_row(
            row["name"],
            row["service"],
            row["address"],
            _state(row["up"], "up", "down"),
            f"{row['interface'] or _NONE}{' (kernel)' if row['path'] == 'kernel' else ''}",
            rtt(row["rtt_us"]),
            count(row["wins"]),
            count(row["answers"]),
            count(row["losses"]),
        )
        if not row["up"] and row["reason"]:
            down.append(Text(f"{row['name']} is down: {row['reason']}"))
    _print(table, "No backends.")
    console = _console()
    for line in down:
        console.print(line)


def flows(rows: Sequence[Row]) -> None:
    """Print flows. Packets and bytes are: from the client / from the backend."""
    table = _table(
        *("CLIENT", "SERVICE", "BACKEND", "STATE", "CHOSEN BY"),
        *(">IN", ">PACKETS", ">BYTES", ">AGE", ">IDLE"),
        gap=1,
    )
    for row in rows:
        decision = row["decision"] or {}
        table.add_row(
            row["client"],
            row["service"],
            row["backend"],
            row["state"],
            choice(decision.get("mode") or "", decision.get("reason") or ""),
            micros(decision.get("latency_us")),
            f"{count(row['packets'])}/{count(row['reply_packets'])}",
            f"{count(row['bytes'])}/{count(row['reply_bytes'])}",
            seconds(row["age_s"]),
            seconds(row["idle_s"]),
        )
    _print(table, "No flows.")


def counters(data: Mapping[str, int], *, show_all: bool) -> None:
    """Print counters, those that are 0 only if asked for."""
    table = _table("COUNTER", ">VALUE")
    for name, value in data.items():
        if value or show_all:
            table.add_row(name, str(value))
    _print(table, "All counters are 0.")


_SEVERITY_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(rows: Sequence[Row], *, show_all: bool) -> None:
    """Print findings, the gravest first; those that are in order only if asked for."""
    order = ["fail", "warn", "ok"]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    for row in sorted(rows, key=lambda row: order.index(row["severity"])):
        severity = row["severity"]
        if severity == "ok" and not show_all:
            continue
        text = Text(row["text"])
        if row["mend"]:
            text.append(f"\n→ {row['mend']}", style="bold")
        table.add_row(Text(severity, style=_SEVERITY_STYLE[severity]), row["subject"], text)
    _print(table, "Nothing to mend.")
    counts = {name: sum(row["severity"] == name for row in rows) for name in order}
    _console().print(Text(", ".join(f"{count} {name}" for name, count in counts.items())))


def explain(data: Row) -> None:
    """Print one flow's time line, in microseconds since its first packet was seen."""
    chosen = choice(data["mode"], data["reason"])
    console = _console()
    console.print(
        Text(f"{data['client']} to {data['service']}/{data['protocol']}: ")
        + Text(data["backend"] or "refused", style="bold")
        + Text(f" ({chosen})")
    )
    console.print()
    line = _table(">µs", "WHAT", "DETAIL")
    for step in sorted(data["timeline"], key=lambda step: step["t_us"]):
        line.add_row(_instant(step["t_us"]), words(step["what"]), str(step["detail"] or ""))
    _print(line, "No time line was kept.")
    if data["candidates"]:
        console.print()
        table = _table("CANDIDATE", ">RTT", "ANSWER", "")
        for row in data["candidates"]:
            mark = "chosen" if row["backend"] == data["backend"] else ""
            table.add_row(row["backend"], rtt(row["rtt_us"]), words(row["answer"]), mark)
        _print(table, "")


def _instant(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
