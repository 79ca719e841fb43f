# SPDX-License-Identifier: Apache-2.0
"""What is known of backends, as a test says it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from xdp_router.gateway.chooser import Known


class ToldSight:
    """``backends`` may be changed at any time; ``looked``: at whom, each time."""

    def __init__(self, backends: Iterable[Known], holding: Sequence[int] = ()) -> None:
        self.backends = {each.index: each for each in backends}
        self.holding = holding
        self.looked: list[list[int]] = []

    def known(self, backends: Sequence[int], blocks: Sequence[int]) -> list[Known]:
        """As of this moment: what changes afterwards is not in it."""
        del blocks
        self.looked.append(list(backends))
        return [replace(self.backends[each]) for each in backends]

    def available(self, backends: Iterable[int], most: int) -> list[int]:
        """The first ones."""
        return [each for each in backends if self.backends[each].available][:most]

    def holders(self, blocks: Sequence[int]) -> Sequence[int]:
        """Of whatever prompt."""
        return self.holding if blocks else ()
