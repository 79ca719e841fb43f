# SPDX-License-Identifier: Apache-2.0
"""Readable tables and JSON for what the commands show.

Colours only on a terminal; 100 columns where the width is unknown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .output import stdout
from .render_gain import costs, gain_line
from .render_score import scrape_line, told_line, told_words
from .render_steering import absence_of, listener_of

Row = Mapping[str, Any]

_WIDTH = 100
_MAX_WIDTH = 200
"""For tables of addresses, where the width is unknown: an IPv6 endpoint has up to 47 columns, and
one in two pieces can neither be copied nor searched for."""
_NONE = "-"


def json_out(data: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(data, indent=2), file=stdout())


def _console(width: int = _WIDTH) -> Console:
    file = stdout()
    terminal = file.isatty()
    return Console(
        file=file,
        width=None if terminal else width,
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


def _print_addresses(table: Table, empty: str) -> None:
    _console(_MAX_WIDTH).print(table if table.row_count else Text(empty))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print a plain table, or ``empty``."""
    table = _table(*columns)
    for row in rows:
        table.add_row(*map(str, row))
    _print_addresses(table, empty)


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
    drains = data["backends_draining"]
    draining = f", {drains} draining" if drains else ""
    ill, dead = data["backends_ill"], data["backends_dead"]
    draining += f", {ill} ill" if ill else ""
    draining += f", {dead} of them dead" if dead else ""
    _pairs(
        [
            ("router", _state(data["ready"], "ready", "not ready")),
            ("version", f"{data['version']}, pid {data['pid']}, up {seconds(data['uptime_s'])}"),
            ("interfaces", "\n".join([interfaces or "none", *reasons])),
            ("program", f"id {data['xdp_program_id']}, loader {data['loader']}"),
            ("pins", str(data["pins"])),
            ("services", str(data["services"])),
            ("backends", f"{data['backends_up']} of {data['backends']} reached{draining}"),
            ("flows", f"{data['flows']}, and {data['flows_stateless']} without a place"),
            ("limits", _names(data["services_full"], data["full"], "at max_connections")),
            ("floods", _names(data["services_over_budget"], data["over_budget"], "over budget")),
            ("decisions", f"{data['decisions_total']}, {data['open_decisions']} open"),
            ("first packet", first_packet),
            ("costs", costs(data)),
        ]
    )
    engine = {name: value for name, value in (data.get("engine") or {}).items() if value}
    if engine:
        counters(engine, show_all=False)


def _names(number: int, names: Sequence[str], what: str) -> str:
    """How many services are in a state, with the first ones' names."""
    if not number:
        return f"no service is {what}"
    others = f" and {number - len(names)} others" if number > len(names) else ""
    return f"{', '.join(names)}{others} {'is' if number == 1 else 'are'} {what}"


def _open(connections: int, most: int | None) -> str:
    """Established connections, and how many there may be."""
    return count(connections) if most is None else f"{connections}/{most}"


def services(rows: Sequence[Row]) -> None:
    """Print the answer of ``services``."""
    table = _table(
        "SERVICE",
        "ADDRESS",
        "MODE",
        "FORWARDING",
        "FALLBACK",
        ">DEADLINE",
        "BACKENDS",
        ">DECIDED",
        ">OPEN",
    )
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['address']}/{row['protocol']}",
            row["mode"],
            row["forwarding"],
            row["fallback"] or _NONE,
            micros(row["deadline_ms"] * 1000),
            " ".join(row["backends"]) or listener_of(row),
            count(row["decisions"]),
            _open(row["connections"], row["max_connections"]),
        )
    _print_addresses(table, "No services.")
    for row in rows:
        for line in (_flood(row), _not_stateless(row["flood"]), gain_line(row), absence_of(row)):
            if line:
                _console().print(f"{row['name']}: {line}")


_MODES = {
    "stateless": "stateless: without entries",
    "flood_flows": "with entries in a table of their own (flood_flows)",
}


def _flood(row: Row) -> str:
    """What is done with a service's first packets that are too many, since when, why, how long."""
    flood, view = row["flood"], row["stateless"]
    if not flood["active"]:
        return ""
    full = flood["reason"] == "table_full"
    what = "no place in flow_table" if full else f"over budget ({words(flood['reason'])})"
    how = "" if full else f", {_MODES[flood['mode']]}"
    without = f", {count(view['forwarded'])} packets went without one" if view["forwarded"] else ""
    return (
        f"{what} for {seconds(flood['since_s'])}{how}{without}; what has no entry is hashed for "
        f"another {seconds(view['for_s'])}"
    )


def _not_stateless(flood: Row) -> str:
    return f"not stateless, as configured: {flood['obstacle']}" if flood["obstacle"] else ""


def _backend_state(row: Row) -> Text:
    health = row["health"]["state"]
    if row["up"] and health in ("ill", "dead"):
        return Text(health, style="red")
    if row["up"] and row["draining"]:
        return Text("draining", style="yellow")
    return _state(row["up"], "up", "down")


def _health_line(row: Row) -> str:
    """Why a backend gets no new flows, or not all of its share yet."""
    health = row["health"]
    name, times = row["name"], health["times"]
    again = f", for the {_ordinal(times)} time" if times > 1 else ""
    if health["state"] in ("ill", "dead"):
        since = f" for {seconds(health['since_s'])}" if (health["since_s"] or 0) >= 1 else ""
        held = f", held for another {seconds(health['held_s'])}" if health["held_s"] >= 1 else ""
        ignored = "; as all others are, so that it is tried all the same"
        return (
            f"{name} has been {health['state']}{since}: "
            f"{health['why']}, says {_SAID_BY[health['source']]}{again}{held}"
            f"{ignored if health['ignored'] else ''}"
        )
    if health["share"] < 1:
        return f"{name} has come back: its weight counts {_percent(health['share'])} so far{again}"
    return ""


_SAID_BY = {"probe": "the probe", "traffic": "its traffic", "": "nobody"}


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{suffix or 'th'}"


def changed(data: Row) -> None:
    """Print what a change of the configuration was, or would be, about."""
    for line in data["changes"]:
        print(line["text"], file=stdout())
    if not data["changes"]:
        print("Nothing differs from what runs.", file=stdout())
    elif not data["applied"]:
        print("Nothing was changed: this was a dry run.", file=stdout())
    if data.get("saved"):
        print(f"Written to {data['saved']}.", file=stdout())


def drained(data: Row) -> None:
    """Print the answer of ``drain`` and ``undrain``."""
    what = "draining" if data["draining"] else "taking new flows"
    already = "" if data["changed"] else " already"
    text = f"{data['backend']} ({data['service']}): {what}{already}"
    if data.get("flows") == 0:
        text += ", its last flow has ended"
    print(text, file=stdout())
    if data["warning"]:
        print(f"Warning: {data['warning']}", file=sys.stderr)


def backends(rows: Sequence[Row]) -> None:
    """Print the answer of ``backends``."""
    shared = any(row["share"] is not None for row in rows)
    raced = not shared or any(row["mode"] == "race" for row in rows)
    table = _table(
        *("BACKEND", "SERVICE", "ADDRESS", "STATE", "VIA", "PROBE", ">RTT"),
        *([">SHARE", ">SCORE"] if shared else []),
        *([">WINS"] if raced else []),
        *(">ANSWERS", ">LOSSES"),
    )
    down: list[Text] = []
    for row in rows:
        table.add_row(
            row["name"],
            row["service"],
            row["address"],
            _backend_state(row),
            f"{row['interface'] or _NONE}{' (kernel)' if row['path'] == 'kernel' else ''}",
            row["probe"],
            rtt(row["rtt_us"] or row["synack_us"]),
            *([_percent(row["share"]), _fraction(row["score"])] if shared else []),
            *([count(row["wins"])] if raced else []),
            count(row["answers"]),
            count(row["losses"]),
        )
        if not row["up"] and row["reason"]:
            down.append(Text(f"{row['name']} is down: {row['reason']}"))
        if not_read := scrape_line(row):
            down.append(Text(not_read))
        if health := _health_line(row):
            down.append(Text(health))
    _print_addresses(table, "No backends.")
    console = _console()
    for line in down:
        console.print(line)


def _percent(value: float | None) -> str:
    """A part of 1 as ``33 %``, ``0.4 %``."""
    if value is None:
        return _NONE
    return f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"


def _fraction(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def pushed(data: Row) -> None:
    """Print the answer of ``push``."""
    told = ", ".join(told_words(name, value) for name, value in data["told"].items())
    text = f"{data['backend']}: {told}, for {seconds(data['holds_s'])}"
    _console().print(Text(text + _UNUSED.get(data["mode"], "")))


_UNUSED = {
    "race": " (mode race: counts between backends that answer equally fast)",
    "inline": " (mode inline does not look at it)",
}


def flows(rows: Sequence[Row]) -> None:
    """Print flows. Packets and bytes are: from the client / from the backend.

    The source is what the backend sees in place of the client, if it does.
    """
    sources = any(row["source_address"] for row in rows)
    table = _table(
        *("CLIENT", "SERVICE", "BACKEND", *(["SOURCE"] if sources else []), "STATE", "CHOSEN BY"),
        *(">IN", ">PACKETS", ">BYTES", ">AGE", ">IDLE"),
        gap=1,
    )
    for row in rows:
        decision = row["decision"] or {}
        table.add_row(
            row["client"],
            row["service"],
            row["backend"],
            *([row["source_address"]] if sources else []),
            row["state"],
            choice(decision.get("mode") or "", decision.get("reason") or ""),
            micros(decision.get("latency_us")),
            f"{count(row['packets'])}/{count(row['reply_packets'])}",
            f"{count(row['bytes'])}/{count(row['reply_bytes'])}",
            seconds(row["age_s"]),
            seconds(row["idle_s"]),
        )
    _print_addresses(table, "No flows.")


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
        + Text(f", as {data['source_address']}" if data["source_address"] else "")
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
    if data["snapshot"]:
        console.print()
        _snapshot(data)
    if data["compared"]:
        console.print()
        _compared(data)


def _snapshot(data: Row) -> None:
    """Who had which share of the table that a flow was picked by, and the terms of the scores."""
    _console().print(Text(f"Snapshot, {micros(data['snapshot']['age_us'])} old:"))
    rows = data["snapshot"]["backends"]
    known = [name for name in _TERMS if any(row["terms"][name] is not None for row in rows)]
    table = _table("BACKEND", ">SHARE", ">SCORE", *(f">{_TERMS[name]}" for name in known), "")
    for row in rows:
        mark = "picked" if row["backend"] == data["backend"] else ""
        terms = (_fraction(row["terms"][name]) for name in known)
        table.add_row(row["backend"], _percent(row["share"]), _fraction(row["score"]), *terms, mark)
    _print(table, "Nobody was known to answer.")
    for row in rows:
        if told := told_line(row):
            _console().print(Text(told))


def _compared(data: Row) -> None:
    """What mode ``inline`` knew of the two that it chose from."""
    table = _table("COMPARED", ">ANSWERS IN", ">OPEN", ">WEIGHT", ">COST", "")
    for row in data["compared"]:
        mark = "chosen" if row["backend"] == data["backend"] else ""
        wait, cost = (rtt(row[name]) for name in ("wait_us", "cost_us"))
        table.add_row(row["backend"], wait, str(row["open"]), str(row["weight"]), cost, mark)
    _print(table, "")


_TERMS = {"rtt": "RTT", "ttft": "TTFT", "cache": "CACHE", "queue": "QUEUE", "usage": "USAGE"}


def _instant(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
