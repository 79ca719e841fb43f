# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.gateway [--quick] [--only NAME]...``: measure, judge, write the JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench import report
from xdp_router.lab import libc

from . import figures, run, venvs
from .peers import PROXIES

_ROOT = Path(__file__).resolve().parents[2]
_BENCHMARK = "gateway"
QUICK, FULL = (1, 1.0), (8, 3.0)
"""Rounds, and seconds of each slice."""


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all could be measured, whatever it says; 1 otherwise, 2 for misuse."""
    parser = argparse.ArgumentParser(prog="bench.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: all works")
    names = [proxy.name for proxy in PROXIES]
    parser.add_argument("--only", action="append", choices=names, help="of the proxies")
    scenarios = [scenario.name for scenario in run.SCENARIOS]
    parser.add_argument("--scenario", action="append", choices=scenarios, help="of the scenarios")
    parser.add_argument("--install", action="store_true", help="first get what is not there")
    parser.add_argument(
        "--undisturbed",
        action="store_true",
        help="proxies go before all else that the machine does: for one that is not ours alone",
    )
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    parser.add_argument("--results", type=Path, default=_ROOT / "bench-results")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        parser.error("namespaces need root: sudo make bench-gateway")
    if options.install:
        for why in venvs.install(report.progress).values():
            print(why, file=sys.stderr)
    # Mounts made from here on are this process's and its children's alone, and go with them.
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    conditions = report.conditions(options.quick)
    report.show_conditions(conditions)
    rounds, seconds = QUICK if options.quick else FULL
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix=f"xr-bench-{os.getpid()}-") as directory:
            results = run.measure(
                Path(directory),
                options.rounds or rounds,
                seconds,
                report.progress,
                [s for s in run.SCENARIOS if s.name in (options.scenario or scenarios)],
                [proxy for proxy in PROXIES if proxy.name in (options.only or names)],
                undisturbed=options.undisturbed,
            )
    except (OSError, RuntimeError) as error:
        print(f"bench.gateway: {error}", file=sys.stderr)
        return 1
    conditions["undisturbed"] = options.undisturbed
    conditions["seconds"] = round(time.monotonic() - started, 1)
    for name, why in results.missing.items():
        print(f"{name}: not measured: {why}", file=sys.stderr)
    rows = figures.rows_of(results)
    for row in rows:
        report.show_row(row)
    options.results.mkdir(parents=True, exist_ok=True)
    quick = "-quick" if options.quick else ""
    path = options.results / f"{time.strftime('%Y%m%d-%H%M%S')}-{_BENCHMARK}{quick}.json"
    written = {
        "conditions": conditions,
        "rows": [report.as_json(_BENCHMARK, row) for row in rows],
        "failures": results.missing,
    }
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
