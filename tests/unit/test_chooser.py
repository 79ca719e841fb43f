# SPDX-License-Identifier: Apache-2.0
"""In which order candidates are asked."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.listeners import listener
from tests.support.sights import ToldSight
from xdp_router.gateway.candidates import Candidates
from xdp_router.gateway.chooser import Chooser, Known, Order

MS = 1_000_000
RNG = random.Random(7)


def draws() -> tuple[float, float, float]:
    """As of a worker."""
    return RNG.random(), RNG.random(), RNG.random()


def order(chooser: Chooser, known: list[Known], urgency: float = 1.0) -> Order:
    """Of these, by what is known of them."""
    candidates = Candidates(each.index for each in known)
    return chooser.order(candidates, ToldSight(known), (), urgency, draws())


def indices(found: Order) -> tuple[int, ...]:
    """All of it."""
    return tuple(found[place] for place in range(len(found)))


def firsts(chooser: Chooser, known: list[Known], count: int = 600) -> Counter[int]:
    """Who comes first, how often."""
    return Counter(each.first for each in orders(chooser, known, count))


def orders(chooser: Chooser, known: list[Known], count: int) -> list[Order]:
    """Of so many requests, one after the other."""
    candidates, sight = Candidates(each.index for each in known), ToldSight(known)
    return [chooser.order(candidates, sight, (), 1.0, draws()) for _ in range(count)]


def test_a_race_asks_the_best_first() -> None:
    """By time to the first token, cache and requests in flight together."""
    chooser = Chooser(listener(kind="llm"))
    known = [
        Known(0, 1, 5, ttft_ns=90 * MS),
        Known(1, 1, 1, ttft_ns=20 * MS, cache=0.9),
        Known(2, 1, 2, ttft_ns=40 * MS),
    ]
    assert set(firsts(chooser, known)) == {1}
    found = order(chooser, known)
    assert sorted(indices(found)) == [0, 1, 2]
    (terms,) = [of for index, of, _ in found.told() if index == 1]
    assert (terms.ttft, terms.cache) == (1.0, 0.9)


def test_how_much_of_a_prompt_the_first_one_has() -> None:
    """Nothing, as long as nothing is known."""
    chooser = Chooser(listener(kind="llm"))
    assert order(chooser, [Known(0, 1, 0, cache=0.75), Known(1, 1, 9, cache=0.5)]).cached == 0.75
    assert order(chooser, [Known(0, 1, 0)]).cached == 0.0


def test_whoever_was_quickest_is_not_when_all_are_there() -> None:
    """An engine with a queue comes behind one that was slower a moment ago and is idle."""
    chooser = Chooser(listener(kind="llm"))
    known = [
        Known(0, 1, 11, ttft_ns=45 * MS, cache=0.8),
        Known(1, 1, 3, ttft_ns=90 * MS, cache=0.8),
        Known(2, 1, 5, ttft_ns=90 * MS, cache=0.8),
    ]
    assert order(chooser, known).first == 1


def test_equals_take_turns() -> None:
    """The first of the file is not everybody's choice."""
    known = [Known(each, 1, 0) for each in range(3)]
    for keys in ("", 'policy = "hcl"', 'mode = "snapshot"', 'mode = "inline"'):
        found = firsts(Chooser(listener(keys)), known)
        assert all(found[each] > 120 for each in range(3)), (keys, found)


@pytest.mark.parametrize("mode", ["race", "snapshot", "inline"])
@pytest.mark.parametrize("policy", ["score", "hcl"])
def test_who_is_not_available_comes_last(mode: str, policy: str) -> None:
    """It is asked only if nobody else can; and if nobody is available all are asked."""
    chooser = Chooser(listener(f'mode = "{mode}"\npolicy = "{policy}"'))
    known = [
        Known(0, 1, 0, rtt_ns=1, ttft_ns=1, available=False),
        Known(1, 1, 9, rtt_ns=9 * MS, ttft_ns=9 * MS),
        Known(2, 1, 9, rtt_ns=9 * MS, ttft_ns=9 * MS),
    ]
    for _ in range(100):
        assert indices(order(chooser, known))[-1] == 0
    nobody = [Known(each, 1, 0, available=False) for each in range(3)]
    assert sorted(indices(order(chooser, nobody))) == [0, 1, 2]


def test_snapshot_shares_by_weight_and_score() -> None:
    """Twice the weight gets twice as many; who is far away hardly any."""
    chooser = Chooser(listener('mode = "snapshot"'))
    known = [Known(0, 2, 0, rtt_ns=MS), Known(1, 1, 0, rtt_ns=MS), Known(2, 1, 0, rtt_ns=90 * MS)]
    found = firsts(chooser, known, 3000)
    assert 1.5 < found[0] / found[1] < 2.6
    assert found[2] < found[1] / 2


def test_inline_takes_the_better_of_two() -> None:
    """The worst of three is never taken, the best one more often than not."""
    chooser = Chooser(listener('mode = "inline"'))
    known = [
        Known(0, 1, 0, ttft_ns=10 * MS),
        Known(1, 1, 2, ttft_ns=10 * MS),
        Known(2, 1, 9, ttft_ns=10 * MS),
    ]
    found = firsts(chooser, known)
    assert found[2] == 0
    assert found[0] > found[1] > 0


def test_hcl_leaves_the_busy_alone() -> None:
    """However quick they are; among the others the quickest comes first."""
    chooser = Chooser(listener('policy = "hcl"', kind="llm"))
    known = [
        Known(0, 1, 40, ttft_ns=MS),
        Known(1, 1, 1, ttft_ns=50 * MS),
        Known(2, 1, 2, ttft_ns=20 * MS),
    ]
    for _ in range(50):
        order(chooser, known)
    assert indices(order(chooser, known)) == (2, 1, 0)


def test_urgent_requests_weigh_latency_more() -> None:
    """A class with a factor prefers the quick one to the one with the prompt in its cache."""
    keys = "[listener.score]\nrtt = 0\nttft = 0.3\ncache = 0.7\nqueue = 0\n"
    chooser = Chooser(listener(keys, kind="llm"))
    known = [Known(0, 1, 0, ttft_ns=10 * MS, cache=0.0), Known(1, 1, 0, ttft_ns=40 * MS, cache=0.9)]
    assert order(chooser, known).first == 1
    assert order(chooser, known, 9.0).first == 0


def test_the_control_arm_goes_in_turn() -> None:
    """Its share is what was asked for, and everybody who is available is in it alike."""
    chooser = Chooser(listener("control_arm = 50"))
    known = [Known(0, 1, 0, rtt_ns=MS), Known(1, 1, 0, rtt_ns=99 * MS), Known(2, 1, 0, rtt_ns=MS)]
    found = orders(chooser, known, 1200)
    control = Counter(each.first for each in found if each.control)
    assert 0.42 < control.total() / 1200 < 0.58
    assert max(control.values()) - min(control.values()) <= 1
    assert all(each.first != 1 for each in found if not each.control)


def test_equals_take_turns_beside_a_control_arm() -> None:
    """What chance has sent to the arm does not leave the others with a part of it only."""
    known = [Known(each, 1, 0) for each in range(3)]
    for keys in ("control_arm = 50", 'control_arm = 50\npolicy = "hcl"'):
        chooser = Chooser(listener(keys))
        all_of_them = orders(chooser, known, 1200)
        found = Counter(each.first for each in all_of_them if not each.control)
        assert all(found[each] > 120 for each in range(3)), (keys, found)


def test_noise_of_round_trips_is_none_of_tokens() -> None:
    """A millisecond of way decides nothing where tokens take tens of them."""
    known = [Known(0, 1, 0, rtt_ns=100_000), Known(1, 1, 0, rtt_ns=1_500_000)]
    assert set(firsts(Chooser(listener(kind="llm")), known)) == {0, 1}
    assert set(firsts(Chooser(listener(kind="http")), known)) == {0}


def test_others_are_looked_at_when_they_are_needed() -> None:
    """Inline compares two; whoever comes after them is judged by what is known at that time."""
    sight = ToldSight(Known(each, 1, 0) for each in range(3))
    looked = sight.looked
    chooser, candidates = Chooser(listener('mode = "inline"')), Candidates(range(3))
    found = chooser.order(candidates, sight, (), 1.0, draws())
    assert len(looked) == 1
    assert len(looked[0]) == 2
    assert len(found.told()) == 2
    assert found[1] != found.first
    assert sorted(looked[1]) == sorted({0, 1, 2} - {found.first})
    assert sorted(indices(found)) == [0, 1, 2]
    with pytest.raises(IndexError, match="3 of 3"):
        found[3]
    found.settle()
    assert found[2] in (0, 1, 2)
    unasked = chooser.order(candidates, sight, (), 1.0, draws())
    unasked.settle()
    with pytest.raises(IndexError, match="settled"):
        unasked[1]
