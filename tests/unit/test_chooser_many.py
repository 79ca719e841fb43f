# SPDX-License-Identifier: Apache-2.0
"""A choice among more backends than a request looks at."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.listeners import listener
from tests.support.sights import ToldSight
from xdp_router.gateway.candidates import LOOKED_AT, Candidates
from xdp_router.gateway.chooser import PLACES, Chooser, Known, Order
from xdp_router.gateway.prefix_cache import MOST_HOLDERS

MS = 1_000_000
MODES = ("race", "snapshot", "inline")
POLICIES = ("score", "hcl")


class Requests:
    """To one listener, one after the other."""

    def __init__(self, keys: str, sight: ToldSight, kind: str = "http") -> None:
        self.sight = sight
        self.candidates = Candidates(sight.backends)
        self._chooser = Chooser(listener(keys, kind=kind))
        self._rng = random.Random(11)

    def next(self, blocks: tuple[int, ...] = ()) -> Order:
        """One more."""
        draw = self._rng.random
        draws = draw(), draw(), draw()
        return self._chooser.order(self.candidates, self.sight, blocks, 1.0, draws)


def equals(count: int) -> list[Known]:
    """Nothing tells them apart."""
    return [Known(index, 1, 0, rtt_ns=MS) for index in range(count)]


@given(
    st.sampled_from(MODES),
    st.sampled_from(POLICIES),
    st.sampled_from([0, 50]),
    st.integers(2, 70),
    st.data(),
)
def test_nobody_is_asked_by_what_was_true_before(
    mode: str, policy: str, arm: int, size: int, data: st.DataObject
) -> None:
    """Who is ill, or to be left alone, comes behind all others in the very next request, however
    good it was; and comes still if there is nobody else."""
    keys = f'mode = "{mode}"\npolicy = "{policy}"\ncontrol_arm = {arm}'
    sight = ToldSight(
        Known(index, 1, load, rtt_ns=MS * (1 + load))
        for index, load in enumerate(
            data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
        )
    )
    requests = Requests(keys, sight)
    for _ in range(data.draw(st.integers(1, 4))):
        well = data.draw(
            st.sets(st.integers(0, size - 1), max_size=data.draw(st.integers(0, size)))
        )
        for index, each in sight.backends.items():
            each.available = index in well
        order = requests.next()
        found = [order[place] for place in range(len(order))]
        assert len(found) == len(set(found)) == min(size, PLACES)
        usable = [index in well for index in found]
        assert usable == sorted(usable, reverse=True)
        assert sum(usable) == min(len(well), len(found))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", MODES)
def test_so_many_are_looked_at(mode: str, policy: str) -> None:
    """And no more, of a thousand: to choose, and once more when the next one is asked for."""
    sight = ToldSight(equals(1000), holding=(5, 6, 7, 8))
    requests = Requests(f'mode = "{mode}"\npolicy = "{policy}"', sight, kind="llm")
    for _ in range(50):
        sight.looked.clear()
        order = requests.next(blocks=(1, 2))
        assert order[1] != order.first
        assert len(sight.looked) == 2
        assert all(len(each) <= LOOKED_AT + MOST_HOLDERS for each in sight.looked)
        assert len(order.told()) == len(sight.looked[0])


@pytest.mark.parametrize(
    ("mode", "policy"), [("race", "score"), ("race", "hcl"), ("snapshot", "hcl")]
)
def test_the_best_of_many_is_found(mode: str, policy: str) -> None:
    """Within the requests that the walk takes; it stays the choice as long as it is the best."""
    sight = ToldSight(equals(200))
    requests = Requests(f'mode = "{mode}"\npolicy = "{policy}"', sight)
    for best in (77, 142):
        sight.backends[best].rtt_ns = sight.backends[best].ttft_ns = MS // 100
        firsts = [requests.next().first for _ in range(60)]
        assert set(firsts[30:]) == {best}
        sight.backends[best].in_flight = 90
        sight.backends[best].rtt_ns = 900 * MS
        assert requests.next().first != best


def test_who_has_the_prompt_is_found() -> None:
    """Among a thousand, by the first request that begins alike."""
    backends = [Known(index, 1, 1, ttft_ns=MS, cache=0.0) for index in range(1000)]
    backends[321].cache = 1.0
    requests = Requests("", ToldSight(backends, holding=(321,)), kind="llm")
    assert requests.next(blocks=(1,)).first == 321
    assert requests.next(blocks=(1,)).cached == 1.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", MODES)
def test_equals_share_alike(mode: str, policy: str) -> None:
    """However many there are."""
    requests = Requests(f'mode = "{mode}"\npolicy = "{policy}"', ToldSight(equals(100)))
    found = Counter(requests.next().first for _ in range(5000))
    assert len(found) == 100
    assert max(found.values()) < 50 * 2


def test_snapshot_shares_by_weight_and_score() -> None:
    """As among few: nobody gets more for being looked at each time."""
    kinds = {index: ("near", "heavy", "far")[min(index % 5, 2)] for index in range(100)}
    sight = ToldSight(
        Known(index, 3 if kind == "heavy" else 1, 0, rtt_ns=(4 if kind == "far" else 1) * 5 * MS)
        for index, kind in kinds.items()
    )
    requests = Requests('mode = "snapshot"\n[listener.score]\nrtt = 1\nqueue = 0', sight)
    found = Counter(kinds[requests.next().first] for _ in range(6000))
    shares = {kind: found[kind] / 6000 for kind in ("near", "heavy", "far")}
    far = (1 / 4) ** 2
    total = 20 * 1 + 20 * 3 + 60 * far
    expected = {"near": 20 / total, "heavy": 60 / total, "far": 60 * far / total}
    for kind, share in shares.items():
        assert abs(share - expected[kind]) < 0.06, (shares, expected)


def test_snapshot_finds_who_is_near() -> None:
    """One of two hundred, whose share is nearly all; among those that are looked at it stays."""
    sight = ToldSight(Known(index, 1, 0, rtt_ns=40 * MS) for index in range(200))
    sight.backends[99].rtt_ns = MS
    requests = Requests('mode = "snapshot"\n[listener.score]\nrtt = 1\nqueue = 0', sight)
    firsts = [requests.next().first for _ in range(330)]
    assert firsts[30:].count(99) > 240


def test_the_control_arm_goes_in_turn() -> None:
    """Each of those that are available is as often in it, wherever the others are."""
    sight = ToldSight(equals(60))
    for index in range(10, 40):
        sight.backends[index].available = False
    requests = Requests("control_arm = 50", sight)
    orders = [requests.next() for _ in range(1200)]
    control = Counter(each.first for each in orders if each.control)
    assert set(control) == {*range(10), *range(40, 60)}
    assert max(control.values()) - min(control.values()) <= 1
