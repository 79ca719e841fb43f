# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind, as it is when it has warmed up and when it is over, judged. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MORE_FDS = 2
"""Two connections to the control socket at the moment of looking."""
MORE_KIB = 48 << 10
"""Ten thousand decisions that are kept for ``explain``, and what the allocator keeps."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """What a router has while nobody uses it.

    ``entries``: by table of flows. ``rows``: flows that are left, by service; ports of fullnat
    that rest apart: in ``resting`` those of flows that were established, in ``unmade`` the number
    of the others. ``used``: open flows by service, by ``usage``; ``loads``: by backend.
    """

    fds: int = 0
    kib: int = 0
    entries: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    resting: Mapping[str, int] = field(default_factory=dict)
    unmade: int = 0
    used: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, int] = field(default_factory=dict)


def complaints(before: Quiet, after: Quiet) -> list[str]:
    """What has leaked; nothing if all is well."""
    found = [f"{count} flows of {name} are left" for name, count in after.rows.items() if count]
    resting = sum(after.resting.values())
    for table, count in after.entries.items():
        # Two entries each in flow_table; in the other tables up to three, which rest as well.
        rests = 2 * resting if table.startswith("flow_table") else 3 * (resting + after.unmade)
        if count > rests:
            found.append(f"{count} entries are left in {table}, {rests} of ports that rest")
    for name, count in after.used.items():
        if count != after.resting.get(name, 0):
            found.append(
                f"usage has {count} open flows of {name}, flow_table {after.resting.get(name, 0)}"
            )
    found += [
        f"{count} open flows are counted for {n}" for n, count in after.loads.items() if count
    ]
    if after.fds > before.fds + MORE_FDS:
        found.append(f"the daemon has {after.fds} descriptors, {before.fds} before")
    if after.kib > before.kib + MORE_KIB:
        found.append(f"the daemon has {after.kib} KiB, {before.kib} before")
    return found


def uncounted(compared: Mapping[str, int], counted: Mapping[str, float]) -> list[str]:
    """Bytes that clients have had compared, and totals that have fewer; by backend."""
    return [
        f"{octets} bytes by {name} were compared, and {counted[name]:.0f} counted"
        for name, octets in compared.items()
        if name in counted and counted[name] < octets
    ]


def went_back(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Totals that are lower than they were."""
    return [
        f"{name} went from {before[name]:.0f} to {value:.0f}"
        for name, value in after.items()
        if value < before.get(name, 0.0)
    ]
