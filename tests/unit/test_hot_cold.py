# SPDX-License-Identifier: Apache-2.0
"""Hot or cold, then by latency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.hot_cold import LEAST_COUNTS, InFlightWindow, Load, hcl

ORDERS = {
    "nobody": ([], 3, []),
    "the cold by latency": ([Load(1, 30), Load(3, 10), Load(2, 20)], 3, [1, 2, 0]),
    "a hot one is behind": ([Load(4, 1), Load(3, 99)], 3, [1, 0]),
    "the hot by requests": ([Load(9, 1), Load(5, 50), Load(7, 2)], 3, [1, 2, 0]),
    "of equal hot ones the faster": ([Load(9, 2), Load(9, 1)], 3, [1, 0]),
    "of equally fast ones the less busy": ([Load(2, 7), Load(1, 7)], 3, [1, 0]),
    "equals stay": ([Load(1, 7), Load(1, 7), Load(1, 7)], 3, [0, 1, 2]),
    "nobody is hot yet": ([Load(50, 1), Load(0, 2)], None, [0, 1]),
    "who has none gets one": ([Load(0, 1), Load(0)], 3, [1, 0]),
    "who has one is waited for": ([Load(0, 1), Load(1), Load(3, 900)], 3, [0, 2, 1]),
    "of the unknown the less busy": ([Load(2), Load(1)], 3, [1, 0]),
    "unknown and hot": ([Load(9), Load(0, 5)], 3, [1, 0]),
    "as many as the line is not hot": ([Load(3, 1), Load(0, 2)], 3, [0, 1]),
}


@pytest.mark.parametrize(("loads", "line", "order"), ORDERS.values(), ids=ORDERS)
def test_the_order(loads: list[Load], line: int | None, order: list[int]) -> None:
    """Each part of the rule."""
    assert hcl(loads, line) == order


LOADS = st.builds(Load, st.integers(0, 20), st.none() | st.integers(1, 10**10))


@given(st.lists(LOADS, max_size=12), st.none() | st.integers(0, 20))
def test_an_order_has_everybody_once_and_the_hot_last(loads: list[Load], line: int | None) -> None:
    """Nobody is lost: the hot are asked when there is nobody else."""
    order = hcl(loads, line)
    assert sorted(order) == list(range(len(loads)))
    hot = [line is not None and loads[index].in_flight > line for index in order]
    assert hot == sorted(hot)


def test_the_line_is_a_quantile_of_what_was_met_lately() -> None:
    """Nothing before there are some; old counts are forgotten."""
    window = InFlightWindow(0.5, window=LEAST_COUNTS)
    lines = [window.line]
    window.note([Load(each) for each in range(LEAST_COUNTS - 1)])
    lines.append(window.line)
    window.note([Load(100)])
    lines.append(window.line)
    for _ in range(32):
        window.note([Load(7)])
    assert [*lines, window.line] == [None, None, 3, 7]


def test_the_line_is_not_drawn_anew_for_each_request() -> None:
    """Sorting is for some thirty counts at a time."""
    window = InFlightWindow(0.5, window=LEAST_COUNTS)
    window.note([Load(1)] * LEAST_COUNTS)
    window.note([Load(5)] * LEAST_COUNTS)
    assert window.line == 1
    window.note([Load(5)] * 32)
    assert window.line == 5


def test_one_that_has_more_than_ever_is_hot() -> None:
    """In a steady state, a burst to one backend is seen by the next request."""
    window = InFlightWindow()
    for count in range(300):
        window.note([Load(count % 4), Load(2), Load(3)])
    loads = [Load(9, 10), Load(3, 500), Load(2, 900)]
    assert hcl(loads, window.line) == [1, 2, 0]


def test_what_cannot_be_is_refused() -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match="quantile: expected 0 to 1, found 2"):
        InFlightWindow(2)
    with pytest.raises(ValueError, match="window: expected 8 or more, found 7"):
        InFlightWindow(window=7)
