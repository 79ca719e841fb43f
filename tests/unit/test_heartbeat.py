# SPDX-License-Identifier: Apache-2.0
"""The heartbeat and its pauses, on a clock of the test's own."""

from __future__ import annotations

import pytest

from xdp_router.daemon.heartbeat import GONE_NS, PAUSES_KEPT, Heartbeat

MS = 1_000_000
STALE = 100 * MS
T0 = 5_000 * MS


class Written:
    """What was written; ``fails`` makes the next write raise."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int]] = []
        self.fails = False

    def __call__(self, now_ns: int, resumed_ns: int) -> None:
        if self.fails:
            raise OSError("the map says no")
        self.all.append((now_ns, resumed_ns))


def test_the_first_beat_resumes() -> None:
    """Before it there was nothing: a start is the end of a pause that is no flow's."""
    written = Written()
    heartbeat = Heartbeat(written, STALE)
    heartbeat.beat(T0)
    assert written.all == [(T0, T0)]
    assert heartbeat.pauses(T0 + STALE) == {}


def test_beats_that_are_late_but_not_stale_are_no_pause() -> None:
    """The end of the newest pause stays what it was."""
    written = Written()
    heartbeat = Heartbeat(written, STALE)
    for late_ns in (0, STALE, 2 * STALE):
        heartbeat.beat(T0 + late_ns)
    assert written.all[-1] == (T0 + 2 * STALE, T0)
    assert heartbeat.pauses(T0 + 3 * STALE) == {}


def test_a_pause_is_written_and_remembered() -> None:
    """With its last beat, which is what flows were marked with meanwhile, and its end."""
    written = Written()
    heartbeat = Heartbeat(written, STALE)
    heartbeat.beat(T0)
    end_ns = T0 + STALE + 1
    assert heartbeat.pauses(end_ns) == {T0: end_ns}  # it lasts still
    heartbeat.beat(end_ns)
    heartbeat.beat(end_ns + MS)
    assert written.all[1:] == [(end_ns, end_ns), (end_ns + MS, end_ns)]
    assert heartbeat.pauses(end_ns + 2 * MS) == {T0: end_ns}


def test_a_beat_that_could_not_be_written_was_none() -> None:
    """Nobody has seen it: flows are marked with the one before."""
    written = Written()
    heartbeat = Heartbeat(written, STALE)
    heartbeat.beat(T0)
    written.fails = True
    with pytest.raises(OSError, match="no"):
        heartbeat.beat(T0 + STALE)
    written.fails = False
    heartbeat.beat(T0 + 2 * STALE)
    assert heartbeat.pauses(T0 + 2 * STALE) == {T0: T0 + 2 * STALE}


def test_old_pauses_are_forgotten() -> None:
    """A daemon that never comes to rest does not grow by it."""
    heartbeat = Heartbeat(Written(), STALE)
    for number in range(2 * PAUSES_KEPT):
        heartbeat.beat(T0 + 2 * STALE * number)
    pauses = heartbeat.pauses(T0 + 2 * STALE * (2 * PAUSES_KEPT - 1))
    assert len(pauses) == PAUSES_KEPT
    assert T0 not in pauses


def test_a_predecessors_last_beat_begins_a_pause() -> None:
    """Flows that were used while there was no daemon are marked with it, however short it was."""
    written = Written()
    heartbeat = Heartbeat(written, STALE, former_ns=T0)
    assert heartbeat.pauses(T0 + 2 * STALE) == {T0: T0 + 2 * STALE}
    heartbeat.beat(T0 + MS)
    assert written.all == [(T0 + MS, T0 + MS)]
    assert heartbeat.pauses(T0 + 2 * MS) == {T0: T0 + MS}


def test_the_last_beat_is_stale_at_once() -> None:
    """XDP decides by itself from then on, and a successor need not wait; without one: nothing."""
    written = Written()
    heartbeat = Heartbeat(written, STALE)
    heartbeat.last(T0)
    assert written.all == []
    heartbeat.beat(T0)
    heartbeat.last(T0 + MS)
    assert written.all[1:] == [(T0 + MS - GONE_NS - 1, T0)]
