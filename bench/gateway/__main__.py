# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.gateway [--quick] [--only NAME]...``: measure, judge, write the JSON."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.rows import Row
from xdp_router.lab import libc

from . import deciding, figures, relays, run, venvs
from .peers import PROXIES

_ROOT = Path(__file__).resolve().parents[2]
_BENCHMARK = "gateway"
_DECISIONS, _RELAYS = "decisions", "relays"
QUICK, FULL = (1, 1.0), (8, 3.0)
"""Rounds, and seconds of each slice."""
_RELAY_ROUNDS, _DECISIONS_S = 3, 6.0


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all could be measured, whatever it says; 1 otherwise, 2 for misuse."""
    parser = argparse.ArgumentParser(prog="bench.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: all works")
    names = [proxy.name for proxy in PROXIES]
    parser.add_argument("--only", action="append", choices=names, help="of the proxies")
    scenarios = [scenario.name for scenario in run.SCENARIOS] + [_DECISIONS, _RELAYS]
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
        wanted = {name: venvs.PACKAGES[name] for name in ("envoy", "litellm")}
        for why in venvs.install(report.progress, packages=wanted).values():
            print(why, file=sys.stderr)
    # Mounts made from here on are this process's and its children's alone, and go with them.
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    conditions = report.conditions(options.quick)
    report.show_conditions(conditions)
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix=f"xr-bench-{os.getpid()}-") as directory:
            rows, missing = _measured(Path(directory), options, options.scenario or scenarios)
    except (OSError, RuntimeError) as error:
        print(f"bench.gateway: {error}", file=sys.stderr)
        return 1
    conditions["undisturbed"] = options.undisturbed
    conditions["seconds"] = round(time.monotonic() - started, 1)
    for name, why in missing.items():
        print(f"{name}: not measured: {why}", file=sys.stderr)
    for row in rows:
        report.show_row(row)
    raw = {
        "conditions": conditions,
        "rows": [report.as_json(_BENCHMARK, row) for row in rows],
        "failures": missing,
    }
    report.written(raw, options.results, _BENCHMARK)
    return 0


def _measured(
    directory: Path, options: argparse.Namespace, wanted: Sequence[str]
) -> tuple[list[Row], dict[str, str]]:
    """All rows, and what could not be had. Raises OSError, RuntimeError."""
    rounds, seconds = QUICK if options.quick else FULL
    rounds = options.rounds or rounds
    only = options.only or [proxy.name for proxy in PROXIES]
    scenarios = [each for each in run.SCENARIOS if each.name in wanted]
    proxies = [each for each in PROXIES if each.name in only]
    rows: list[Row] = []
    missing: dict[str, str] = {}
    if scenarios:
        results = run.measure(
            directory,
            rounds,
            seconds,
            report.progress,
            scenarios,
            proxies,
            undisturbed=options.undisturbed,
        )
        rows += figures.rows_of(results)
        missing.update(results.missing)
    if _DECISIONS in wanted and figures.OURS in only:
        found = deciding.measure(
            directory / _DECISIONS, min(rounds * seconds, _DECISIONS_S), report.progress
        )
        rows += deciding.rows_of(found, deciding.lookups())
    if _RELAYS in wanted:
        relayed = [each for each in relays.PROXIES if each.name in (*only, relays.SPLICE)]
        turned, without = relays.measure(
            directory / _RELAYS, min(rounds, _RELAY_ROUNDS), seconds, report.progress, relayed
        )
        rows.append(relays.row_of(turned, without))
        missing.update(without)
    return rows, missing


if __name__ == "__main__":
    sys.exit(main())
