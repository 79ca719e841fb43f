# SPDX-License-Identifier: Apache-2.0
"""Flows of one source that come before its first is established, with ``affinity = "source"``.

XDP knows where a source's flows go from the first one on whose handshake is complete. A browser
opens six at once: the first is decided, the others wait for it and go the same way, as do those
that come while its handshake is under way.
"""

from __future__ import annotations

from collections.abc import Collection

from .flow import Flow
from .model import NO_BACKEND

REMEMBERED_NS = 10_000_000_000
"""As long as a handshake may take; an affinity that is shorter lasts no longer here."""

REMEMBERED = 65_536
"""Sources; forged ones push out each other, and at worst a handshake's memory."""

WAITS = NO_BACKEND
"""What ``meet`` says when somebody is ahead whose decision is open."""


class Companions:
    """Who is ahead of whom. A source that nobody is ahead of is its own first."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[int, int], Flow] = {}
        self._behind: dict[tuple[int, int], list[Flow]] = {}
        self._decided: dict[tuple[int, int], tuple[int, int]] = {}

    def meet(self, flow: Flow, now_ns: int) -> int | None:
        """Where a new flow goes: with one just decided; WAITS; None: it is ahead of others."""
        source = _source(flow)
        ahead = self._ahead.get(source)
        if ahead is not None:
            flow.evidence = ahead.evidence
            self._behind.setdefault(source, []).append(flow)
            return WAITS
        backend, until_ns = self._decided.get(source, (NO_BACKEND, 0))
        if now_ns < until_ns:
            return backend
        self._ahead[source] = flow
        return None

    def is_ahead(self, flow: Flow) -> bool:
        """Whether others may wait for this flow, also if its service has no affinity by now."""
        return bool(self._ahead) and self._ahead.get(_source(flow)) is flow

    def leave(self, flow: Flow) -> None:
        """What was decided of its source cannot be had: this flow is ahead of others now."""
        source = _source(flow)
        self._decided.pop(source, None)
        self._ahead[source] = flow

    def forget(self, services: Collection[int], backends: Collection[int]) -> None:
        """These services and backends are no more; flows of theirs that wait are let go."""
        for each in (self._ahead, self._behind):
            for source in [source for source in each if source[0] in services]:
                del each[source]
        self._decided = {
            source: decided
            for source, decided in self._decided.items()
            if source[0] not in services and decided[0] not in backends
        }

    def settled(self, flow: Flow, backend: int, now_ns: int) -> list[Flow]:
        """The flow is not open any more; gives who waited for it. NO_BACKEND: it got none."""
        source = _source(flow)
        if backend != NO_BACKEND:
            self._decided.pop(source, None)
            until_ns = now_ns + min(flow.service.affinity_ns, REMEMBERED_NS)
            self._decided[source] = (backend, until_ns)
            if len(self._decided) > REMEMBERED:
                del self._decided[next(iter(self._decided))]
        if self._ahead.get(source) is not flow:
            return []
        del self._ahead[source]
        return self._behind.pop(source, [])


def _source(flow: Flow) -> tuple[int, int]:
    return flow.service.id, flow.first.key.client_addr
