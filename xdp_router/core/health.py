# SPDX-License-Identifier: Apache-2.0
"""Which backends are well, by what probes and traffic say of them.

    WELL ──`fall` bad ones in a row──► ILL ──`rise` good ones in a row, and time served──► WELL
                                        ▲                                                 │
                                        └──── within FORGIVEN_NS after it: held longer ───┘

Probes and traffic are counted apart: a hung process still answers probes, and a backend that
nobody speaks to is known by probes alone. Each that falls again soon after it came back is
held down twice as long as the time before. One that comes back gets its share step by step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

FORGIVEN_NS = 60_000_000_000
"""A backend that has been well for so long, and as long again as it was held down, has no past."""

FIRST_SHARE = 0.1
"""Of its weight, when a backend comes back: enough to be measured, little to be lost."""


class Source(enum.Enum):
    """Who says something about a backend."""

    PROBE = "probe"
    TRAFFIC = "traffic"


class Ill(enum.Enum):
    """What a backend did last, before it was found ill."""

    UNANSWERED = "unanswered"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """``rise``, ``fall``: observations in a row. ``hold_ns``: how long a backend is down at least,
    at first; it doubles up to ``hold_max_ns``. ``slow_start_ns``: from its return until it has
    its whole share; 0: at once.
    """

    rise: int = 2
    fall: int = 3
    hold_ns: int = 1_000_000_000
    hold_max_ns: int = 60_000_000_000
    slow_start_ns: int = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """A backend is well, or ill because of ``why``, and held down until ``held_until_ns``."""

    backend: int
    well: bool
    why: Ill | None = None
    source: Source | None = None
    held_until_ns: int = 0
    times: int = 0
    """How often it has fallen without having been forgiven."""


class _State:
    """One backend's."""

    __slots__ = ("bad", "good", "held_until_ns", "hold_ns", "returned_ns", "times", "well")

    def __init__(self) -> None:
        self.well = True
        self.bad = {Source.PROBE: 0, Source.TRAFFIC: 0}
        self.good = 0
        self.held_until_ns = 0
        self.hold_ns = 0
        self.returned_ns = 0  # 0: it never fell
        self.times = 0


class Health:
    """The health of all backends. One that nothing was heard of is well.

    Instants are CLOCK_MONOTONIC nanoseconds, and never go back.
    """

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self._states: dict[int, _State] = {}

    def is_well(self, backend: int) -> bool:
        """Whether it may have flows, as far as its health goes."""
        state = self._states.get(backend)
        return state is None or state.well

    def ill(self) -> frozenset[int]:
        """Those that may not."""
        return frozenset(each for each, state in self._states.items() if not state.well)

    def forget(self, backends: Iterable[int]) -> None:
        """They are no more, or others have their numbers."""
        for backend in backends:
            self._states.pop(backend, None)

    def heard(self, backend: int, source: Source, why: Ill | None, now_ns: int) -> Change | None:
        """Take in one observation; ``why`` None: a good one. Returns what has changed by it.

        Traffic can only speak against a backend that is down: it gets none, and what comes
        still is of connections of before.
        """
        state = self._states.get(backend)
        if state is None:
            if why is None:
                return None
            state = self._states[backend] = _State()
        if state.well:
            return self._of_one_that_is_well(backend, state, source, why, now_ns)
        if why is not None:
            state.good = 0
        elif source is Source.PROBE:
            state.good += 1
            if state.good >= self.settings.rise and now_ns >= state.held_until_ns:
                return self._rise(backend, state, now_ns)
        return None

    def share(self, backend: int, now_ns: int) -> float:
        """Which part of its weight a backend is to have: 1, but while it starts slowly."""
        state = self._states.get(backend)
        if state is not None and not state.well:
            return 0.0
        span_ns = self.settings.slow_start_ns
        if state is None or not state.returned_ns or not span_ns:
            return 1.0
        passed = (now_ns - state.returned_ns) / span_ns
        return min(1.0, FIRST_SHARE + (1 - FIRST_SHARE) * passed)

    def _of_one_that_is_well(
        self, backend: int, state: _State, source: Source, why: Ill | None, now_ns: int
    ) -> Change | None:
        if why is None:
            state.bad[source] = 0
            if self._is_forgiven(state, now_ns) and not any(state.bad.values()):
                del self._states[backend]
            return None
        state.bad[source] += 1
        if state.bad[source] < self.settings.fall:
            return None
        if self._is_forgiven(state, now_ns):
            state.hold_ns = state.times = 0
        state.times += 1
        longer_ns = 2 * state.hold_ns if state.hold_ns else self.settings.hold_ns
        state.hold_ns = min(longer_ns, self.settings.hold_max_ns)
        state.held_until_ns = now_ns + state.hold_ns
        state.well, state.good = False, 0
        return Change(backend, False, why, source, state.held_until_ns, state.times)

    def _rise(self, backend: int, state: _State, now_ns: int) -> Change:
        state.well = True
        state.bad = {Source.PROBE: 0, Source.TRAFFIC: 0}
        state.returned_ns = now_ns
        return Change(backend, True, times=state.times)

    def _is_forgiven(self, state: _State, now_ns: int) -> bool:
        well_ns = now_ns - state.returned_ns
        return not state.times or well_ns >= FORGIVEN_NS + state.hold_ns
