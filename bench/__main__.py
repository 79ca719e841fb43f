# SPDX-License-Identifier: Apache-2.0
"""``python -m bench [--quick] [--list] [NAME...]``: run, print the table, write the JSON."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from xdp_router.lab import libc

from . import (
    connections,
    first_packet,
    forwarding,
    hash_table,
    lifetime,
    one_table,
    over_budget,
    picks,
    program_run,
    reinjection,
    report,
    syn_flood,
)
from .rows import Options, Row

Benchmark = Callable[[Options], Iterator[Row]]

BENCHMARKS: dict[str, Benchmark] = {
    "bound-hot": program_run.bound_hot,
    "bound-random": program_run.bound_random,
    "beside-ipv6": one_table.beside_ipv6,
    "one-table": one_table.one_table,
    "syn": over_budget.first_packets,
    "picks": picks.decided_at_once,
    "forwarding": forwarding.forwarding,
    "race": first_packet.race_overhead,
    "rate": first_packet.decided_rate,
    "reinjection": reinjection.reinjection,
    "syn-flood": syn_flood.syn_flood,
    "stall": connections.stall,
    "probes": connections.probe_share,
    "load": lifetime.loading,
    "memory": lifetime.memory,
    "ageing": lifetime.ageing,
    "disruption": hash_table.disruption,
}

_RESULTS = Path(__file__).resolve().parents[1] / "bench-results"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when every row could be measured, whatever it says; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of the JSON files")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(BENCHMARKS))
        return 0
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: --list names them all")
    if os.geteuid() != 0:
        parser.error("namespaces and BPF need root: sudo make bench")
    # Mounts made from here on are this process's and its children's alone, and go with them.
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    return run(options.names or list(BENCHMARKS), options.quick, options.results)


def run(names: list[str], quick: bool, results: Path) -> int:
    """Run benchmarks in order, showing each row as soon as it is known."""
    conditions = report.conditions(quick)
    report.show_conditions(conditions)
    rows: list[tuple[str, Row]] = []
    failures: dict[str, str] = {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"xr-bench-{os.getpid()}-") as directory:
        for name in names:
            report.progress(name)
            at = time.monotonic()
            try:
                for row in BENCHMARKS[name](Options(quick, Path(directory))):
                    rows.append((name, row))
                    report.show_row(row)
            except Exception as error:  # the other rows are still wanted
                failures[name] = f"{type(error).__name__}: {error}"
                print(f"{name}: could not be measured: {error}", file=sys.stderr)
                traceback.print_exc()
            report.progress(f"{name} took {time.monotonic() - at:.1f} s")
    conditions["seconds"] = round(time.monotonic() - started, 1)
    report.show_table([row for _, row in rows])
    raw: dict[str, Any] = {
        "conditions": conditions,
        "rows": [report.as_json(name, row) for name, row in rows],
        "failures": failures,
    }
    report.written(raw, results)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
