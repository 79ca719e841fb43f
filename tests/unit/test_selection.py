# SPDX-License-Identifier: Apache-2.0
"""The consistent-hash table: shares, disruption, determinism."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xdp_router.core.abi import HASH_SLOTS
from xdp_router.core.model import NO_BACKEND, Backend, Endpoint
from xdp_router.core.selection import build_table, table_work

LINES_PER_WORK = 12
"""About 0.5 us of an interpreter that is not hurried."""


def backends(count: int, weights: dict[int, int] | None = None) -> list[Backend]:
    return [
        Backend(i, f"b{i}", Endpoint(0xC6120102 + 256 * i, 8080), 0, (weights or {}).get(i, 1))
        for i in range(count)
    ]


def test_nobody_usable_gives_an_empty_table() -> None:
    """Without a usable backend every slot says NO_BACKEND."""
    assert build_table([]) == (NO_BACKEND,) * HASH_SLOTS
    assert build_table(backends(2), set()) == (NO_BACKEND,) * HASH_SLOTS


@pytest.mark.parametrize("count", [1, 2, 3, 10, 64])
def test_equal_weights_get_equal_shares(count: int) -> None:
    """Equal backends differ by one slot at most, and no slot is empty."""
    shares = Counter(build_table(backends(count)))
    assert set(shares) == set(range(count))
    assert max(shares.values()) - min(shares.values()) <= 1


def test_ipv6_backends_have_a_table() -> None:
    """Addresses of 128 bits count whole: hosts of many subnets, and of one, have fair shares."""
    network = 0x20010DB8 << 96
    addrs = [network | 1, network | 1 << 64 | 1, network | 2 << 64 | 1, network | 2 << 64 | 2]
    members = [Backend(i, f"b{i}", Endpoint(addr, 80), 0) for i, addr in enumerate(addrs)]
    table = build_table(members)
    shares = Counter(table)
    assert max(shares.values()) - min(shares.values()) <= 1
    assert build_table(reversed(members)) == table


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


def moved(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Owners, before, of the slots that have another one after."""
    return [a for a, b in zip(before, after, strict=True) if a != b]


def test_the_key_is_the_endpoint_and_takes_ipv6() -> None:
    """Backends that are numbered anew keep their slots; an address may have 128 bits."""
    old = [
        Backend(number, f"b{number}", Endpoint(address, 443), 0, number + 1)
        for number, address in enumerate((0xC6120102, 0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 2))
    ]
    new = [Backend(90 - b.id, "n", b.endpoint, 7, b.weight) for b in old]
    for up in ({0, 1, 2}, {0, 2}, {1, 2}, {1}):
        table = build_table(old, up)
        assert set(table) == up
        assert build_table(new, {90 - each for each in up}) == tuple(90 - each for each in table)


members = st.lists(
    st.tuples(st.integers(1, 2**32 - 1), st.integers(1, 1000)),
    min_size=2,
    max_size=64,
    unique_by=lambda each: each[0],
).map(
    lambda pairs: [
        Backend(number, f"b{number}", Endpoint(address, 80), 0, weight)
        for number, (address, weight) in enumerate(pairs)
    ]
)


@given(members, st.data())
@settings(max_examples=60, deadline=None)
def test_who_leaves_moves_its_own_slots_and_gets_just_those_back(
    usable: list[Backend], data: st.DataObject
) -> None:
    """Whatever the weights: not a slot of another one moves, and order does not matter."""
    before = build_table(usable)
    gone = data.draw(st.sampled_from(usable))
    others = {each.id for each in usable} - {gone.id}
    without = build_table(usable, others)
    assert moved(before, without) == [gone.id] * before.count(gone.id)
    assert set(without) <= others
    again = data.draw(st.permutations(usable))
    assert build_table(again, {each.id for each in usable}) == before
    assert build_table(again, others) == without


@given(members, st.data())
@settings(max_examples=60, deadline=None)
def test_shares_follow_the_weights_with_and_without_one(
    usable: list[Backend], data: st.DataObject
) -> None:
    """At most two slots too many (without one: as many more as shares grew), and too few only
    for what the light ones were rounded up by."""
    total = sum(each.weight for each in usable)
    gone = data.draw(st.sampled_from(usable))
    rest = [each for each in usable if each is not gone]
    left = total - gone.weight
    for present, weight, most in ((usable, total, 2), (rest, left, 1 + total / left)):
        shares = Counter(build_table(usable, {each.id for each in present}))
        for each in present:
            ideal = HASH_SLOTS * each.weight / weight
            assert shares[each.id] <= ideal + most
            assert shares[each.id] >= ideal - 1 - len(usable) * ideal / HASH_SLOTS


@given(members, st.data())
@settings(max_examples=60, deadline=None)
def test_any_set_of_those_that_are_up_has_all_slots(
    usable: list[Backend], data: st.DataObject
) -> None:
    """However many are down, each slot names one that is up, and always the same."""
    up = data.draw(st.sets(st.sampled_from([each.id for each in usable]), min_size=1))
    table = build_table(usable, up)
    assert set(table) <= up
    assert build_table(usable[::-1], up) == table


# Down beforehand of 16 or 64; moved slots for each that had to, at most; largest error in slots.
FIGURES = [
    (16, 1, 0, 1.0, 2.5),
    (16, 1, 1, 1.0, 8),
    (16, 1, 8, 1.01, 40),
    (16, 1000, 0, 1.0, 2.5),
    (16, 1000, 8, 1.01, 40),
    (64, 1, 0, 1.0, 2.5),
    (64, 1, 16, 1.0, 12),
    (64, 1000, 0, 1.0, 2.5),
    (64, 1000, 32, 1.01, 25),
]


@pytest.mark.parametrize(("count", "weight", "down", "ratio", "error"), FIGURES)
def test_disruption_while_others_are_down(
    count: int, weight: int, down: int, ratio: float, error: float
) -> None:
    """Figures over ten services of a fixed seed: who leaves while others are down already."""
    source = random.Random(7)
    had = changed = 0
    for _ in range(10):
        usable = [
            Backend(number, f"b{number}", Endpoint(source.getrandbits(32), 80), 0, share)
            for number, share in enumerate(source.randint(1, weight) for _ in range(count))
        ]
        up = {each.id for each in usable} - set(source.sample(range(count), down))
        before = build_table(usable, up)
        for gone in source.sample(sorted(up), min(len(up), 6)):
            after = build_table(usable, up - {gone})
            had += before.count(gone)
            changed += len(moved(before, after))
            total = sum(each.weight for each in usable if each.id in up - {gone})
            for each in usable:
                if each.id in up - {gone}:
                    ideal = HASH_SLOTS * each.weight / total
                    assert abs(after.count(each.id) - ideal) <= error
    assert changed <= ratio * had


def test_more_backends_than_slots() -> None:
    """Only those that own no slot are up: they share them all the same."""
    many = backends(HASH_SLOTS + 200)
    owners = set(build_table(many))
    up = {each.id for each in many} - owners
    assert set(build_table(many, up)) == up


@pytest.mark.parametrize("count", [2, 16, 64, 250, 1000])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share_up", [0.02, 0.5, 1.0])
def test_the_work_of_a_table_is_known_beforehand(
    count: int, weighted: bool, share_up: float
) -> None:
    """What runs, counted in lines of this program, is in proportion to it, whatever the set."""
    members = backends(count, {n: 1 + 37 * n % 1000 for n in range(count)} if weighted else None)
    up = {each.id for each in members[: max(2, round(count * share_up))]}
    lines = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        build_table(members, up)
    finally:
        sys.settrace(before)
    assert lines <= LINES_PER_WORK * table_work(members, up)
