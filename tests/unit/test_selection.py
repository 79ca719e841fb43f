# SPDX-License-Identifier: Apache-2.0
"""The consistent-hash table: shares, disruption, determinism."""

from __future__ import annotations

from collections import Counter

import pytest

from xdp_router.core.abi import HASH_SLOTS
from xdp_router.core.model import NO_BACKEND, Backend, Endpoint
from xdp_router.core.selection import build_table


def backends(count: int, weights: dict[int, int] | None = None) -> list[Backend]:
    return [
        Backend(i, f"b{i}", Endpoint(0xC6120102 + 256 * i, 8080), 0, (weights or {}).get(i, 1))
        for i in range(count)
    ]


def test_nobody_usable_gives_an_empty_table() -> None:
    """Without a usable backend every slot says NO_BACKEND."""
    assert build_table([]) == (NO_BACKEND,) * HASH_SLOTS


@pytest.mark.parametrize("count", [1, 2, 3, 10, 64])
def test_equal_weights_get_equal_shares(count: int) -> None:
    """Equal backends differ by one slot at most, and no slot is empty."""
    shares = Counter(build_table(backends(count)))
    assert set(shares) == set(range(count))
    assert max(shares.values()) - min(shares.values()) <= 1


def test_shares_follow_the_weights() -> None:
    """Shares are proportional to weights, within two slots."""
    shares = Counter(build_table(backends(3, {0: 1, 1: 3, 2: 6})))
    for backend, weight in ((0, 1), (1, 3), (2, 6)):
        assert abs(shares[backend] - HASH_SLOTS * weight / 10) <= 2


def test_the_lightest_backend_is_not_left_out() -> None:
    """Even a backend whose share is below one slot gets one."""
    assert Counter(build_table(backends(4, {0: 1, 1: 1000, 2: 1000, 3: 1000})))[0] == 1


def test_table_depends_on_the_set_alone() -> None:
    """Order and names do not matter, and the same set gives the same table in every process."""
    usable = backends(5)
    renamed = [Backend(b.id, b.name + "x", b.endpoint, 3, b.weight) for b in reversed(usable)]
    assert build_table(renamed) == build_table(usable)
    # Written down once: another release must not move the flows of a running router.
    assert build_table(usable)[:12] == (3, 1, 1, 2, 3, 2, 2, 4, 4, 1, 1, 1)


def test_few_slots_move_when_a_backend_goes() -> None:
    """Taking one of ten away moves its slots, and few of the others': 6 % on average at most."""
    usable = backends(10)
    before = build_table(usable)
    moved = []
    for gone in usable:
        after = build_table([b for b in usable if b is not gone])
        assert gone.id not in after
        moved.append(sum(a != b for a, b in zip(before, after, strict=True) if a != gone.id))
    assert sum(moved) / len(moved) <= 0.06 * HASH_SLOTS, moved


def test_a_backend_that_returns_gets_its_slots_back() -> None:
    """Down and up again leaves the table as it was."""
    usable = backends(4)
    before = build_table(usable)
    assert build_table(usable[1:]) != before
    assert build_table(usable[1:] + usable[:1]) == before
