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
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .model import HealthSettings as HealthSettings
from .plain_enum import PlainEnum

FORGIVEN_NS = 60_000_000_000
"""A backend that has been well for so long, and as long again as it was held down, has no past.
One that its flows have brought down must have had one that fared well, too: where few come, time
alone shows nothing, nor do probes, which were good all along."""

FIRST_SHARE = 0.1
"""Of its weight, when a backend comes back: enough to be measured, little to be lost."""


class Source(PlainEnum):
    """Who says something about a backend."""

    PROBE = "probe"
    TRAFFIC = "traffic"


class Ill(enum.Enum):
    """What a backend did last, before it was found ill."""

    UNANSWERED = "unanswered"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    UNEXPECTED = "unexpected"
    BEFORE = "not well since the restart"
    """It was ill when the router was left; of the reason nothing is known any more."""


SILENT = (Ill.UNANSWERED, Ill.UNREACHABLE)
"""As a server that is gone; one that refuses, or answers otherwise, lives."""


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


@dataclass(frozen=True, slots=True)
class Condition:
    """How a backend is, for whoever shows it. Of one that is well ``why`` is of its last fall."""

    well: bool = True
    since_ns: int = 0
    """Since when; 0: it never fell, or that is forgiven."""
    why: Ill | None = None
    source: Source | None = None
    held_until_ns: int = 0
    times: int = 0


WELL = Condition()


class _State:
    """One backend's."""

    __slots__ = (
        "bad",
        "good",
        "held_until_ns",
        "hold_ns",
        "is_proven",
        "returned_ns",
        "since_ns",
        "source",
        "times",
        "well",
        "why",
    )

    def __init__(self) -> None:
        self.well = True
        self.bad = {Source.PROBE: 0, Source.TRAFFIC: 0}
        self.good = 0
        self.held_until_ns = 0
        self.hold_ns = 0
        self.is_proven = False  # a flow has fared well since it came back
        self.returned_ns = 0  # 0: it never fell
        self.since_ns = 0
        self.times = 0
        self.why: Ill | None = None
        self.source: Source | None = None


class Health:
    """The health of all backends. One that nothing was heard of is well.

    Instants are CLOCK_MONOTONIC nanoseconds, and never go back. ``own``: settings of backends
    that have others than ``settings``; it is the caller's to change.
    """

    def __init__(
        self,
        settings: HealthSettings | None = None,
        own: Mapping[int, HealthSettings] | None = None,
    ) -> None:
        self.settings = settings if settings is not None else HealthSettings()
        self._own: Mapping[int, HealthSettings] = own if own is not None else {}
        self._states: dict[int, _State] = {}
        self._ill: set[int] = set()
        self._starting: set[int] = set()

    def is_well(self, backend: int) -> bool:
        """Whether it may have flows, as far as its health goes."""
        return backend not in self._ill

    def ill(self) -> frozenset[int]:
        """Those that may not."""
        return frozenset(self._ill)

    @property
    def starting(self) -> AbstractSet[int]:
        """Those that have come back, and may not have their whole share yet."""
        return self._starting

    def condition(self, backend: int) -> Condition:
        """How a backend is."""
        state = self._states.get(backend)
        if state is None or (state.well and not state.times):
            return WELL
        return Condition(
            state.well,
            state.since_ns,
            state.why,
            state.source,
            0 if state.well else self._held_until_ns(backend, state),
            state.times,
        )

    def forget(self, backends: Iterable[int]) -> None:
        """They are no more, or others have their numbers."""
        for backend in backends:
            self._states.pop(backend, None)
            self._ill.discard(backend)
            self._starting.discard(backend)

    def begin_ill(self, backend: int, now_ns: int) -> None:
        """It was ill before anything was heard of it here; it rises as any other."""
        state = self._states[backend] = _State()
        state.well, state.times = False, 1
        state.since_ns = state.held_until_ns = now_ns
        state.why, state.source = Ill.BEFORE, Source.PROBE
        self._ill.add(backend)

    def ask_otherwise(self, backend: int) -> None:
        """Its probe is another one from now on: how it is stays, what was counted does not. One
        that the old probe has found ill is not held for that any longer."""
        state = self._states.get(backend)
        if state is not None:
            state.bad[Source.PROBE] = state.good = 0
            if state.source is Source.PROBE:
                state.held_until_ns = state.since_ns

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
            held_ns = self._held_until_ns(backend, state)
            if state.good >= self._settings(backend).rise and now_ns >= held_ns:
                return self._rise(backend, state, now_ns)
        return None

    def share(self, backend: int, now_ns: int) -> float:
        """Which part of its weight a backend is to have: 1, but while it starts slowly."""
        if backend in self._ill:
            return 0.0
        if backend not in self._starting:
            return 1.0
        span_ns = self._settings(backend).slow_start_ns
        passed = (now_ns - self._states[backend].returned_ns) / span_ns if span_ns else 1.0
        if passed >= 1.0:
            self._starting.discard(backend)
            return 1.0
        return FIRST_SHARE + (1 - FIRST_SHARE) * passed

    def _held_until_ns(self, backend: int, state: _State) -> int:
        """Not longer than the settings of now allow: who lowers them wants it back."""
        return min(state.held_until_ns, state.since_ns + self._settings(backend).hold_max_ns)

    def _settings(self, backend: int) -> HealthSettings:
        return self._own.get(backend, self.settings)

    def _of_one_that_is_well(
        self, backend: int, state: _State, source: Source, why: Ill | None, now_ns: int
    ) -> Change | None:
        settings = self._settings(backend)
        if why is None:
            state.bad[source] = 0
            state.is_proven |= source is Source.TRAFFIC
            if (
                self._is_forgiven(state, now_ns)
                and not any(state.bad.values())
                and backend not in self._starting
            ):
                del self._states[backend]
            return None
        state.bad[source] += 1
        if state.bad[source] < settings.fall:
            return None
        if self._is_forgiven(state, now_ns):
            state.hold_ns = state.times = 0
        state.times += 1
        longer_ns = 2 * state.hold_ns if state.hold_ns else settings.hold_ns
        state.hold_ns = min(longer_ns, settings.hold_max_ns)
        state.held_until_ns = now_ns + state.hold_ns
        state.well, state.good = False, 0
        state.since_ns, state.why, state.source = now_ns, why, source
        self._ill.add(backend)
        self._starting.discard(backend)
        return Change(backend, False, why, source, state.held_until_ns, state.times)

    def _rise(self, backend: int, state: _State, now_ns: int) -> Change:
        state.well = True
        state.bad = {Source.PROBE: 0, Source.TRAFFIC: 0}
        state.returned_ns = state.since_ns = now_ns
        state.is_proven = False
        self._ill.discard(backend)
        if self._settings(backend).slow_start_ns:
            self._starting.add(backend)
        return Change(backend, True, times=state.times)

    def _is_forgiven(self, state: _State, now_ns: int) -> bool:
        if not state.times:
            return True
        if state.source is Source.TRAFFIC and not state.is_proven:
            return False
        return now_ns - state.returned_ns >= FORGIVEN_NS + state.hold_ns
