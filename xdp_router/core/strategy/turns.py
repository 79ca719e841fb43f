# SPDX-License-Identifier: Apache-2.0
"""Turns by weight, for those who are equal otherwise: smooth weighted round robin."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ..model import Backend


class Turns:
    """Whose turn it is, each as often as its weight says, and evenly spread.

    Who has to choose from may be others each time: only they pay for, and get, that turn.
    """

    def __init__(self) -> None:
        self._credit: dict[int, int] = {}

    def keep_only(self, backends: AbstractSet[int]) -> None:
        """Forget all others: their ids may be somebody else's soon."""
        self._credit = {each: has for each, has in self._credit.items() if each in backends}

    def take(self, members: Sequence[Backend], weights: Sequence[int] | None = None) -> int:
        """Index of the one whose turn it is. ``members`` are not empty.

        ``weights``: in place of those that they are configured with.
        """
        credit = self._credit
        total = chosen = 0
        most: int | None = None
        for index, backend in enumerate(members):
            weight = backend.weight if weights is None else weights[index]
            has = credit[backend.id] = credit.get(backend.id, 0) + weight
            total += weight
            if most is None or has > most:
                chosen, most = index, has
        credit[members[chosen].id] -= total
        return chosen
