# SPDX-License-Identifier: Apache-2.0
"""Readable tables and JSON for what the commands show."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from .output import stdout
from .render_backends import backends as backends
from .render_gain import costs, gain_line
from .render_score import told_line, told_words
from .render_steering import absence_of, listener_of
from .tables import (
    NONE,
    Row,
    coloured,
    count,
    fraction,
    make_console,
    make_table,
    micros,
    pairs,
    percent,
    rtt,
    seconds,
    show,
    show_addresses,
    words,
)


def json_out(data: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(data, indent=2), file=stdout())


def choice(mode: str, reason: str) -> str:
    """How a flow's backend was chosen, and why: ``race won``, ``hash: deadline``."""
    mode, reason = mode.lower(), reason.lower()
    if reason.startswith(mode):
        return words(reason)
    if reason in ("", "none"):
        return words(mode)
    return f"{words(mode)}: {words(reason)}"


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
    pairs(
        [
            ("router", coloured(data["ready"], "ready", "not ready")),
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


def _of_limit(row: Row) -> str:
    """Connections that count, and how many there may be: those that are closing have a place."""
    most = row["max_connections"]
    return NONE if most is None else f"{row['connections']}/{most}"


def services(rows: Sequence[Row]) -> None:
    """Print the answer of ``services``."""
    limited = any(row["max_connections"] is not None for row in rows)
    table = make_table(
        *("SERVICE", "ADDRESS", "MODE", "FORWARDING", "FALLBACK", ">DEADLINE", "BACKENDS"),
        *(">DECIDED", ">OPEN"),
        *([">LIMIT"] if limited else []),
    )
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['address']}/{row['protocol']}",
            row["mode"],
            row["forwarding"],
            row["fallback"] or NONE,
            micros(row["deadline_ms"] * 1000),
            " ".join(row["backends"]) or listener_of(row),
            count(row["decisions"]),
            count(row["open"]),
            *([_of_limit(row)] if limited else []),
        )
    show_addresses(table, "No services.")
    for row in rows:
        for line in (_flood(row), _not_stateless(row["flood"]), gain_line(row), absence_of(row)):
            if line:
                make_console().print(f"{row['name']}: {line}")


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
    for warning in data.get("warnings", ()):
        print(f"Warning: {warning}", file=sys.stderr)


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


def pushed(data: Row) -> None:
    """Print the answer of ``push``."""
    told = ", ".join(told_words(name, value) for name, value in data["told"].items())
    text = f"{data['backend']}: {told}, for {seconds(data['holds_s'])}"
    make_console().print(Text(text + _UNUSED.get(data["mode"], "")))


_UNUSED = {
    "race": " (mode race: counts between backends that answer equally fast)",
    "inline": " (mode inline does not look at it)",
}


def flows(rows: Sequence[Row]) -> None:
    """Print flows. Packets and bytes are: from the client / from the backend.

    The source is what the backend sees in place of the client, if it does.
    """
    sources = any(row["source_address"] for row in rows)
    table = make_table(
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
    show_addresses(table, "No flows.")


def counters(data: Mapping[str, int], *, show_all: bool) -> None:
    """Print counters, those that are 0 only if asked for."""
    table = make_table("COUNTER", ">VALUE")
    for name, value in data.items():
        if value or show_all:
            table.add_row(name, str(value))
    show(table, "All counters are 0.")


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
    show(table, "Nothing to mend.")
    counts = {name: sum(row["severity"] == name for row in rows) for name in order}
    make_console().print(Text(", ".join(f"{count} {name}" for name, count in counts.items())))


def explain(data: Row) -> None:
    """Print one flow's time line, in microseconds since its first packet was seen."""
    chosen = choice(data["mode"], data["reason"])
    console = make_console()
    console.print(
        Text(f"{data['client']} to {data['service']}/{data['protocol']}: ")
        + Text(data["backend"] or "refused", style="bold")
        + Text(f", as {data['source_address']}" if data["source_address"] else "")
        + Text(f" ({chosen})")
    )
    console.print()
    line = make_table(">µs", "WHAT", "DETAIL")
    for step in sorted(data["timeline"], key=lambda step: step["t_us"]):
        line.add_row(_instant(step["t_us"]), words(step["what"]), str(step["detail"] or ""))
    show(line, "No time line was kept.")
    if data["candidates"]:
        console.print()
        table = make_table("CANDIDATE", ">RTT", "ANSWER", "")
        for row in data["candidates"]:
            mark = "chosen" if row["backend"] == data["backend"] else ""
            table.add_row(row["backend"], rtt(row["rtt_us"]), words(row["answer"]), mark)
        show(table, "")
    if data["snapshot"]:
        console.print()
        _snapshot(data)
    if data["compared"]:
        console.print()
        _compared(data)


def _snapshot(data: Row) -> None:
    """Who had which share of the table that a flow was picked by, and the terms of the scores."""
    make_console().print(Text(f"Snapshot, {micros(data['snapshot']['age_us'])} old:"))
    rows = data["snapshot"]["backends"]
    known = [name for name in _TERMS if any(row["terms"][name] is not None for row in rows)]
    table = make_table("BACKEND", ">SHARE", ">SCORE", *(f">{_TERMS[name]}" for name in known), "")
    for row in rows:
        mark = "picked" if row["backend"] == data["backend"] else ""
        terms = (fraction(row["terms"][name]) for name in known)
        table.add_row(row["backend"], percent(row["share"]), fraction(row["score"]), *terms, mark)
    show(table, "Nobody was known to answer.")
    for row in rows:
        if told := told_line(row):
            make_console().print(Text(told))


def _compared(data: Row) -> None:
    """What mode ``inline`` knew of the two that it chose from."""
    table = make_table("COMPARED", ">ANSWERS IN", ">OPEN", ">WEIGHT", ">COST", "")
    for row in data["compared"]:
        mark = "chosen" if row["backend"] == data["backend"] else ""
        wait, cost = (rtt(row[name]) for name in ("wait_us", "cost_us"))
        table.add_row(row["backend"], wait, str(row["open"]), str(row["weight"]), cost, mark)
    show(table, "")


_TERMS = {"rtt": "RTT", "ttft": "TTFT", "cache": "CACHE", "queue": "QUEUE", "usage": "USAGE"}


def _instant(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
