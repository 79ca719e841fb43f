# SPDX-License-Identifier: Apache-2.0
"""Which backend has how much of a prompt in its prefix cache, as far as can be told from outside.

An engine keeps what it has computed for a prompt, in blocks, and a prompt that begins alike finds
them there. So a prompt is cut into blocks here, too, and each is hashed with all that is before
it: equal numbers mean equal beginnings. A backend is credited with the blocks of what it was sent,
and loses the ones that it has not been sent for longest: both are guesses at what the engine does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

BLOCK_BYTES = 256
"""Some 64 tokens; the engines' own blocks have 16 to 64."""

# Half a megabyte of prompt, or some 130,000 tokens: beyond that all of it is alike in effect.
MAX_PROMPT_BLOCKS = 2048

MEMORY_PER_BLOCK = 288
"""Bytes that a block costs at most, in each backend that has it: number, links, hash slot; 160
to 240 at rest, more for the moment in which the table grows."""
MEMORY_PER_HOLDER = 160
"""Bytes beyond that, if it is noted who has a block."""
MOST_HOLDERS = 4


class PrefixCache:
    """Blocks that each backend is thought to have, at most ``blocks`` of each.

    At most ``blocks * MEMORY_PER_BLOCK`` bytes for each backend. ``seed`` (64 bits) from a random
    source keeps clients from making prompts that only look alike. ``find_holders``: whether it is
    noted who has a block, at ``MEMORY_PER_HOLDER`` bytes more. Raise ValueError if ``blocks`` is
    below 1.
    """

    __slots__ = ("_backends", "_holders", "_limit", "_seed")

    def __init__(self, blocks: int, seed: int = 0, *, find_holders: bool = False) -> None:
        if blocks < 1:
            raise ValueError(f"prefix cache of {blocks} blocks: expected 1 or more")
        self._limit = blocks
        self._seed = seed
        # What a block follows is always newer than the block: each credit renews the last block
        # first. So the oldest is the end of some prompt, and what is there is there without gaps.
        self._backends: dict[int, OrderedDict[int, None]] = {}
        # Of each block the one that was credited last. When that one loses it nobody is noted:
        # others may have it, and are found by shorter beginnings.
        self._holders: dict[int, int] | None = {} if find_holders else None

    def blocks_of(self, text: bytes) -> tuple[int, ...]:
        """The numbers of the whole blocks that a prompt's text begins with, in order."""
        of = xxhash.xxh3_64_intdigest
        end = min(len(text) // BLOCK_BYTES, MAX_PROMPT_BLOCKS) * BLOCK_BYTES
        number = self._seed
        blocks = []
        for start in range(0, end, BLOCK_BYTES):
            number = of(text[start : start + BLOCK_BYTES], number)
            blocks.append(number)
        return tuple(blocks)

    def hit(self, backend: int, blocks: Sequence[int]) -> float:
        """The share of ``blocks`` (0 to 1), from the first on, that the backend has."""
        known = self._backends.get(backend)
        if not known or not blocks or blocks[0] not in known:
            return 0.0
        low, high = 1, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        return low / len(blocks)

    def holders(self, blocks: Sequence[int]) -> list[int]:
        """Backends that have much of ``blocks``, from the first on: those with the most come
        first, ``MOST_HOLDERS`` at most. Without ``find_holders`` nobody."""
        noted = self._holders
        if not noted or not blocks or blocks[0] not in noted:
            return []
        found = [noted[blocks[0]]]
        low, high = 1, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            holder = noted.get(blocks[middle - 1])
            if holder is None:
                high = middle - 1
            else:
                low = middle
                found.append(holder)
        return list(dict.fromkeys(reversed(found)))[:MOST_HOLDERS]

    def credit(self, backend: int, blocks: Sequence[int]) -> None:
        """The backend has computed a prompt of these blocks, or a part of it as a loser."""
        if not blocks:
            return
        known, noted = self._backends.setdefault(backend, OrderedDict()), self._holders
        for number in reversed(blocks[: self._limit]):
            known[number] = None
            known.move_to_end(number)
            if noted is not None:
                noted[number] = backend
        while len(known) > self._limit:
            number, _ = known.popitem(last=False)
            self._let_go(backend, number)

    def forget(self, backend: int) -> None:
        """The backend has lost its cache, or is gone."""
        for number in self._backends.pop(backend, ()):
            self._let_go(backend, number)

    def _let_go(self, backend: int, number: int) -> None:
        noted = self._holders
        if noted is not None and noted.get(number) == backend:
            del noted[number]

    def size(self, backend: int) -> int:
        """How many blocks the backend is thought to have."""
        return len(self._backends.get(backend, ()))
