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


class PrefixCache:
    """Blocks that each backend is thought to have, at most ``blocks`` of each.

    At most ``blocks * MEMORY_PER_BLOCK`` bytes for each backend. ``seed`` (64 bits) from a random
    source keeps clients from making prompts that only look alike. Raise ValueError if ``blocks``
    is below 1.
    """

    __slots__ = ("_backends", "_limit", "_seed")

    def __init__(self, blocks: int, seed: int = 0) -> None:
        if blocks < 1:
            raise ValueError(f"prefix cache of {blocks} blocks: expected 1 or more")
        self._limit = blocks
        self._seed = seed
        # What a block follows is always newer than the block: each credit renews the last block
        # first. So the oldest is the end of some prompt, and what is there is there without gaps.
        self._backends: dict[int, OrderedDict[int, None]] = {}

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

    def credit(self, backend: int, blocks: Sequence[int]) -> None:
        """The backend has computed a prompt of these blocks, or a part of it as a loser."""
        if not blocks:
            return
        known = self._backends.setdefault(backend, OrderedDict())
        for number in reversed(blocks[: self._limit]):
            known[number] = None
            known.move_to_end(number)
        while len(known) > self._limit:
            known.popitem(last=False)

    def forget(self, backend: int) -> None:
        """The backend has lost its cache, or is gone."""
        self._backends.pop(backend, None)

    def size(self, backend: int) -> int:
        """How many blocks the backend is thought to have."""
        return len(self._backends.get(backend, ()))
