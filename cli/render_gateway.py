# SPDX-License-Identifier: Apache-2.0
"""Tables for what the gateway's commands show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .output import stdout
from .render_gain import arm_lines
from .render_score import scrape_line, told_words
from .tables import count, fraction, micros, pairs, percent, rtt, seconds, show_rows

Row = Mapping[str, Any]

_NONE = "-"


def status(data: Row) -> None:
    """Print the answer of ``status``."""
    print(
        f"{data['state']}, pid {data['pid']}, up {seconds(data['uptime_s'])}, {data['config']}\n"
        f"{data['listeners']} listeners, {data['backends']} backends, "
        f"{data['connections']} connections, generation {data['generation']}\n",
        file=stdout(),
    )
    show_rows(
        ("WORKER", "STATE", "GENERATION", "CONNECTIONS", "UP"),
        (
            (
                each["pid"],
                each["state"],
                each["generation"],
                each["connections"],
                seconds(each["uptime_s"]),
            )
            for each in data["workers"]
        ),
        "no workers",
    )
    for each in data.get("control_arms", ()):
        print(file=stdout())
        for line in arm_lines(each):
            print(line, file=stdout())


def listeners(rows: Sequence[Row]) -> None:
    """One line each."""
    show_rows(
        ("LISTENER", "ADDRESS", "TYPE", "MODE", "BACKENDS", "ROUTES"),
        (
            (
                each["name"],
                each["address"],
                f"{each['type']}, TLS ends here" if each["tls"] else each["type"],
                each["mode"],
                each["backends"],
                each["routes"],
            )
            for each in rows
        ),
        "no listeners",
    )


def backends(rows: Sequence[Row]) -> None:
    """One line each; below the table what others say of them."""
    told = any(each.get("others") is not None for each in rows)
    show_rows(
        (
            *("LISTENER", "BACKEND", "ADDRESS", "STATE", "IN FLIGHT"),
            *(["OTHERS"] if told else []),
            *("RTT", "TTFT"),
        ),
        (
            (
                each["listener"],
                each["name"],
                each["address"],
                f"{each['state']}, asked to wait" if each["held_s"] else each["state"],
                each["in_flight"],
                *([count(each["others"])] if told else []),
                rtt(each["rtt_us"]),
                rtt(each["ttft_us"]),
            )
            for each in rows
        ),
        "no backends",
    )
    for row in rows:
        for line in (_told_line(row), scrape_line(row), _cache_line(row)):
            if line:
                print(line, file=stdout())


def _told_line(row: Row) -> str:
    told = [
        f"{told_words(name, each['value'])} ({each['source']}, {seconds(each['age_s'])} ago"
        f"{'' if each['counts'] else ': too old to count'})"
        for name, each in (row.get("told") or {}).items()
    ]
    return f"{row['name']}: {', '.join(told)}" if told else ""


def _cache_line(row: Row) -> str:
    shares = row.get("prefix_cache")
    if not shares or None in shares.values():
        return ""
    return (
        f"{row['name']}: {percent(shares['predicted'])} of prompts were thought to be in its "
        f"prefix cache, {percent(shares['measured'])} were by its own count"
    )


def pushed(data: Row) -> None:
    """What was told, and for how long that holds."""
    told = ", ".join(told_words(name, value) for name, value in data["told"].items())
    name = data["backend"]
    address = "" if name == data["address"] else f" ({data['address']})"
    print(f"{name}{address}: {told}, for {seconds(data['holds_s'])}", file=stdout())


def streams(data: Sequence[Row]) -> None:
    """What is under way, one line each."""
    show_rows(
        ("ID", "LISTENER", "CLIENT", "REQUEST", "BACKEND", "LEGS", "FIRST BYTE", "SENT", "AGE"),
        (
            (
                each["id"],
                each["listener"],
                each["client"],
                _request(each),
                each.get("backend") or _NONE,
                each["legs"],
                micros(each.get("first_byte_us")),
                count(each["bytes_out"]),
                seconds(each["age_s"]),
            )
            for each in data
        ),
        "no streams",
    )


def decisions(data: Sequence[Row]) -> None:
    """The newest requests that are over, one line each."""
    show_rows(
        ("ID", "REQUEST", "STATUS", "BACKEND", "WHY", "LEGS", "FIRST BYTE", "TOTAL", "END"),
        (
            (
                each["id"],
                _request(each),
                each["status"] or _NONE,
                each.get("backend") or _NONE,
                f"{each.get('mode', _NONE)}: {each.get('reason', _NONE)}",
                each["legs"],
                micros(each.get("first_byte_us")),
                micros(each.get("total_us")),
                each.get("end", _NONE),
            )
            for each in data
        ),
        "no decisions",
    )


def _request(row: Row) -> str:
    """What was asked for: a path, and the model; or a name."""
    asked = f"{row.get('method', '')} {row.get('path', '')}".strip() or row.get("host") or _NONE
    return f"{asked} ({row['model']})" if row.get("model") else asked


def explain(data: Row) -> None:
    """All that is known of a request: who could have had it, and its steps in time."""
    pairs(
        (key.removesuffix("_us").replace("_", " "), _cell(key, value))
        for key, value in data.items()
        if key not in ("candidates", "timeline", "event")
    )
    terms = ("score", "rtt", "ttft", "cache", "queue", "usage")
    print(file=stdout())
    show_rows(
        ("CANDIDATE", "IN FLIGHT", *map(str.upper, terms), "LEGS", "FIRST BYTE IN", "OUTCOME"),
        (
            (
                each["backend"],
                each["in_flight"],
                *(fraction((each["terms"] or {}).get(term)) for term in terms),
                each["legs"],
                micros(each["ttft_us"]),
                each["outcome"] or "not asked",
            )
            for each in data.get("candidates", ())
        ),
        "no candidates",
    )
    print(file=stdout())
    show_rows(
        ("AT", "STEP", "WHAT"),
        (
            (micros(max(each["at_us"], 0)), each["what"], each["detail"])
            for each in data.get("timeline", ())
        ),
        "no steps",
    )


def reloaded(data: Row) -> None:
    """What became of it."""
    what = f"{data['listeners']} listeners, {data['workers']} workers"
    if data["applied"]:
        print(f"reloaded: {what}, generation {data['generation']}", file=stdout())
    else:
        print(f"good: {what}; nothing was changed (--dry-run)", file=stdout())


def upgraded(data: Row) -> None:
    """Who serves now."""
    print(
        f"upgraded: process {data['pid']} serves, version {data['version']}; the former one "
        f"({data['former']}) finishes its streams, and ends",
        file=stdout(),
    )


def draining(data: Row) -> None:
    """How long it may take."""
    left = data["connections"]
    print(
        f"draining: {left} connection{'' if left == 1 else 's'} to finish, "
        f"{data['timeout_s']:g} s at most",
        file=stdout(),
    )


def _cell(key: str, value: object) -> str:
    if value is None or value == "":
        return _NONE
    if key.endswith("_us") and isinstance(value, int | float):
        return micros(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return str(value)
