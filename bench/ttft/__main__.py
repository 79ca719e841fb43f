# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.ttft [--quick] [--docs] [--from FILE]``: measure, judge, draw."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import report
from bench.compare import plots
from bench.compare.document import DOCUMENT, ROOT
from bench.gateway import venvs
from bench.readme import NotFit
from xdp_router.lab import libc

from . import arms, document, figures, run

_BENCHMARK = "ttft"
QUICK, FULL = (1, 4.0), (4, 15.0)
"""Rounds, and seconds of each slice: with all of it 3,000 requests of each arm in a scenario."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.ttft", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: all works")
    parser.add_argument("--docs", action="store_true", help="into docs/measurement.md and docs/img")
    parser.add_argument("--from", type=Path, dest="file", help="measure nothing: a results file")
    parser.add_argument("--only", action="append", choices=list(arms.ABOUT), help="of the arms")
    names = [each.name for each in run.SCENARIOS]
    parser.add_argument("--scenario", action="append", choices=names, help="of the scenarios")
    parser.add_argument("--install", action="store_true", help="first get what is not there")
    parser.add_argument(
        "--undisturbed",
        action="store_true",
        help="proxies go before all else that the machine does: for one that is not ours alone",
    )
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    parser.add_argument("--seconds", type=float, help="of each slice, instead of the usual")
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all could be measured, whatever it says; 1 otherwise, 2 for misuse."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.docs and options.quick:
        parser.error("a quick run is no figure for the documents: leave out --quick or --docs")
    if options.docs and not plots.available():
        parser.error(plots.MISSING)
    try:
        if options.file:
            path: Path = options.file
            raw = json.loads(path.read_text(encoding="utf-8"))
        else:
            if os.geteuid() != 0:
                parser.error("namespaces need root: sudo make bench-ttft")
            raw = _measured(options)
            path = report.written(raw, options.results, _BENCHMARK)
        _draw(raw, path, options.results)
        if options.docs:
            document.write(raw)
            print(f"written: {DOCUMENT}")
    except (NotFit, OSError, RuntimeError, json.JSONDecodeError) as error:
        print(f"bench.ttft: {error}", file=sys.stderr)
        return 1
    return 0


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    if options.install:
        wanted = {"smg": venvs.PACKAGES["smg"]}
        for why in venvs.install(report.progress, packages=wanted).values():
            print(why, file=sys.stderr)
    # Mounts made from here on are this process's and its children's alone, and go with them.
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    conditions = report.conditions(options.quick)
    report.show_conditions(conditions)
    rounds, seconds = QUICK if options.quick else FULL
    scenarios = [s for s in run.SCENARIOS if s.name in (options.scenario or [s.name])]
    among = [p for p in arms.proxies() if p.name in (options.only or [p.name])]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"xr-bench-{os.getpid()}-") as directory:
        results = run.measure(
            Path(directory),
            options.rounds or rounds,
            options.seconds or seconds,
            report.progress,
            scenarios,
            among,
            undisturbed=options.undisturbed,
        )
    conditions["undisturbed"] = options.undisturbed
    conditions["seconds"] = round(time.monotonic() - started, 1)
    for name, why in results.missing.items():
        print(f"{name}: not measured: {why}", file=sys.stderr)
    rows = figures.rows_of(results)
    for row in rows:
        report.show_row(row)
    return {
        "conditions": conditions,
        "rows": [report.as_json(_BENCHMARK, row) for row in rows],
        "failures": dict(results.missing),
    }


def _draw(raw: Mapping[str, Any], path: Path, results: Path) -> None:
    if not plots.available():
        print(plots.MISSING, file=sys.stderr)
        return
    for scenario in document.measured(raw):
        picture = results / f"{path.stem}-{scenario.name}.png"
        document.draw(raw, scenario, picture)
        print(f"written: {picture}")


if __name__ == "__main__":
    sys.exit(main())
