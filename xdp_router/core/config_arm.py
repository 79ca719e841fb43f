# SPDX-License-Identifier: Apache-2.0
"""The keys of a service that say which of its flows are not decided by its mode."""

from __future__ import annotations

from .config_fields import Table
from .model import ONE_SIDED, Forwarding, Mode

SHARE_MAX = 50
"""Percent: more would make the exception the rule."""

_BY = {"round_robin": Mode.ROUND_ROBIN, "hash": Mode.HASH}


def read_control_arm(table: Table, forwarding: Forwarding) -> tuple[int, Mode]:
    """The share in percent, and how its flows are decided."""
    share = table.integer("control_arm", 0, 0, SHARE_MAX)
    by = table.choice("control_arm_by", "round_robin", _BY)
    if not share:
        return 0, by
    if forwarding in ONE_SIDED:
        table.found(
            "control_arm",
            f"it with forwarding {forwarding.name.lower()!r}, whose replies are not seen here, "
            "so that there is nothing to compare",
            'forwarding = "nat" or "fullnat" beside it',
        )
        return 0, by
    return share, by
