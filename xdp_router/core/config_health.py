# SPDX-License-Identifier: Apache-2.0
"""The keys of a service that say when its backends are ill, and how they come back."""

from __future__ import annotations

from .config_fields import MS, S, Table, format_duration
from .model import HealthSettings

COUNT_MOST = 100


def read_health(table: Table) -> HealthSettings | None:
    """The keys ``health``, ``health_*``, ``slow_start`` and ``reset_on_death``.

    None: ``health = false``. The others may be there all the same: it can be turned on later.
    """
    default = HealthSettings()
    is_on = table.boolean("health", True)
    interval_ns = table.duration("health_interval", default.interval_ns, 100 * MS, 60 * S)
    rise = table.integer("health_rise", default.rise, 1, COUNT_MOST)
    fall = table.integer("health_fall", default.fall, 1, COUNT_MOST)
    hold_ns = table.duration("health_hold", default.hold_ns, 0, 3600 * S)
    hold_max_ns = table.duration(
        "health_hold_max", max(default.hold_max_ns, hold_ns), 0, 24 * 3600 * S
    )
    if hold_max_ns < hold_ns:
        table.found(
            "health_hold_max",
            format_duration(hold_max_ns),
            f"at least health_hold ({format_duration(hold_ns)}): it is what that doubles up to",
        )
    slow_start_ns = table.duration("slow_start", default.slow_start_ns, 0, 3600 * S)
    reset = table.boolean("reset_on_death", True)
    if not is_on:
        return None
    return HealthSettings(interval_ns, rise, fall, hold_ns, hold_max_ns, slow_start_ns, reset)
