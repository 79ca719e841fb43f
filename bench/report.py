# SPDX-License-Identifier: Apache-2.0
"""How results look: the machine they were taken on, the table, the JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .rows import Row, Table

_BUSY = 0.5
_WIDTH = 100


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _first_line(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return ""
    return done.stdout.splitlines()[0] if done.stdout else ""


def _sysctl(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def conditions(quick: bool) -> dict[str, Any]:
    """What the numbers depend on and a reader has to know."""
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "clang": _first_line("clang", "--version"),
        "jit": _sysctl("/proc/sys/net/core/bpf_jit_enable"),
        "jit_harden": _sysctl("/proc/sys/net/core/bpf_jit_harden"),
        "load_before": os.getloadavg()[0],
        "quick": quick,
        "wires": "veth pairs between namespaces of one machine",
    }


def show_conditions(values: dict[str, Any]) -> None:
    """Print them, and warn when the machine is not ours alone."""
    print(
        f"{values['cpu']}, {values['cpus']} CPUs, {values['memory_mb']} MB; "
        f"Linux {values['kernel']}, Python {values['python']}; {values['wires']}"
    )
    if values["load_before"] > _BUSY:
        print(
            f"warning: load is {values['load_before']:.2f}: other work on this machine makes "
            "times longer; run it alone for figures that count"
        )


def progress(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"-- {text}", file=sys.stderr, flush=True)


def verdict(ok: bool | None) -> str:
    """In one word."""
    return {True: "pass", False: "SHORT", None: "-"}[ok]


def show_row(row: Row) -> None:
    """Print a row as soon as it is there."""
    print(f"{verdict(row.ok):5}  {row.name}: {row.measured}  [{row.goal}]", flush=True)
    if row.table:
        print("\n".join(table_lines(row.table)), flush=True)


def table_lines(table: Table) -> list[str]:
    """The table as lines of Markdown, its columns in line; the first to the left, numbers to the
    right."""
    every = (table.head, *table.lines)
    widths = [max(len(line[at]) for line in every) for at in range(len(table.head))]

    def text(line: tuple[str, ...]) -> str:
        first, *others = line
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return "| " + " | ".join(cells) + " |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return [text(table.head), "| " + " | ".join(rule) + " |", *map(text, table.lines)]


def show_table(rows: Iterable[Row]) -> None:
    """Print all rows: what, goal, measured, verdict, and below it how."""
    print()
    for row in rows:
        print(f"{verdict(row.ok):5}  {row.name}")
        print(f"       goal      {row.goal}")
        for label, text in (("measured", row.measured), ("how", row.how)):
            lines = textwrap.wrap(text, _WIDTH - 17)
            print(f"       {label:9} " + ("\n" + " " * 17).join(lines))
        if row.table:
            print("\n".join(f"       {line}" for line in table_lines(row.table)))


def as_json(benchmark: str, row: Row) -> dict[str, Any]:
    """A row for the JSON file."""
    return {
        "benchmark": benchmark,
        "name": row.name,
        "goal": row.goal,
        "measured": row.measured,
        "ok": row.ok,
        "how": row.how,
        "values": dict(row.values),
        "table": _rows_of(row.table) if row.table else None,
    }


def _rows_of(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.head, line, strict=True)) for line in table.lines]


def written(raw: Mapping[str, Any], results: Path, benchmark: str = "") -> Path:
    """Write a run's JSON into that folder, under its time and name; says and returns where.

    Raises OSError. Without a name it is the run of all benchmarks.
    """
    results.mkdir(parents=True, exist_ok=True)
    quick = "quick" if raw["conditions"]["quick"] else ""
    name = "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S"), benchmark, quick)))
    path = results / f"{name}.json"
    path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {path}")
    return path
