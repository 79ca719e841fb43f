# SPDX-License-Identifier: Apache-2.0
"""Tables for what the gateway's commands show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .output import stdout
from .render import micros, rtt, seconds, table_of

Row = Mapping[str, Any]

_NONE = "-"
_STEPS = "timeline"


def status(data: Row) -> None:
    """Print the answer of ``status``."""
    print(
        f"{data['state']}, pid {data['pid']}, up {seconds(data['uptime_s'])}, {data['config']}\n"
        f"{data['listeners']} listeners, {data['backends']} backends, "
        f"{data['connections']} connections, generation {data['generation']}\n",
        file=stdout(),
    )
    table_of(
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


def listeners(rows: Sequence[Row]) -> None:
    """One line each."""
    table_of(
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
    """One line each."""
    table_of(
        ("LISTENER", "BACKEND", "ADDRESS", "STATE", "IN FLIGHT", "RTT", "TTFT"),
        (
            (
                each["listener"],
                each["name"],
                each["address"],
                f"{each['state']}, asked to wait" if each["held_s"] else each["state"],
                each["in_flight"],
                rtt(each["rtt_us"]),
                rtt(each["ttft_us"]),
            )
            for each in rows
        ),
        "no backends",
    )


def rows(data: Sequence[Row], empty: str) -> None:
    """A column for each key that some row has, in the order in which they come."""
    keys = list(dict.fromkeys(key for each in data for key in each))
    table_of(
        [key.removesuffix("_us").removesuffix("_s").replace("_", " ").upper() for key in keys],
        ([_cell(key, each.get(key)) for key in keys] for each in data),
        empty,
    )


def explain(data: Row) -> None:
    """All that is known of a request, and then its steps in time."""
    plain = {key: value for key, value in data.items() if key != _STEPS}
    width = max(map(len, plain), default=0)
    for key, value in plain.items():
        print(f"{key.replace('_', ' '):{width}}  {_cell(key, value)}", file=stdout())
    steps = data.get(_STEPS) or ()
    if steps:
        print(file=stdout())
    for step in steps:
        if isinstance(step, Mapping):
            at = micros(step.get("at_us"))
            words = step.get("what", "")
            more = ", ".join(
                f"{key.removesuffix('_us')} {_cell(key, value)}"
                for key, value in step.items()
                if key not in ("at_us", "what") and value is not None
            )
            print(f"{at:>10}  {words}{': ' if more else ''}{more}", file=stdout())
        else:
            print(f"{'':>10}  {step}", file=stdout())


def reloaded(data: Row) -> None:
    """What became of it."""
    what = f"{data['listeners']} listeners, {data['workers']} workers"
    if data["applied"]:
        print(f"reloaded: {what}, generation {data['generation']}", file=stdout())
    else:
        print(f"good: {what}; nothing was changed (--dry-run)", file=stdout())


def draining(data: Row) -> None:
    """How long it may take."""
    count = data["connections"]
    print(
        f"draining: {count} connection{'' if count == 1 else 's'} to finish, "
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
