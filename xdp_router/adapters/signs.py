# SPDX-License-Identifier: Apache-2.0
"""``backend_signs``: how the flows of each backend fare, as XDP has seen it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from xdp_router.core import abi
from xdp_router.core.model import Signs

from .bpf_syscall import BpfMap

_BATCH = 1024
_NOTHING = bytes(_BATCH * abi.BACKEND_SIGNS_SIZE)


class BackendSigns:
    """Totals that only grow, until a number gets another owner. XDP alone adds to them."""

    __slots__ = ("_is_first", "_map", "_seen")

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)
        self._is_first = True
        self._seen: dict[int, tuple[bytes, dict[int, Signs]]] = {}

    def news(self) -> Iterator[list[tuple[int, Signs]]]:
        """Of each backend of which something was seen since the last call, how much of it; some
        at a time. ``source`` is none of that: it is 0. The first call has nothing to compare with.
        """
        for number, batch in enumerate(self._map.batches(_BATCH)):
            values = bytes(batch.values)
            raw, before = self._seen.get(number, (_NOTHING[: len(values)], {}))
            if values == raw:
                yield []  # most of the table, most of the time
                continue
            now = {
                int.from_bytes(key, sys.byteorder): abi.unpack_backend_signs(value)
                for key, value in batch
                if value.count(0) != len(value)
            }
            self._seen[number] = values, now
            if self._is_first:
                yield []
                continue
            yield [
                (backend, _since(before.get(backend, Signs()), value))
                for backend, value in now.items()
                if before.get(backend) != value
            ]
        self._is_first = False

    def read(self, backend: int) -> Signs:
        """All that was seen of one."""
        raw = self._map.read(backend.to_bytes(4, sys.byteorder))
        return abi.unpack_backend_signs(raw) if raw is not None else Signs()

    def reset(self, backend: int) -> None:
        """Forget what was seen of a number that is another backend's now."""
        if backend < self._map.info.max_entries:
            raw = abi.pack_backend_signs(Signs())
            self._map.write(backend.to_bytes(4, sys.byteorder), raw)
            for _, known in self._seen.values():
                known.pop(backend, None)


def _since(before: Signs, now: Signs) -> Signs:
    """What has come to it. A total that went back was reset: it is new, all of it."""
    return Signs(
        _more(before.answered, now.answered),
        _more(before.served, now.served),
        _more(before.unanswered, now.unanswered),
        _more(before.refused, now.refused),
        _more(before.cut, now.cut),
        _more(before.unreachable, now.unreachable),
        0,
        _more(before.sources, now.sources),
    )


def _more(before: int, now: int) -> int:
    return now - before if now >= before else now
