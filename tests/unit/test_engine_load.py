# SPDX-License-Identifier: Apache-2.0
"""Places, cache and stalls of the mock engine, on the test's own clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from xdp_router.lab.engine_load import (
    Counts,
    Load,
    PrefixCache,
    Record,
    Stalls,
    metrics,
    stalls_of,
    witness,
)
from xdp_router.lab.errors import LabError

MS = 1_000_000


def test_the_first_come_are_the_first_served() -> None:
    """Two places of four wishes; who leaves while waiting is passed over."""
    load, begun = Load(2, 0), list[str]()

    def begins(name: str) -> Callable[[], None]:
        return lambda: begun.append(name)

    a, b, c, d = map(begins, "abcd")
    for each in (a, b, c, d):
        load.enter(each)
    assert (begun, load.running, load.waiting) == (["a", "b"], 2, 2)
    assert load.leave(c)
    assert not load.leave(a)
    load.free()
    assert (begun, load.running, load.waiting) == (["a", "b", "d"], 2, 0)
    load.free()
    load.free()
    assert load.running == 0


def test_without_limit_nobody_waits() -> None:
    """0 places are as many as are wished."""
    load = Load(0, 0)
    for _ in range(50):
        load.enter(lambda: None)
    assert (load.running, load.waiting) == (50, 0)


def test_the_cache_knows_prefixes() -> None:
    """Whole blocks in unbroken order from the begin; the least used are forgotten."""
    cache = PrefixCache(4)
    long = b"a" * 256 + b"b" * 256
    assert cache.take(long) == (2, 0)
    assert cache.take(long + b"c" * 300) == (3, 2)
    assert cache.take(b"x" + long) == (2, 0)
    assert cache.take(b"a" * 255) == (0, 0)
    assert cache.take(long)[1] < 2
    assert PrefixCache(0).take(long) == (0, 0)


def test_stalls_come_at_random_and_end() -> None:
    """About as often as was asked for, the same with the same seed; never without."""
    assert Stalls(0, 5 * MS, 1).until_ns(1) == 0

    def stalled(seed: int) -> list[int]:
        stalls = Stalls(100 * MS, 20 * MS, seed)
        return [at for at in range(1, 10_000) if stalls.until_ns(at * MS)]

    found = stalled(3)
    assert found == stalled(3) != stalled(4)
    assert 0.08 < len(found) / 10_000 < 0.3
    stalls = Stalls(100 * MS, 20 * MS, 3)
    ends = {stalls.until_ns(at * MS) for at in range(1, 200)} - {0}
    assert all(end > 0 for end in ends)


def test_stalls_are_told_in_words() -> None:
    """Of lengths at random, from a seed; what is none of it is named."""

    def lengths(text: str) -> list[int]:
        stalls, found, at = stalls_of(text), [], 1
        while at < 10_000:
            until_ns = stalls.until_ns(at * MS)
            if until_ns:
                found.append(until_ns // MS - at)
                at = until_ns // MS
            at += 1
        return found

    found = lengths("every-ms=100,for-ms=20,most-ms=60,seed=3")
    assert found == lengths("every-ms=100, for-ms=20, most-ms=60, seed=3")
    assert 18 <= min(found) < 30 < 50 < max(found) <= 60
    assert lengths("") == lengths("for-ms=20") == []
    for text, named in (("every=1", "'every'"), ("seed=x", "seed=x"), ("for-ms=nan", "for-ms=nan")):
        with pytest.raises(LabError, match=named):
            stalls_of(text)


def test_a_cache_forgets_all() -> None:
    """Nobody has asked for anything then."""
    cache = PrefixCache(4)
    cache.take(b"a" * 256)
    cache.forget()
    assert cache.take(b"a" * 256) == (1, 0)


def test_what_is_told() -> None:
    """vLLM's names; and all counters beside the latest requests."""
    load, counts = Load(1, 0), Counts(requests=3, prefix_hits=2)
    load.enter(lambda: None)
    load.enter(lambda: None)
    text = metrics(load, counts, "m").decode()
    assert 'vllm:num_requests_waiting{model_name="m"} 1\n' in text
    assert 'vllm:prefix_cache_hits_total{model_name="m"} 2\n' in text
    recent = deque([Record(1, "GET", "/", [("Host", "h")])])
    said = witness("e", load, counts, 4, recent)
    assert isinstance(said, dict)
    assert (said["running"], said["waiting"], said["open"], said["requests"]) == (1, 1, 4, 3)
    assert said["last_headers"] == said["recent"][0]["headers"] == [("Host", "h")]
