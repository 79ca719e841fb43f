# SPDX-License-Identifier: Apache-2.0
"""What all workers know of the backends: memory that they share, of 64-bit words.

Each word has one writer: the supervisor what its probes found, a worker what it does itself. Words
are aligned and written whole, so a reader sees the former or the new value and nothing between.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final

from xdp_router.core.errors import XdpRouterError

ROWS: Final = 4_096
"""Backends, told apart by their addresses, that a gateway can have in its life."""
SLOTS: Final = 128
"""Workers at a time, those included that only finish what they have."""

RTT, RTT_AT, STATE, TOLD_AT, QUEUE, _, USAGE, _, CACHE, _, TOLD_TTFT, _ = range(12)
"""What the supervisor says: a round trip and when it was measured, how the backend is, and what
others say of it: requests there that are not ours, how full its cache is, its hit rate (all three
in thousandths) and a first-token time. The word behind each of these is when it was told;
``TOLD_AT``: when anything was."""
_COMMON: Final = 16
IN_FLIGHT, TTFT, TTFT_AT, HELD_UNTIL, SILENT_SINCE, LATE, LATE_AT = range(7)
"""What a worker says: its requests there, its recent first-token time and when it was seen, until
when the backend has asked to be left alone, since when the oldest first token is waited for, and
how late one was (or how long it was waited for in vain) and when. 0 for what there is not."""
_OWN: Final = 8
_PROBED_WORDS: Final[Callable[[mmap.mmap, int], tuple[int, int, int, int]]] = struct.Struct(
    "4q"
).unpack_from
_OWN_WORDS: Final[Callable[[mmap.mmap, int], tuple[int, ...]]] = struct.Struct("7q").unpack_from
UNKNOWN, WELL, ILL = range(3)
_SLOT_WORDS: Final = ROWS * _OWN
_PIDS: Final = 8
_HEAD: Final = _PIDS + SLOTS
_WORDS: Final = _HEAD + ROWS * _COMMON + SLOTS * _SLOT_WORDS


LAYOUT: Final = (2, ROWS, SLOTS, _HEAD, _COMMON, _OWN)
"""Who has the same can share the memory; the first number changes with the words' meaning."""


class NoSlot(XdpRouterError):
    """There are as many workers as there can be."""


class Board:
    """One process's view. ``slot``: the worker's own; -1: the supervisor's, which has none."""

    def __init__(self, fd: int, slot: int = -1) -> None:
        """Raise OSError if the memory cannot be mapped."""
        self._map = mmap.mmap(fd, _WORDS * 8)
        self._words = memoryview(self._map).cast("q")
        self.slot = slot

    @staticmethod
    def create() -> int:
        """New memory, all zero; most of it is never touched. The descriptor is the caller's."""
        fd = os.memfd_create("xdp-router gateway", os.MFD_CLOEXEC)
        os.truncate(fd, _WORDS * 8)
        return fd

    @property
    def slots_used(self) -> int:
        """Workers have slots below this one."""
        return self._words[0]

    @slots_used.setter
    def slots_used(self, value: int) -> None:
        self._words[0] = value

    def common(self, row: int, word: int) -> int:
        """What the supervisor says of a backend."""
        return self._words[_HEAD + row * _COMMON + word]

    def say(self, row: int, word: int, value: int) -> None:
        """The supervisor's word of a backend."""
        self._words[_HEAD + row * _COMMON + word] = value

    def told(self, row: int, word: int, newer_than_ns: int) -> int | None:
        """What others say of a backend (from ``QUEUE`` on), if that is not too long ago."""
        at = _HEAD + row * _COMMON + word
        return self._words[at] if self._words[at + 1] > newer_than_ns else None

    def tell(self, row: int, word: int, value: int, now_ns: int) -> None:
        """The supervisor's word of what others say."""
        at = _HEAD + row * _COMMON
        self._words[at + word] = value
        self._words[at + word + 1] = self._words[at + TOLD_AT] = now_ns

    def own(self, row: int, word: int) -> int:
        """What this worker says of a backend."""
        return self._words[self._at(self.slot, row) + word]

    def set_own(self, row: int, word: int, value: int) -> None:
        """This worker's word of a backend."""
        self._words[self._at(self.slot, row) + word] = value

    def add_own(self, row: int, word: int, change: int) -> None:
        """The same, as a difference."""
        self._words[self._at(self.slot, row) + word] += change

    def in_flight(self, row: int) -> int:
        """Requests of all workers that the backend has not answered to the end."""
        words, at = self._words, _HEAD + ROWS * _COMMON + row * _OWN
        return sum(words[at + slot * _SLOT_WORDS] for slot in range(words[0]))

    def ttft_ns(self, row: int, newer_than_ns: int) -> int | None:
        """First-token time that a worker saw last, if that is not too long ago."""
        words, at = self._words, _HEAD + ROWS * _COMMON + row * _OWN
        newest, value = newer_than_ns, None
        for slot in range(words[0]):
            when = words[at + slot * _SLOT_WORDS + TTFT_AT]
            if when > newest:
                newest, value = when, words[at + slot * _SLOT_WORDS + TTFT]
        return value

    def held_until_ns(self, row: int) -> int:
        """Until when some worker was asked to leave the backend alone; 0: nobody was."""
        words, at = self._words, _HEAD + ROWS * _COMMON + row * _OWN + HELD_UNTIL
        return max((words[at + slot * _SLOT_WORDS] for slot in range(words[0])), default=0)

    def look(self, row: int, newer_than_ns: int) -> tuple[int, int | None, int, int, int, int]:
        """What all workers say of a backend, in one go: ``in_flight``, ``ttft_ns`` if it is newer
        than that, ``held_until_ns``; the newest ``LATE`` and when it was, and the oldest
        ``SILENT_SINCE``."""
        at = (_HEAD + ROWS * _COMMON + row * _OWN) * 8
        in_flight, ttft_ns, newest_ns, held_ns = 0, None, newer_than_ns, 0
        late_ns = late_at_ns = silent_ns = 0
        for _ in range(self._words[0]):
            there, ttft, ttft_at_ns, until_ns, since_ns, late, at_ns = _OWN_WORDS(self._map, at)
            in_flight += there
            if ttft_at_ns > newest_ns:
                newest_ns, ttft_ns = ttft_at_ns, ttft
            if until_ns > held_ns:
                held_ns = until_ns
            if at_ns > late_at_ns:
                late_at_ns, late_ns = at_ns, late
            if since_ns and (not silent_ns or since_ns < silent_ns):
                silent_ns = since_ns
            at += _SLOT_WORDS * 8
        return in_flight, ttft_ns, held_ns, late_ns, late_at_ns, silent_ns

    def probed(self, row: int) -> tuple[int, int, int, int]:
        """What the supervisor says of a backend, in one go: ``RTT``, ``RTT_AT``, ``STATE``,
        ``TOLD_AT``."""
        return _PROBED_WORDS(self._map, (_HEAD + row * _COMMON) * 8)

    def clear_slot(self, slot: int) -> None:
        """A worker has ended, however it did: what it had is no more."""
        begin = self._at(slot, 0)
        for at in range(begin, begin + _SLOT_WORDS):
            if self._words[at]:  # an untouched page stays one
                self._words[at] = 0

    def claim(self, fd: int, pid: int) -> int:
        """A slot for a worker, empty; those of workers that are gone are free. Raises NoSlot.

        ``fd``: of the memory, by which two supervisors, of whom one hands over, do not meet.
        """
        with _alone(fd):
            for slot in range(SLOTS):
                owner = self._words[_PIDS + slot]
                if owner == 0 or not _lives(owner):
                    self.clear_slot(slot)
                    self._words[_PIDS + slot] = pid
                    self.slots_used = max(self.slots_used, slot + 1)
                    return slot
        raise NoSlot(
            f"{SLOTS} workers are there, those included that finish their streams: wait for them, "
            "or lower drain_timeout"
        )

    def release(self, fd: int, slot: int) -> None:
        """The worker of a slot has ended."""
        with _alone(fd):
            self.clear_slot(slot)
            self._words[_PIDS + slot] = 0
            used = self.slots_used
            while used and not self._words[_PIDS + used - 1]:
                used -= 1
            self.slots_used = used

    def clear_row(self, row: int) -> None:
        """Another backend has it from now on."""
        for word in range(_COMMON):
            self.say(row, word, 0)
        for slot in range(self.slots_used):
            for word in range(_OWN):
                self._words[self._at(slot, row) + word] = 0

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()

    @staticmethod
    def _at(slot: int, row: int) -> int:
        return _HEAD + ROWS * _COMMON + slot * _SLOT_WORDS + row * _OWN


@contextlib.contextmanager
def _alone(fd: int) -> Iterator[None]:
    fcntl.lockf(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
