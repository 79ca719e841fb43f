# SPDX-License-Identifier: Apache-2.0
"""How far away a server is now, from probes of which some are still unanswered.

Three things make up the estimate:

* A moving average (EWMA) over round trips, each taken as the least of the newest ``LEAST_OF``:
  one probe that met a busy CPU says nothing of the server. It falls faster than it rises, as a
  server that answers quickly again is to be used again.
* The age of the oldest unanswered probe, a lower bound of its round trip that counts at once:
  a server that has stalled would else look well until it speaks again.
* Order: answers count in the order in which their probes were *sent*. A probe that was sent
  before the newest answered one says nothing of the present any more.
"""

from __future__ import annotations

LEAST_OF = 3
"""Samples that a windowed minimum is taken of."""
RISE_SHIFT = 2
"""The average takes a quarter of a rise."""
FALL_SHIFT = 2
"""And all but a quarter of a fall."""
KEPT = 256
"""Unanswered probes that are told apart; beyond, the oldest and the newest of them are."""


class RttEstimator:
    """One server. Instants never go back from call to call; 0 means: not known."""

    __slots__ = ("_answered_ns", "_average_ns", "_newest", "_unanswered")

    def __init__(self) -> None:
        self._average_ns = 0
        self._answered_ns = 0  # when the newest answered probe was sent
        self._newest: tuple[int, ...] = ()  # round trips
        # When probes after that one were sent; a tuple while there is none: there may be 160,000
        # of these.
        self._unanswered: list[int] | tuple[()] = ()

    @property
    def average_ns(self) -> int:
        """The moving average; 0 before the first answer."""
        return self._average_ns

    def sent(self, sent_ns: int) -> None:
        """A probe has left."""
        unanswered = self._unanswered
        if isinstance(unanswered, tuple):
            self._unanswered = [sent_ns]
            return
        if len(unanswered) >= KEPT:
            del unanswered[1]
        unanswered.append(sent_ns)

    def answered(self, sent_ns: int, rtt_ns: int) -> bool:
        """The probe of that instant was answered. False: a later one was before."""
        if sent_ns < self._answered_ns:
            return False
        self._answered_ns = sent_ns
        self._unanswered = [each for each in self._unanswered if each > sent_ns] or ()
        self._newest = (*self._newest, rtt_ns)[-LEAST_OF:]
        self._add(min(self._newest))
        return True

    def lost(self, took_ns: int) -> None:
        """A probe was never answered, while later ones were: it counts as if it took so long.

        A client whose SYN is lost waits longer than that.
        """
        self._add(took_ns)

    def _add(self, sample_ns: int) -> None:
        before = self._average_ns
        if not before:
            self._average_ns = sample_ns
        elif sample_ns > before:
            self._average_ns = before + (sample_ns - before >> RISE_SHIFT)
        else:
            self._average_ns = sample_ns + (before - sample_ns >> FALL_SHIFT)

    def silent_ns(self, now_ns: int) -> int:
        """How long the oldest probe has waited that was sent after the newest answered one."""
        return max(0, now_ns - self._unanswered[0]) if self._unanswered else 0

    def rtt_ns(self, now_ns: int) -> int:
        """What a packet that is sent now has to expect; 0 before the first answer."""
        return max(self._average_ns, self.silent_ns(now_ns)) if self._average_ns else 0

    def forget(self) -> None:
        """The server, or the way there, was gone: nothing that was measured holds."""
        self._average_ns = self._answered_ns = 0
        self._newest = self._unanswered = ()

    def abandon(self) -> None:
        """Nobody asks any more: what is unanswered is not waited for."""
        self._unanswered = ()
