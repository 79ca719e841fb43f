# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.compare [--quick] [--docs] [--from FILE]``: measure, judge, draw."""

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
from bench.readme import NotFit
from xdp_router.lab import libc

from . import document, figures, plots, run
from .scenarios import SCENARIOS

_RESULTS = document.ROOT / "bench-results"
_BENCHMARK = "compare"
QUICK_ROUNDS, ROUNDS = 1, 6
"""Of 60 s for each scenario, and 7 minutes in all with 6."""


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all could be measured, whatever it says; 1 otherwise, 2 for misuse."""
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round: shows that all works")
    parser.add_argument("--docs", action="store_true", help="into docs/measurement.md and docs/img")
    parser.add_argument("--from", type=Path, dest="file", help="measure nothing: a results file")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of the files")
    options = parser.parse_args(argv)
    if options.docs and options.quick:
        parser.error("a quick run is no figure for the documents: leave out --quick or --docs")
    if options.docs and not plots.available():
        parser.error(plots.MISSING)
    try:
        if options.file:
            raw = json.loads(options.file.read_text(encoding="utf-8"))
            path = options.file
        else:
            if os.geteuid() != 0:
                parser.error("namespaces and BPF need root: sudo make bench-compare")
            raw = _measured(options.quick)
            path = report.written(raw, options.results, _BENCHMARK)
        _draw(raw, path, options.results)
        if options.docs:
            document.write(raw)
            print(f"written: {document.DOCUMENT} and {document.IMAGES}")
    except (NotFit, OSError, RuntimeError, json.JSONDecodeError) as error:
        print(f"bench.compare: {error}", file=sys.stderr)
        return 1
    return 0


def _measured(quick: bool) -> dict[str, Any]:
    # Mounts made from here on are this process's and its children's alone, and go with them.
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    conditions = report.conditions(quick)
    report.show_conditions(conditions)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"xr-bench-{os.getpid()}-") as directory:
        rounds = QUICK_ROUNDS if quick else ROUNDS
        results = run.measure(Path(directory), rounds, report.progress)
    conditions["seconds"] = round(time.monotonic() - started, 1)
    for name, why in results.missing.items():
        print(f"{name}: not measured: {why}", file=sys.stderr)
    rows = figures.rows_of(results)
    report.show_table(rows)
    return {
        "conditions": conditions,
        "rows": [report.as_json(_BENCHMARK, row) for row in rows],
        "failures": dict(results.missing),
    }


def _draw(raw: Mapping[str, Any], path: Path, results: Path) -> None:
    if not plots.available():
        print(plots.MISSING, file=sys.stderr)
        return
    for scenario in SCENARIOS:
        picture = results / f"{path.stem}-{scenario.name}.png"
        document.draw(raw, scenario, picture)
        print(f"written: {picture}")


if __name__ == "__main__":
    sys.exit(main())
