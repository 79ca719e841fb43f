# SPDX-License-Identifier: Apache-2.0
"""Which backends may be chosen: those that are reached, without those that drain or are ill."""

from __future__ import annotations

from collections.abc import Iterable


class Availability:
    """``usable`` is one set, for ever, which others go on looking at and never change."""

    def __init__(self) -> None:
        self.usable: set[int] = set()
        """Ids of the backends that may be chosen."""
        self._reached: set[int] = set()
        self._draining: set[int] = set()
        self._left_out: set[int] = set()

    @property
    def reached(self) -> frozenset[int]:
        """Ids of the backends that there is a path to, those that drain or are ill among them."""
        return frozenset(self._reached)

    def is_reached(self, backend: int) -> bool:
        """Whether there is a path to a backend; it may drain, or be ill."""
        return backend in self._reached

    @property
    def draining(self) -> frozenset[int]:
        """Ids of the backends that get no new flows because an operator wants it so."""
        return frozenset(self._draining)

    def is_draining(self, backend: int) -> bool:
        """Whether a backend gets no new flows because an operator wants it so."""
        return backend in self._draining

    def is_left_out(self, backend: int) -> bool:
        """Whether a backend gets no new flows because of its health."""
        return backend in self._left_out

    def is_up(self, backend: int) -> bool:
        """Whether XDP may go on with it: it is reached, and not left out; it may drain."""
        return backend in self._reached and backend not in self._left_out

    def begin(self, reached: Iterable[int], draining: Iterable[int]) -> None:
        """Know these, beside those that are known."""
        self._reached.update(reached)
        self._draining.update(draining)
        self.usable.update(self._reached)
        self.usable.difference_update(self._draining, self._left_out)

    def reach(self, backend: int, up: bool) -> bool:
        """There is a path to a backend, or there is none. False: that is no news."""
        return self._put(self._reached, backend, up)

    def drain(self, backend: int, draining: bool) -> bool:
        """A backend is to get no new flows, or some again. False: that is no news."""
        return self._put(self._draining, backend, draining)

    def leave_out(self, backend: int, out: bool) -> bool:
        """A backend's health lets it have no new flows, or some again. False: that is no news."""
        return self._put(self._left_out, backend, out)

    def forget(self, backend: int) -> None:
        """There is no such backend any more."""
        self.drain(backend, False)
        self.reach(backend, False)
        self.leave_out(backend, False)

    def _put(self, members: set[int], backend: int, there: bool) -> bool:
        if (backend in members) is there:
            return False
        (members.add if there else members.remove)(backend)
        usable = self.is_up(backend) and backend not in self._draining
        (self.usable.add if usable else self.usable.discard)(backend)
        return True
