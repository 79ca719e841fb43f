# SPDX-License-Identifier: Apache-2.0
"""What an interval's flows say of their backend."""

from __future__ import annotations

import pytest

from xdp_router.core.health import Ill
from xdp_router.core.health_looks import NOTHING, Seen, of_traffic, sum_of
from xdp_router.core.model import Signs


@pytest.mark.parametrize(
    ("signs", "seen"),
    [
        (Signs(answered=1), Seen(True)),
        (Signs(served=1, cut=9, refused=9, unanswered=9, sources=9), Seen(True)),
        (Signs(unanswered=1), Seen(True, Ill.UNANSWERED)),
        (Signs(unanswered=9, sources=9, answered=1), Seen(True)),
        (Signs(unreachable=1), Seen(True, Ill.UNREACHABLE)),
        (Signs(unreachable=1, answered=1), Seen(True)),
        (Signs(refused=1), Seen(True, Ill.REFUSED)),
        (Signs(refused=1, answered=1), Seen(True)),
        (Signs(refused=3, answered=2, sources=1), Seen(True, Ill.REFUSED)),
        (Signs(answered=5, cut=5), Seen(True, Ill.REFUSED)),
        (Signs(answered=5, cut=2), Seen(True)),
        (Signs(), NOTHING),
    ],
)
def test_what_flows_say(signs: Signs, seen: Seen) -> None:
    """Where no probe contradicts: one that is answered outweighs all silence, and one that is
    served all refusals; one that is cut was not answered."""
    assert of_traffic(signs, False) == seen


@pytest.mark.parametrize(
    ("signs", "seen"),
    [
        (Signs(unanswered=9, sources=1), NOTHING),
        (Signs(unanswered=2, sources=2), Seen(True, Ill.UNANSWERED)),
        (Signs(refused=9, sources=1), NOTHING),
        (Signs(refused=9, sources=2), Seen(True, Ill.REFUSED)),
        (Signs(unreachable=9), NOTHING),
        (Signs(answered=1, cut=1), NOTHING),
        (Signs(answered=9, cut=9), NOTHING),
        (Signs(answered=2, cut=2, sources=1), NOTHING),
        (Signs(answered=2, cut=2, sources=2), Seen(True, Ill.REFUSED)),
        (Signs(answered=1), Seen(True)),
    ],
)
def test_one_source_against_a_good_probe(signs: Signs, seen: Seen) -> None:
    """Does not make a backend ill, however often: it may be that one which is kept out, or which
    sends what it knows to be cut."""
    assert of_traffic(signs, True) == seen


def test_what_comes_in_two_parts_is_added_up() -> None:
    """Nothing of it is lost; whose the newest source was is nobody's affair any more."""
    one = Signs(1, 2, 3, 4, 5, 6, 7, 8)
    assert sum_of(one, one) == Signs(2, 4, 6, 8, 10, 12, 0, 16)
