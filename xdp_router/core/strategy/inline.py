# SPDX-License-Identifier: Apache-2.0
"""Mode ``inline``: XDP decides by what it sees of real flows; nothing is probed.

What it hands to the daemon all the same is decided at once, in the same way: two backends at
random, and of them the one with the lower load for its weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from ..events import FirstPacket, ProbeReply, ProbeSent
from ..model import NO_BACKEND, Backend, Compared, Mode, Reason, Service, Snapshot
from .base import BackendStats, Evidence, ProbeSettings, Sequencer, Step, Verdict
from .probing import Load, Servers, Shared, some_of

CHOICES = 2


def lightest(backends: Sequence[Backend], loads: Sequence[Load]) -> Backend:
    """The one with the least ``ewma * (open + 1) / weight``.

    Without a sample it is taken to be as near as the nearest of the others: it has to get a
    flow to be measured, but not all of them.
    """
    nearest = min((each.ewma_ns for each in loads if each.ewma_ns), default=1)
    costs = [
        (load.ewma_ns or nearest) * (load.open + 1) / backend.weight
        for backend, load in zip(backends, loads, strict=True)
    ]
    return backends[costs.index(min(costs))]


class InlineStrategy:
    """All services of mode ``inline``; implements ``Strategy``."""

    def __init__(
        self,
        services: Iterable[Service],
        up: AbstractSet[int],
        settings: ProbeSettings,
        sequence: Sequencer,  # of probes, of which there are none
        shared: Shared | None = None,
    ) -> None:
        self._up = up
        self._shared = shared if shared is not None else Shared(Servers(settings))
        self._backends: set[int] = set()
        self.apply(services, settings)

    @property
    def open_races(self) -> int:
        """Nobody waits for a measurement."""
        return 0

    @property
    def counters(self) -> dict[str, int]:
        """None: the program has its own."""
        return {}

    def stats(self, backend: int) -> BackendStats | None:
        """Nothing was probed."""
        return BackendStats() if backend in self._backends else None

    def apply(self, services: Iterable[Service], settings: ProbeSettings) -> Sequence[Step]:
        """Have these from now on."""
        self._backends = {each.id for service in services for each in service.backends}
        return ()

    def admit(
        self,
        service: Service,
        first: FirstPacket,
        now_ns: int,
        excluded: frozenset[int] = frozenset(),
    ) -> tuple[Evidence, Sequence[Step]]:
        """Decide at once."""
        usable = [b for b in service.backends if b.id in self._up and b.id not in excluded]
        if not usable:
            return Evidence(), (Verdict(first, NO_BACKEND, Reason.NO_CANDIDATE, Mode.INLINE),)
        usable = self._shared.not_held_back(usable, now_ns)
        two = some_of(usable, CHOICES, self._shared.draw)
        if self._shared.draw(2):  # of equals either may be the one
            two.reverse()
        loads = [self._shared.load_of(each.id) for each in two]
        backend = lightest(two, loads)
        compared = tuple(
            Compared(each.id, load.ewma_ns, load.open)
            for each, load in zip(two, loads, strict=True)
        )
        return Evidence(compared=compared if len(two) > 1 else ()), (
            Verdict(first, backend.id, Reason.INLINE, Mode.INLINE),
        )

    def probe_sent(self, event: ProbeSent, now_ns: int) -> Sequence[Step]:
        """No probe is ours."""
        return ()

    def probe_replies(self, events: Sequence[ProbeReply], now_ns: int) -> Sequence[Step]:
        """No answer is."""
        return ()

    def awaits(self, event: ProbeReply) -> bool:
        """No."""
        return False

    def snapshot(self, service: int) -> Snapshot | None:
        """There is none."""
        return None

    def told(self, service: int) -> None:
        """XDP does not look at what others say."""

    def backend_state(self, service: Service, backend: int, up: bool) -> None:
        """The set of usable backends is looked at each time."""

    def deadline(self) -> int | None:
        """Nothing is ever due."""
        return None

    def expire(self, now_ns: int) -> Sequence[Step]:
        """Nothing is due."""
        return ()
