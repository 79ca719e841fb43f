# SPDX-License-Identifier: Apache-2.0
"""Which row of the board is whose: a backend is told apart by its address, in all listeners."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig

from .board import ROWS, Board


class NoRow(XdpRouterError):
    """There are more backends than rows."""


def addresses(config: GatewayConfig) -> list[str]:
    """Of all backends, each once."""
    found = (str(each.address) for listener in config.listeners for each in listener.backends)
    return list(dict.fromkeys(found))


class Rows:
    """A backend keeps its row; one that nobody has any more is given to another when all are."""

    def __init__(self, board: Board, known: Mapping[str, int] | None = None) -> None:
        self._board = board
        self._rows = dict(known or {})

    @property
    def all(self) -> Mapping[str, int]:
        """By address."""
        return self._rows

    def assign(self, wanted: Collection[str], in_use: Collection[str]) -> dict[str, int]:
        """Rows for the wanted ones. ``in_use``: what workers have that are still there.

        Raises NoRow, and then changes nothing.
        """
        new = [each for each in wanted if each not in self._rows]
        keep = {*wanted, *in_use}
        spare = [each for each in self._rows if each not in keep]
        taken = set(self._rows.values())
        free = [row for row in range(ROWS) if row not in taken] if new else []
        lacking = len(new) - len(free)
        if lacking > len(spare):
            raise NoRow(
                f"{len(keep)} backends, told apart by their addresses, those included that streams "
                f"still go to: expected at most {ROWS}"
            )
        for gone in spare[: max(lacking, 0)]:
            free.append(self._rows.pop(gone))
        for address, row in zip(new, free, strict=False):
            self._board.clear_row(row)
            self._rows[address] = row
        return {each: self._rows[each] for each in wanted}
