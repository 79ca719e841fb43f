# SPDX-License-Identifier: Apache-2.0
"""Backends that only flows have: their ids are free again when the last of these has ended.

The ager looks at every entry anyway. An entry that is inserted while a map is walked may be
missed, and a handshake moves its flow from one map to the other meanwhile: so a backend is
over when two sweeps in a row, pending flows included, have not met it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import structlog

from xdp_router.core import abi
from xdp_router.core.model import Backend

SWEEPS = 2
AT_ONCE = 16
"""Backends that are forgotten before the event loop has its turn: 1 to 3 ms."""

_log = structlog.get_logger()


class Retirement:
    """Counts the sweeps that did not meet a retired backend; calls ``forget`` when it is over.

    ``settle`` is called after all those that a sweep has ended.
    """

    def __init__(
        self,
        retired: Iterable[Backend],
        forget: Callable[[Backend], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._absent = {backend.id: 0 for backend in retired}
        self._backends = {backend.id: backend for backend in retired}
        self._forget = forget
        self._settle = settle
        self._met: set[int] = set()

    def change(self, retired: Iterable[Backend]) -> None:
        """These are retired from now on; of those that were, what was seen still counts.

        The sweep that is under way says nothing about the others: it has begun before.
        """
        self._backends = {backend.id: backend for backend in retired}
        self._absent = {each: self._absent.get(each, -1) for each in self._backends}

    @property
    def backends(self) -> list[Backend]:
        """Those that flows still have, as far as is known."""
        return list(self._backends.values())

    def __len__(self) -> int:
        """Backends that flows still have, as far as is known."""
        return len(self._backends)

    def flows(self, values: bytes, family: int = 4) -> None:
        """A batch of ``flow_table`` entries."""
        if self._backends:
            self._met |= abi.flow_backends(values, family)

    def pending(self, values: bytes, family: int = 4) -> None:
        """A batch of ``pending_flows`` entries."""
        if self._backends:
            self._met |= abi.pending_backends(values, family)

    def swept(self) -> None:
        """Both maps were walked to their end."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """The same in pieces."""
        met, self._met = self._met, set()
        before = len(self._backends)
        over = []
        for number, backend in self._backends.items():
            self._absent[number] = 0 if number in met else self._absent[number] + 1
            if self._absent[number] >= SWEEPS:
                over.append(backend)
        for count, backend in enumerate(over, 1):
            del self._backends[backend.id]
            self._forget(backend)
            _log.info("backend_retired", backend=backend.name, reason="its last flow is gone")
            if not count % AT_ONCE:
                yield
        if len(self._backends) < before:
            self._settle()
