# SPDX-License-Identifier: Apache-2.0
"""The figures of the field: what they are, and that nothing is said of nothing."""

from __future__ import annotations

from xdp_router.measure.field import fppl_share, probe_overhead, retention


def test_shares() -> None:
    """Each is what it says, within its range."""
    assert fppl_share(20, 100) == 0.2
    assert fppl_share(120, 100) == 1.0
    assert retention(1000, 1) == 0.999
    assert retention(1, 5) == 0.0
    assert probe_overhead(30, 3000) == 0.01


def test_nothing_to_tell_it_by() -> None:
    """No flows, no bytes: no figure, rather than one that looks like a good one."""
    assert fppl_share(0, 0) is None
    assert retention(0, 0) is None
    assert probe_overhead(100, 0) is None
