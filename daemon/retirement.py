# SPDX-License-Identifier: Apache-2.0
"""Backends that only flows have: their ids are free again when the last of these has ended.

The ager looks at every entry anyway. An entry that is inserted while a map is walked may be
missed, and a handshake moves its flow from one map to the other meanwhile: so a backend is
over when two sweeps in a row, pending flows included, have not met it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from xdp_router.core import abi
from xdp_router.core.model import Backend

SWEEPS = 2

_log = structlog.get_logger()


class Retirement:
    """Counts the sweeps that did not meet a retired backend; calls ``forget`` when it is over."""

    def __init__(self, retired: Iterable[Backend], forget: Callable[[Backend], None]) -> None:
        self._absent = {backend.id: 0 for backend in retired}
        self._backends = {backend.id: backend for backend in retired}
        self._forget = forget
        self._met: set[int] = set()

    def __len__(self) -> int:
        """Backends that flows still have, as far as is known."""
        return len(self._backends)

    def flows(self, values: bytes) -> None:
        """A batch of ``flow_table`` entries."""
        if self._backends:
            self._met |= abi.flow_backends(values)

    def pending(self, values: bytes) -> None:
        """A batch of ``pending_flows`` entries."""
        if self._backends:
            self._met |= abi.pending_backends(values)

    def swept(self) -> None:
        """Both maps were walked to their end."""
        met, self._met = self._met, set()
        for number, backend in list(self._backends.items()):
            self._absent[number] = 0 if number in met else self._absent[number] + 1
            if self._absent[number] >= SWEEPS:
                del self._backends[number]
                self._forget(backend)
                _log.info("backend_retired", backend=backend.name, reason="its last flow is gone")
