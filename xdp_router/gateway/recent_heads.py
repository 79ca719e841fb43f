# SPDX-License-Identifier: Apache-2.0
"""What was made of heads that came lately, by their bytes: bounded, and as quick as one look-up."""

from __future__ import annotations

from typing import Generic, TypeVar

_Head = TypeVar("_Head")


class RecentHeads(Generic[_Head]):
    """``most`` heads, of ``bytes_in_all``, are kept at least until as much came again; twice as
    much at most. A head of more than ``bytes_most`` is not kept."""

    __slots__ = ("_young", "_old", "_bytes", "_most", "_bytes_most", "_bytes_in_all")

    def __init__(self, most: int, bytes_most: int, bytes_in_all: int) -> None:
        self._most = most
        self._bytes_most = bytes_most
        self._bytes_in_all = bytes_in_all
        self._young: dict[bytes, _Head] = {}
        self._old: dict[bytes, _Head] = {}
        self._bytes = 0
        """Of the young ones."""

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def _recall(self, raw: bytes) -> _Head | None:
        """Also one that is old; ``_keep`` makes it young again."""
        found = self._young.get(raw)
        return self._old.get(raw) if found is None else found

    def _keep(self, raw: bytes, head: _Head) -> None:
        if raw in self._young or len(raw) > self._bytes_most:
            return
        if len(self._young) >= self._most or self._bytes >= self._bytes_in_all:
            self._old = self._young
            self._young = {}
            self._bytes = 0
        self._young[raw] = head
        self._bytes += len(raw)
