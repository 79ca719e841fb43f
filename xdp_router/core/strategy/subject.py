# SPDX-License-Identifier: Apache-2.0
"""One server that is probed in the background, for all services that have it as a backend."""

from __future__ import annotations

from ..estimator import RttEstimator
from ..model import Backend, Endpoint, Probe, ProbeAnswer, Service
from .probing import ProbeKey

PATIENCE_NS = 1_000_000
"""How much longer than twice the usual a probe may take before its age is looked at."""
TIMEOUT_NS = 1_000_000_000
"""An answer that comes later than this is none."""
SILENT_INTERVAL_NS = 100_000_000
"""How often a server is probed, at most, that has not answered for as long as the timeout."""

SubjectKey = tuple[Endpoint, Probe, int | None]
"""What is probed, by what, behind which tag."""


class Outstanding:
    """A probe from its SendProbe command until it is answered and its send time is known."""

    __slots__ = ("answer", "answered_ns", "asked_ns", "backend", "key", "sent_ns", "seq", "subject")

    def __init__(
        self, subject: Subject, backend: Backend, key: ProbeKey, seq: int, asked_ns: int
    ) -> None:
        self.subject = subject
        self.backend = backend
        self.key = key
        self.seq = seq
        self.asked_ns = asked_ns
        self.sent_ns = 0
        self.answered_ns = 0
        self.answer = ProbeAnswer.LOST


class Subject:
    """What is known of a server, who has it as a backend, and when it is probed next."""

    __slots__ = (
        "answers",
        "backends",
        "changed_ns",
        "deadline_ns",
        "due_ns",
        "estimator",
        "evidence_ns",
        "interval_ns",
        "last_rtt_ns",
        "losses",
        "outstanding",
        "probed",
        "refused",
        "services",
        "told",
    )

    def __init__(self, probed: Endpoint) -> None:
        self.probed = probed
        self.estimator = RttEstimator()
        self.backends: dict[int, tuple[Backend, Service]] = {}  # by backend id
        self.outstanding: dict[ProbeKey, Outstanding] = {}  # oldest first
        self.interval_ns = 0
        self.deadline_ns = 0
        self.due_ns: int | None = None
        """When the next probe is due; None: nobody is up to be probed."""
        self.refused = False
        self.evidence_ns = 0  # when the newest good answer came
        self.told = (False, 0)
        """Whether it refused, and its round trip, as its services were told last."""
        self.changed_ns = 0  # when that was
        self.services: tuple[int, ...] | None = None
        """Ids of them; None: to be made of ``backends``."""
        self.answers = self.losses = self.last_rtt_ns = 0

    def join(self, backend: Backend, service: Service) -> None:
        """It is a backend of this service, too."""
        if not self.backends:
            self.interval_ns, self.deadline_ns = service.probe_interval_ns, service.deadline_ns
        self.backends[backend.id] = backend, service
        self.services = None
        self.interval_ns = min(self.interval_ns, service.probe_interval_ns)
        self.deadline_ns = min(self.deadline_ns, service.deadline_ns)

    def leave(self, backend: Backend) -> None:
        """It is not any more."""
        _, service = self.backends.pop(backend.id)
        self.services = None
        if (
            service.probe_interval_ns == self.interval_ns or service.deadline_ns == self.deadline_ns
        ):  # else others say how often, and there may be thousands of them
            services = [each for _, each in self.backends.values()]
            self.interval_ns = min((each.probe_interval_ns for each in services), default=0)
            self.deadline_ns = min((each.deadline_ns for each in services), default=0)

    def patience_ns(self) -> int:
        """After how long an unanswered probe is late."""
        return PATIENCE_NS + 2 * self.estimator.average_ns

    def next_interval_ns(self, now_ns: int) -> int:
        """How long until the next probe, without jitter."""
        if self.estimator.silent_ns(now_ns) > TIMEOUT_NS:
            return max(self.interval_ns, SILENT_INTERVAL_NS)
        return self.interval_ns

    def is_silent(self, service: Service, now_ns: int) -> bool:
        """Whether it would have lost each race of the service: no answer by the deadline."""
        return self.estimator.silent_ns(now_ns) > service.deadline_ns

    def is_known(self, service: Service, now_ns: int) -> bool:
        """Whether it is known how near it is, and that it takes flows."""
        return bool(
            self.estimator.average_ns
            and not self.refused
            and not self.is_silent(service, now_ns)
            and now_ns - self.evidence_ns <= service.snapshot_age_ns
        )

    def is_old(self, service: Service, now_ns: int) -> bool:
        """Whether nothing speaks against it but the age of what is known: nobody has asked."""
        return bool(
            self.estimator.average_ns and not self.refused and not self.is_silent(service, now_ns)
        ) and not self.is_known(service, now_ns)

    def has_changed(self, now_ns: int, noise_ns: int) -> bool:
        """Whether it is so much other than its services were told last that a table has to
        follow at once; then they are told. What is less waits for the next look.
        """
        refused, before = self.told
        rtt = self.estimator.rtt_ns(now_ns)
        if self.refused is refused and abs(rtt - before) <= max(noise_ns, before >> 1):
            return False
        self.told = self.refused, rtt
        self.changed_ns = now_ns
        return True

    def each_service(self) -> tuple[int, ...]:
        """Ids of the services that have it, as they are now."""
        if self.services is None:
            self.services = tuple({service.id: None for _, service in self.backends.values()})
        return self.services
