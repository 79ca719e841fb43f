# SPDX-License-Identifier: Apache-2.0
"""Tells XDP which part of its share a backend that has come back is to have.

Strategies ask for it themselves. XDP has to be told, where it picks by what it sees of flows.
"""

from __future__ import annotations

from .commands import Command, SetBackendShare
from .health_watch import HealthWatch
from .model import Mode
from .roster import Roster

WHOLE_SHARE = 256
"""What a share in mode ``inline`` is out of."""


class SlowStart:
    """Of all backends of one engine."""

    def __init__(self, watch: HealthWatch, roster: Roster) -> None:
        self._watch = watch
        self._roster = roster
        self._shares: dict[int, int] = {}  # by backend id: as XDP has it

    def look(self, backend: int, now_ns: int, out: list[Command]) -> None:
        """Go on with one that has not its whole share yet, if it is such."""
        if backend in self._watch.starting or backend in self._shares:
            self.tell(backend, now_ns, out)

    def tell(self, backend: int, now_ns: int, out: list[Command]) -> None:
        """Tell of one, if that is news."""
        share = 0
        service = self._roster.service_of.get(backend)
        if service is None:
            return  # it is retired, and gets none at all
        if self._roster.mode_of(service.id) is Mode.INLINE:
            part = self._watch.share(backend, now_ns)
            share = max(1, int(part * WHOLE_SHARE)) if part < 1 else 0
        if self._shares.get(backend, 0) != share:
            out.append(SetBackendShare(backend, share))
        if share:
            self._shares[backend] = share
        else:
            self._shares.pop(backend, None)

    def forget(self, backend: int) -> bool:
        """It is none of ours any more. Returns whether XDP has a share of it."""
        return self._shares.pop(backend, 0) > 0
