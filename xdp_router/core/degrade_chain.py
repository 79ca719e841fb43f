# SPDX-License-Identifier: Apache-2.0
"""Who gets a flow that no measurement has decided: fallback, hash, nobody.

XDP walks the same chain by itself (``ebpf/lib/binding.h``).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from .flow import Flow
from .flow_hash import choice_hash
from .hash_tables import HashTables
from .model import NO_BACKEND, Mode, Reason

Choice = tuple[int, Mode, Reason]


class DegradeChain:
    """``up`` is the engine's set of usable backend ids; it is looked at, never changed."""

    def __init__(self, up: AbstractSet[int], tables: HashTables) -> None:
        self._up = up
        self._tables = tables

    def choice(self, flow: Flow, reason: Reason) -> Choice:
        """Configured fallback, else consistent hash, else refuse. XDP has the same order."""
        fallback = flow.service.fallback
        ruled_out = flow.evidence.refused
        if fallback in self._up and fallback not in ruled_out and fallback not in flow.excluded:
            return fallback, Mode.FALLBACK, reason
        backend = self._hashed(flow)
        if backend != NO_BACKEND:
            return backend, Mode.HASH, reason
        return NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE

    def is_refused(self, flow: Flow) -> bool:
        """Whether there is nobody left who has not been asked, or is not to be."""
        if not flow.excluded <= flow.itself:
            return False
        ruled_out = flow.evidence.refused | flow.excluded
        backends = flow.service.backends if flow.service.candidates else ()
        return all(each.id in ruled_out or each.id not in self._up for each in backends)

    def another(self, flow: Flow) -> Choice | None:
        """The choice's reply tuple is taken: who else answered, in order, then the rest by hash.

        None: all of them were tried.
        """
        for backend in flow.evidence.answered:
            if backend in self._up and backend not in flow.tried:
                return backend, Mode.RACE, Reason.TUPLE_TAKEN
        backend = self._hashed(flow)
        return None if backend == NO_BACKEND else (backend, Mode.HASH, Reason.TUPLE_TAKEN)

    def _hashed(self, flow: Flow) -> int:
        """The flow's hash slot, or the next one whose backend is not ruled out."""
        ruled_out = flow.evidence.refused.union(flow.tried, flow.excluded)
        backend = self._slot(flow, ruled_out)
        if backend == NO_BACKEND and flow.excluded:
            # Those beside the client are better than nobody.
            backend = self._slot(flow, flow.evidence.refused.union(flow.tried, flow.itself))
        return backend

    def _slot(self, flow: Flow, ruled_out: AbstractSet[int]) -> int:
        if not any(
            each.id in self._up and each.id not in ruled_out for each in flow.service.backends
        ):
            return NO_BACKEND
        return self._tables.find(flow.service, choice_hash(flow.service, flow.first.key), ruled_out)
