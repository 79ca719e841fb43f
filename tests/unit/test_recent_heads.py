# SPDX-License-Identifier: Apache-2.0
"""Heads that came lately."""

from __future__ import annotations

import pytest

from xdp_router.gateway.recent_heads import RecentHeads


@pytest.mark.parametrize(("most", "in_all"), [(4, 1_000), (1_000, 12)])
def test_two_generations_and_no_more(most: int, in_all: int) -> None:
    """By number or by bytes; one that comes again stays, also beyond many others."""
    recent = RecentHeads[int](most, 3, in_all)
    recent._keep(b"own", 7)
    for number in range(100, 160):
        recent._keep(b"%d" % number, number)
        assert len(recent) <= 8
        found = recent._recall(b"own")
        assert found == 7
        recent._keep(b"own", found)
    assert recent._recall(b"100") is None
    recent._keep(b"long", 1)
    assert recent._recall(b"long") is None
