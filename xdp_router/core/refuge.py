# SPDX-License-Identifier: Apache-2.0
"""Who of a service is well: whether anybody may be chosen, and whether the clients of a backend
that seems to have died had anybody to go to.

A service may have thousands of backends, and all of them may fall at once. So whoever was found
well the last time is asked first, and nobody is gone through twice at one moment.
"""

from __future__ import annotations

import enum
from collections.abc import Set as AbstractSet

from .availability import Availability
from .health_watch import HealthWatch, Server
from .model import Service

LOOKED_AT = 512
"""Backends of a service that are gone through for one piece of work."""


class Refuge(enum.Enum):
    """What there is for clients of a backend that has fallen silent."""

    THERE = "there"
    """Somebody of the service has had a good answer since."""
    LATER = "later"
    """Who is taken for well has had no turn since: it may have fallen silent together with it."""
    NOWHERE = "nowhere"


class Refuges:
    """Of all services. ``ill`` is always the ids of those of the service that are ill."""

    def __init__(self, watch: HealthWatch, backends: Availability) -> None:
        self._watch = watch
        self._backends = backends
        self._well: dict[int, int] = {}  # by service: who was found well the last time
        self._newest: dict[int, tuple[int, int]] = {}
        """By service: whose answer was the newest one, or -1, and when that was looked at."""
        self.looked = 0
        """Backends that were gone through since the start."""

    def forget(self, service: int) -> None:
        """Its backends are others now, or are otherwise."""
        self._newest.pop(service, None)

    def are_all_ill(self, service: Service, ill: AbstractSet[int]) -> bool:
        """Whether there are backends that could be chosen, and none of them is well."""
        if self._may_be_chosen(self._well.get(service.id, -1), ill):
            return False
        nobody = True
        for each in service.backends:
            self.looked += 1
            if not self._backends.is_reached(each.id) or self._backends.is_draining(each.id):
                continue
            if each.id not in ill:
                self._well[service.id] = each.id
                return False
            nobody = False
        self._well.pop(service.id, None)
        return not nobody

    def _may_be_chosen(self, backend: int, ill: AbstractSet[int]) -> bool:
        known = self._backends
        return known.is_reached(backend) and not known.is_draining(backend) and backend not in ill

    def of(self, service: Service, server: Server, ill: AbstractSet[int], now_ns: int) -> Refuge:
        """What there is for clients of ``server``, which is silent."""
        since_ns = server.silent_ns + server.patience_ns  # an answer sooner may be of before
        number, looked_ns = self._newest.get(service.id, (-1, -1))
        at_ns = self._answers_ns(number, ill)
        left = number >= 0 > at_ns  # who was well, and is not
        if at_ns <= since_ns and (left or looked_ns != now_ns):
            at_ns = self._look(service, ill, since_ns, now_ns)
        if at_ns > since_ns:
            return Refuge.THERE
        return Refuge.LATER if at_ns >= 0 else Refuge.NOWHERE

    def _look(self, service: Service, ill: AbstractSet[int], since_ns: int, now_ns: int) -> int:
        newest, newest_ns = -1, -1
        for each in service.backends:
            self.looked += 1
            at_ns = self._answers_ns(each.id, ill)
            if at_ns > newest_ns:
                newest, newest_ns = each.id, at_ns
                if at_ns > since_ns:
                    break
        self._newest[service.id] = newest, now_ns
        return newest_ns

    def _answers_ns(self, backend: int, ill: AbstractSet[int]) -> int:
        """When a backend that is well was last heard; -1: it is not, or may not be chosen."""
        if backend not in self._backends.usable or backend in ill:
            return -1
        server = self._watch.server_of(backend)
        return -1 if server is None or server.silences else server.answers_ns
