# SPDX-License-Identifier: Apache-2.0
"""Who seems to have died: ill, silent for long enough, and with somewhere for its clients to go.

Whether its flows are silent, too, is found by whoever looks at these.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from .availability import Availability
from .health_watch import HealthWatch, Server
from .model import Service
from .refuge import Refuge, Refuges

SPARED_MOST = 32
"""Intervals until it is looked again, at most, for replies of a backend that had some."""


class Silences:
    """Of all backends of one engine. ``ill``: ids of those of the service that are ill."""

    def __init__(self, watch: HealthWatch, backends: Availability) -> None:
        self._watch = watch
        self.refuges = Refuges(watch, backends)
        self._spared: dict[int, tuple[int, int]] = {}  # looked again at, and how much later then

    def since(
        self, service: Service, backend: int, ill: AbstractSet[int], now_ns: int
    ) -> int | None:
        """From when on nothing was heard of a backend that seems to have died; None: it does not,
        or its clients had nowhere else to go. Then they are better off with waiting: it may be
        the way to all of them that is gone."""
        server = self._watch.server_of(backend)
        if server is None or backend not in ill:
            return None
        settings = self._watch.own[backend]
        again, _ = self._spared.get(backend, (0, 1))
        if not settings.reset_on_death or server.silences < max(settings.fall, again):
            return None
        refuge = self.refuges.of(service, server, ill, now_ns)
        if refuge is Refuge.NOWHERE:
            self.spare(server, backend)
        if refuge is not Refuge.THERE:
            return None
        since_ns = max(server.silent_ns, now_ns - settings.fall * server.interval_ns)
        return None if self._watch.heard_ns.get(backend, 0) > since_ns else since_ns

    def spare(self, server: Server, backend: int) -> None:
        """It is not taken for dead for now: looked at again later, and ever later."""
        _, later = self._spared.get(backend, (0, 1))
        self._spared[backend] = server.silences + later, min(2 * later, SPARED_MOST)

    def give_time(self, backend: int) -> None:
        """Those who come to a backend now, as to all of its service, have time."""
        server = self._watch.server_of(backend)
        silences = server.silences if server is not None else 0
        self._spared[backend] = silences + SPARED_MOST, 1

    def forget(self, backend: int) -> None:
        """It was heard, or is none of ours any more."""
        self._spared.pop(backend, None)
