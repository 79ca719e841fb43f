# SPDX-License-Identifier: Apache-2.0
"""Values are forgotten by time."""

from __future__ import annotations

from xdp_router.measure.window import SLICE_NS, SLICES, Earlier, Window


def test_values_are_forgotten_a_slice_at_a_time() -> None:
    """What is an hour old is not in it, what is younger than 50 minutes is."""
    window = Window()
    window.add(10, 0)
    window.add(20, SLICE_NS)
    assert window.merged((SLICES - 1) * SLICE_NS).count == 2
    assert window.merged(SLICES * SLICE_NS).total == 20
    window.add(30, SLICES * SLICE_NS)
    assert window.merged(SLICES * SLICE_NS).total == 50
    assert window.merged(100 * SLICE_NS).count == 0


def test_what_figures_were_when_the_window_began() -> None:
    """It goes with the oldest slice; without looks for long nothing is left but the newest."""
    earlier = Earlier(0, 0, slices=3, slice_ns=10)
    assert [earlier.note(each, each) for each in range(0, 80, 10)] == [0, 0, 0, 10, 20, 30, 40, 50]
    assert earlier.note(71, 71) == 50
    assert earlier.note(999, 999) == 999
