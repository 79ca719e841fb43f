# SPDX-License-Identifier: Apache-2.0
"""Where backends stand, as seen from a client: which of them are unfit for it, and why.

With ``nat`` a backend's answers must come back through the router (with ``fullnat`` they always
do: they are addressed to it). Two kinds do not: those of a
backend that is the client itself, and those to a client in the backend's own subnet, which
the backend sends there directly, untranslated. The second kind can be mended by a route on
the backend, which cannot be seen from here: such a backend is only the last resort.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from .address import in_subnet
from .events import BackendPath, FirstPacket
from .model import ONE_SIDED, Forwarding, Service, Unfit

Unfits = tuple[tuple[int, Unfit], ...]
"""(backend id, why it is unfit), by id."""

UNFIT_AS = {
    Unfit.CLIENT_ITSELF: "client_is_backend",
    Unfit.BESIDE_CLIENT: "client_beside_backend",
}
"""What each kind is counted as."""

_NOBODY: frozenset[int] = frozenset()
_FIT: tuple[Unfits, frozenset[int]] = ((), _NOBODY)


class Surroundings:
    """Backends by address, and by the interface and the subnets that they are reached in."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._at: dict[int, list[int]] = {}  # by address
        self._service_of: dict[int, int] = {}
        self._paths: dict[int, BackendPath] = {}
        self._by_interface: dict[tuple[int, int], set[int]] = {}  # by service and interface
        self.apply(services)

    def apply(self, services: Iterable[Service]) -> None:
        """Have the backends of these services alone. Those that stay are where they were."""
        self._at.clear()
        self._service_of.clear()
        for service in services:
            for backend in service.backends:
                self._at.setdefault(backend.endpoint.addr, []).append(backend.id)
                self._service_of[backend.id] = service.id
        paths, self._paths = self._paths, {}
        self._by_interface.clear()
        for event in paths.values():
            self.moved(event)

    def moved(self, event: BackendPath) -> None:
        """A backend is reached in another way than before."""
        service = self._service_of.get(event.backend)
        if service is None:
            return
        old = self._paths.get(event.backend)
        if old is not None:
            self._by_interface[service, old.ifindex].discard(event.backend)
        self._paths[event.backend] = event
        self._by_interface.setdefault((service, event.ifindex), set()).add(event.backend)

    def unfit(
        self, service: Service, first: FirstPacket, up: Collection[int]
    ) -> tuple[Unfits, frozenset[int]]:
        """Backends that are unfit for a client, and which of these must not be probed for it.

        Those beside the client are among the second only if somebody else is ``up``.
        """
        if service.forwarding is Forwarding.FULLNAT:
            return _FIT
        client = first.key.client_addr
        here: AbstractSet[int] = _NOBODY
        if service.forwarding not in ONE_SIDED:  # whose backends are to answer directly
            here = self._by_interface.get((service.id, first.ifindex), _NOBODY)
        same = self._at.get(client)
        if not here and same is None:
            return _FIT
        itself = {b for b in same or () if self._service_of[b] == service.id}
        beside = {
            backend
            for backend in here
            if any(in_subnet(client, *subnet) for subnet in self._paths[backend].subnets)
        } - itself
        if not itself and not beside:
            return _FIT
        found = [(backend, Unfit.CLIENT_ITSELF) for backend in itself]
        found += [(backend, Unfit.BESIDE_CLIENT) for backend in beside]
        passed_over = itself | beside
        others = any(b.id in up and b.id not in passed_over for b in service.backends)
        return tuple(sorted(found)), frozenset(passed_over if others else itself)
