# SPDX-License-Identifier: Apache-2.0
"""The table of backends: who is up, how each answers, and what its mode goes by."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from .render_score import scrape_line
from .tables import (
    NONE,
    Row,
    coloured,
    count,
    fraction,
    make_console,
    make_table,
    percent,
    rtt,
    seconds,
    show_addresses,
)

_INLINE = "inline"


def backends(rows: Sequence[Row]) -> None:
    """Print the answer of ``backends``: what only other modes than a backend's have is a dash."""
    modes = {row["mode"] for row in rows}
    probed = not rows or bool(modes - {_INLINE})
    shared = any(row["share"] is not None for row in rows)
    raced = probed and (not shared or "race" in modes)
    inline = _INLINE in modes
    table = make_table(
        *("BACKEND", "SERVICE", "ADDRESS", "STATE", "VIA", "PROBE"),
        *([">RTT"] if probed else []),
        *([">SHARE", ">SCORE"] if shared else []),
        *([">WINS"] if raced else []),
        *([">ANSWERS", ">LOSSES"] if probed else []),
        *([">WEIGHT", ">OPEN", ">ANSWERS IN"] if inline else []),
    )
    down: list[Text] = []
    for row in rows:
        table.add_row(
            row["name"],
            row["service"],
            row["address"],
            _backend_state(row),
            f"{row['interface'] or NONE}{' (kernel)' if row['path'] == 'kernel' else ''}",
            row["probe"],
            *([rtt(row["rtt_us"])] if probed else []),
            *([percent(row["share"]), fraction(row["score"])] if shared else []),
            *([_of_mode(row, "wins", "race")] if raced else []),
            *([_of_probes(row, "answers"), _of_probes(row, "losses")] if probed else []),
            *([str(row["weight"]), count(row["open"]), rtt(row["synack_us"])] if inline else []),
        )
        if not row["up"] and row["reason"]:
            down.append(Text(f"{row['name']} is down: {row['reason']}"))
        if not_read := scrape_line(row):
            down.append(Text(not_read))
        if health := _health_line(row):
            down.append(Text(health))
    show_addresses(table, "No backends.")
    console = make_console()
    for line in down:
        console.print(line)


def _of_mode(row: Row, name: str, mode: str) -> str:
    return count(row[name] if row["mode"] == mode else None)


def _of_probes(row: Row, name: str) -> str:
    """Who is probed for its health alone has nothing that is counted here."""
    return count(None if row["mode"] == _INLINE else row[name])


def _backend_state(row: Row) -> Text:
    health = row["health"]["state"]
    if row["up"] and health in ("ill", "dead"):
        return Text(health, style="red")
    if row["up"] and row["draining"]:
        return Text("draining", style="yellow")
    return coloured(row["up"], "up", "down")


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
        return f"{name} has come back: its weight counts {percent(health['share'])} so far{again}"
    return ""


_SAID_BY = {"probe": "the probe", "traffic": "its traffic", "": "nobody"}


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{suffix or 'th'}"
