# SPDX-License-Identifier: Apache-2.0
"""One service's pick table: what it is made of, when it is made, what the daemon takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ..abi import PICK_SLOTS
from ..events import FirstPacket
from ..model import NO_BACKEND, Backend, Scored, Service, Snapshot
from ..pick_table import EMPTY_PICKS, differs, lay_out, slot_counts
from ..score import Measured, Terms, pick_weights, scores
from .base import Evidence
from .probing import Draw, Shared
from .subject import Subject

SETTLE_NS = 5_000_000
"""How long a first table waits for those that have not answered yet."""
_STEP = 97
"""From a slot whose backend cannot be had to the next one: odd, so that all are visited."""


def look_work(backends: int) -> int:
    """How much work a look at a service of so many backends is, about, in probes."""
    return 1 + backends // 8


class Picks:
    """The table of one service. ``subjects`` are in the order of its backends."""

    __slots__ = (
        "_counts",
        "began_ns",
        "is_live",
        "is_waiting",
        "looked_ns",
        "made_ns",
        "refresh_ns",
        "service",
        "slots",
        "snapshot",
        "subjects",
        "waiting",
    )

    def __init__(self, service: Service, subjects: Sequence[Subject]) -> None:
        self.service = service
        self.subjects = tuple(subjects)
        self.slots = EMPTY_PICKS
        self.snapshot = Snapshot(0)
        self.made_ns = 0
        self.looked_ns = -1
        self.began_ns: int | None = None
        self.is_live = False
        """Whether a table was published: until then XDP leaves the service to the daemon."""
        self.is_waiting = False
        """Whether the newest look found all that is known too old: answers are on their way."""
        self.refresh_ns: int | None = None
        self.waiting: list[tuple[FirstPacket, frozenset[int], Evidence]] = []
        self._counts: tuple[int, ...] = ()

    @property
    def work(self) -> int:
        """How much work a look is, about, in probes."""
        return look_work(len(self.subjects))

    def evidence(self) -> Evidence:
        """Who has refused lately, for a flow that is decided by this table."""
        pairs = zip(self.service.backends, self.subjects, strict=True)
        return Evidence(refused={backend.id for backend, subject in pairs if subject.refused})

    def is_fresh(self, now_ns: int) -> bool:
        """Whether flows may be decided by the table."""
        return self.is_live and now_ns - self.made_ns <= self.service.snapshot_age_ns

    def look(self, up: AbstractSet[int], shared: Shared, noise_ns: int, now_ns: int) -> bool:
        """Make the table anew. False: it is not worth to be published, or too early."""
        service = self.service
        self.looked_ns = now_ns
        if self.began_ns is None:
            self.began_ns = now_ns
        pairs = [
            (backend, subject)
            for backend, subject in zip(service.backends, self.subjects, strict=True)
            if backend.id in up
        ]
        known = [
            (backend, subject) for backend, subject in pairs if subject.is_known(service, now_ns)
        ]
        if not self.is_live and len(known) < len(pairs):
            unknown = sum(not each.refused for _, each in pairs) - len(known)
            patience = SETTLE_NS if known else service.deadline_ns
            if unknown and now_ns - self.began_ns < patience:
                return False
        # After a pause of the daemon: XDP knows how old its table is, and an empty one says
        # something else.
        self.is_waiting = (
            self.is_live
            and not known
            and any(subject.is_old(service, now_ns) for _, subject in pairs)
        )
        if self.is_waiting:
            return False
        made_ns = max((subject.evidence_ns for _, subject in known), default=now_ns)
        measured = [
            shared.inputs.measured(
                backend.id, subject.estimator.rtt_ns(now_ns), service.score_age_ns, now_ns
            )
            for backend, subject in known
        ]
        scored = scores(measured, service.score, noise_ns)
        share = shared.health.share
        own = [backend.weight * share(backend.id, now_ns) for backend, _ in known]
        weights = pick_weights(scored, own)
        by_id = dict(zip((backend.id for backend, _ in known), slot_counts(weights), strict=True))
        counts = tuple(by_id.get(backend.id, 0) for backend in service.backends)
        worn = now_ns - self.made_ns >= service.snapshot_age_ns // 2 and made_ns > self.made_ns
        if self.is_live and not worn and not differs(self._counts, counts):
            return False
        if counts != self._counts or not self.is_live:
            self._counts = counts
            self.slots = lay_out([backend.id for backend in service.backends], counts)
        self.made_ns = made_ns
        self.snapshot = Snapshot(
            made_ns,
            tuple(
                _row(backend, by_id[backend.id], terms, each)
                for (backend, _), each, terms in zip(known, measured, scored, strict=True)
            ),
        )
        return True

    def choose(self, up: AbstractSet[int], excluded: frozenset[int], draw: Draw) -> int:
        """A slot at random, as XDP takes it, or the next one whose backend can be had."""
        at = draw(PICK_SLOTS)
        for _ in range(PICK_SLOTS):
            backend = self.slots[at % PICK_SLOTS]
            if backend in up and backend not in excluded:
                return backend
            at += _STEP
        return NO_BACKEND


def _row(backend: Backend, slots: int, terms: Terms, measured: Measured) -> Scored:
    return Scored(
        backend.id,
        slots,
        terms.score,
        measured.rtt_ns,
        measured.ttft_ns,
        terms.cache,
        measured.queue,
        terms.rtt,
        terms.ttft,
        terms.queue,
        measured.usage,
        measured.sources,
    )
