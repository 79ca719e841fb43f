# SPDX-License-Identifier: Apache-2.0
"""Looks at what a router has: flows, counts of them, descriptors, memory."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.router import Router
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core.abi import NAT_REST_S

from .leaks import Quiet

_LATE_S = 10.0
"""By so much the ager may be late on a busy machine."""
_ALL = "1000000"
_MADE = ("established", "closing", "killed")


def look(router: Router) -> Quiet:
    """What there is now."""
    rows: list[dict[str, Any]] = router.json("flows", "--limit", _ALL)
    left: Counter[str] = Counter()
    resting: Counter[str] = Counter()
    unmade = 0
    for row in rows:
        if not row["source_address"] or row["idle_s"] > NAT_REST_S + _LATE_S:
            left[row["service"]] += 1
        elif row["state"] in _MADE:
            resting[row["service"]] += 1
        else:
            unmade += 1
    used = {row["name"]: row["connections"] for row in router.ask("services")}
    entries, loads = router.maps_read(_counts)
    fds, kib = process_of(router.pid)
    return Quiet(fds, kib, entries, left, resting, unmade, used, loads)


def _counts(maps: Maps) -> tuple[dict[str, int], dict[str, int]]:
    entries = {}
    for family, tables in maps.by_family.items():
        suffix = "6" if family == 6 else ""
        entries[f"flow_table{suffix}"] = sum(each.count for each in tables.flows.batches(1024))
        for name, table in zip(("pending_flows", "flood_flows"), tables.both, strict=True):
            entries[name + suffix] = sum(each.count for each in table.batches(1024))
    totals = maps.backend_loads.totals()
    return entries, {
        f"backend {number}": opened - gone for number, (opened, gone) in totals.items()
    }


def process_of(pid: int) -> tuple[int, int]:
    """Its descriptors, and its memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return len(os.listdir(f"/proc/{pid}/fd")), int(line.split()[1])
