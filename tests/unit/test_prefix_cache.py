# SPDX-License-Identifier: Apache-2.0
"""Which backend is thought to have how much of a prompt, within its bound of memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.prefix_cache import (
    BLOCK_BYTES,
    MAX_PROMPT_BLOCKS,
    MEMORY_PER_BLOCK,
    MEMORY_PER_HOLDER,
    MOST_HOLDERS,
    PrefixCache,
)


def text(*blocks: str) -> bytes:
    """A prompt of blocks that are called so."""
    return b"".join(block.encode().ljust(BLOCK_BYTES, b".") for block in blocks)


def test_equal_beginnings_have_equal_numbers() -> None:
    """And the same block after another one is another one."""
    cache = PrefixCache(10)
    abc, abd = cache.blocks_of(text("a", "b", "c")), cache.blocks_of(text("a", "b", "d"))
    assert abc[:2] == abd[:2]
    assert abc[2] != abd[2]
    assert cache.blocks_of(text("b"))[0] != abc[1]
    assert len({*abc, *abd}) == 4


def test_only_whole_blocks_count() -> None:
    """An engine shares whole blocks, too."""
    cache = PrefixCache(10)
    assert cache.blocks_of(b"") == cache.blocks_of(text("a")[:-1]) == ()
    assert cache.blocks_of(text("a") + b"b") == cache.blocks_of(text("a"))


def test_a_seed_makes_other_numbers() -> None:
    """Whoever knows one router's numbers knows nothing of another's."""
    assert PrefixCache(1, 1).blocks_of(text("a")) != PrefixCache(1, 2).blocks_of(text("a"))
    largest = (1 << 64) - 1
    assert len(PrefixCache(1, largest).blocks_of(text("a", "b"))) == 2


def test_a_prompt_has_so_many_blocks_at_most() -> None:
    """What a prompt costs is bounded."""
    cache = PrefixCache(10)
    assert len(cache.blocks_of(bytes(BLOCK_BYTES * (MAX_PROMPT_BLOCKS + 5)))) == MAX_PROMPT_BLOCKS


def test_a_hit_is_the_share_of_the_prompt_that_is_there() -> None:
    """From its beginning on, for each backend by itself."""
    cache = PrefixCache(10)
    cache.credit(1, cache.blocks_of(text("a", "b")))
    longer = cache.blocks_of(text("a", "b", "c", "d"))
    assert cache.hit(1, longer) == 0.5
    assert cache.hit(1, longer[:2]) == 1.0
    assert cache.hit(1, longer[:1]) == 1.0
    assert cache.hit(2, longer) == 0.0
    assert cache.hit(1, cache.blocks_of(text("b", "a"))) == 0.0
    assert cache.hit(1, ()) == 0.0


def test_what_was_not_used_for_longest_goes_first() -> None:
    """A hit by itself is no use; a credit is."""
    cache = PrefixCache(3)
    a, b, c = (cache.blocks_of(text(name)) for name in "abc")
    for blocks in (a, b, c, a):
        cache.credit(1, blocks)
    cache.hit(1, b)
    cache.credit(1, cache.blocks_of(text("d")))
    assert [cache.hit(1, blocks) for blocks in (a, b, c)] == [1.0, 0.0, 1.0]


def test_the_end_of_a_prompt_goes_before_its_beginning() -> None:
    """A block without the one before it is of no use to anybody."""
    cache = PrefixCache(4)
    cache.credit(1, cache.blocks_of(text("a", "b", "c")))
    cache.credit(1, cache.blocks_of(text("x", "y")))
    assert cache.hit(1, cache.blocks_of(text("a", "b", "c"))) == 2 / 3


def test_a_prompt_longer_than_the_bound_leaves_its_beginning() -> None:
    """The engine's cache is as small."""
    cache = PrefixCache(2)
    blocks = cache.blocks_of(text("a", "b", "c", "d"))
    cache.credit(1, blocks)
    assert (cache.size(1), cache.hit(1, blocks)) == (2, 0.5)


def test_a_backend_is_forgotten() -> None:
    """It was restarted; others keep what they have."""
    cache = PrefixCache(2)
    blocks = cache.blocks_of(text("a"))
    cache.credit(1, blocks)
    cache.credit(2, blocks)
    cache.forget(1)
    cache.forget(3)
    assert (cache.hit(1, blocks), cache.hit(2, blocks)) == (0.0, 1.0)
    assert cache.size(1) == 0


def test_nothing_is_credited_for_nothing() -> None:
    """A short prompt does not make a backend known."""
    cache = PrefixCache(2)
    cache.credit(1, ())
    assert cache.size(1) == 0


def test_a_cache_of_nothing_is_refused() -> None:
    """With its number in the message."""
    with pytest.raises(ValueError, match="0 blocks"):
        PrefixCache(0)


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from("ab"), max_size=6)), max_size=30),
)
def test_what_is_there_has_no_gaps(limit: int, steps: list[tuple[bool, list[str]]]) -> None:
    """The search by halves finds what a walk from the beginning finds, and the bound holds."""
    cache = PrefixCache(limit)
    for credit, names in steps:
        blocks = cache.blocks_of(text(*names))
        if credit:
            cache.credit(1, blocks)
        assert cache.size(1) <= limit
        walked = 0
        while walked < len(blocks) and cache.hit(1, blocks[walked : walked + 1]):
            walked += 1
        assert cache.hit(1, blocks) == (walked / len(blocks) if blocks else 0.0)
        assert not any(cache.hit(1, (block,)) for block in blocks[walked:])


def test_who_has_the_most_of_a_prompt_is_found() -> None:
    """Of all, in a few steps; whoever was credited last stands for those that have as much."""
    cache = PrefixCache(100, find_holders=True)
    cache.credit(1, cache.blocks_of(text("a")))
    cache.credit(2, cache.blocks_of(text("a", "b", "c", "d")))
    cache.credit(3, cache.blocks_of(text("a", "b")))
    long = cache.blocks_of(text("a", "b", "c", "d", "e", "f"))
    assert cache.holders(long) == [2, 3]
    assert cache.holders(long[:2]) == [3]
    assert cache.holders(cache.blocks_of(text("x"))) == cache.holders(()) == []
    cache.forget(2)
    assert cache.holders(long) == [3]
    cache.forget(3)
    assert cache.holders(long) == []  # who has a part is not noted any more: it is a guess
    plain = PrefixCache(100)
    plain.credit(1, long)
    assert plain.holders(long) == []


@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(st.integers(0, 7), st.lists(st.sampled_from("ab"), max_size=6)), max_size=40
    ),
)
def test_holders_have_what_they_are_said_to_have(
    limit: int, steps: list[tuple[int, list[str]]]
) -> None:
    """Nobody is named who has nothing of the prompt, whatever was forgotten; few are named."""
    cache = PrefixCache(limit, find_holders=True)
    for backend, names in steps:
        blocks = cache.blocks_of(text(*names))
        cache.credit(backend, blocks)
        found = cache.holders(blocks)
        assert len(found) == len(set(found)) <= MOST_HOLDERS
        assert all(cache.hit(each, blocks) > 0 for each in found)
        assert not blocks or found[0] == backend


@pytest.mark.parametrize("find_holders", [False, True])
@pytest.mark.parametrize("limit", [1000, 10_923, 21_900])
def test_memory_is_bounded(limit: int, find_holders: bool, rng: random.Random) -> None:
    """Each block costs so many bytes at most, however many prompts there are."""
    cache = PrefixCache(limit, find_holders=find_holders)
    tracemalloc.start()
    try:
        for _ in range(3 * limit // 50):
            cache.credit(1, [rng.getrandbits(64) for _ in range(50)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size(1) == limit
    each = MEMORY_PER_BLOCK + (MEMORY_PER_HOLDER if find_holders else 0)
    assert peak <= limit * each + 8192
