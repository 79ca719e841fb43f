# SPDX-License-Identifier: Apache-2.0
"""Consistent hashing: a service's lookup table, whose shares follow the weights.

Each slot has an order of owners, made from the configured backends and their weights alone:

1. Its owner in the Maglev table of all of them (Eisenbud et al., NSDI 2016): each has its own
   permutation of the slots, made from its address, and they take turns claiming their next
   free one.
2. Its heir: the slots of one backend are dealt to the others in the turns that would have come
   next, so that shares are as exact without that backend as with it.
3. The owners of further slots, by a step of the slot's own.

Whoever comes first and is up gets the slot. So a backend that goes moves its own slots and no
other, whoever else is down, and gets just those back: what is up now decides, never what was
up before. The table does not depend on the order, ids or names of backends or on the process.
A table of those that are up, made anew, cannot do that: with as few slots as these, exact
shares cost it up to four times as many moves (``make bench``, ``disruption``).
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import itertools
import operator
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from .abi import HASH_SLOTS
from .address import address_bytes
from .model import NO_BACKEND, Backend

EMPTY_TABLE = (NO_BACKEND,) * HASH_SLOTS
"""Table of a service without a usable backend."""

LOOKS = 8
"""Slots that are looked at for an owner: if most backends are down, time is better spent on a
table of the others."""

_STEPS = tuple(1 + (slot * 0x9E37_79B1 >> 16) % (HASH_SLOTS - 1) for slot in range(HASH_SLOTS))
"""From a slot to the next one that is looked at in its stead."""

_Claim = tuple[int, Iterator[int]]
"""A backend's id, and the slots that it would take next."""


def build_table(backends: Iterable[Backend], up: Container[int] | None = None) -> tuple[int, ...]:
    """Backend id for each of HASH_SLOTS slots, in shares proportional to the weights.

    ``backends`` are all that the service is configured with; ``up`` has the ids of those that
    may get new flows (None: all of them). None that is up gives NO_BACKEND everywhere.
    """
    declared = sorted(backends, key=_identity)
    usable = declared if up is None else [each for each in declared if each.id in up]
    if len(usable) < 2:
        return (usable[0].id,) * HASH_SLOTS if usable else EMPTY_TABLE
    table = _maglev(declared)
    if len(usable) < len(declared):
        table = _inherited(table, declared, usable)
    return tuple(table)


def table_work(backends: Sequence[Backend], up: Container[int]) -> int:
    """How much work ``build_table`` has, about: a slot that is claimed is one.

    A backend's permutation is as much as eight, a slot that is passed on as six.
    """
    weights = absent = usable = 0
    for each in backends:
        weights += each.weight
        if each.id in up:
            usable += 1
        else:
            absent += each.weight
    if usable < 2:  # that one, or nobody, is in all of them
        return len(backends)
    passed_on = HASH_SLOTS * absent // weights
    return HASH_SLOTS + 8 * len(backends) + 6 * passed_on


def _maglev(backends: Sequence[Backend]) -> list[int]:
    table = [NO_BACKEND] * HASH_SLOTS
    unclaimed = bytearray(b"\1" * HASH_SLOTS)
    # Iterators of the interpreter's own: a table looks at 7,000 slots, and there may be
    # 10,000 tables to make.
    claims = [
        (backend.id, filter(unclaimed.__getitem__, _permutation(backend))) for backend in backends
    ]
    turns = _turns([backend.weight for backend in backends], claims)
    for backend_id, preferences in itertools.islice(turns, HASH_SLOTS):
        slot = next(preferences)
        unclaimed[slot] = 0
        table[slot] = backend_id
    return table


def _turns(weights: Sequence[int], members: Sequence[_Claim]) -> Iterator[_Claim]:
    """Whose turn it is to claim a slot, for ever: shares are proportional to the weights."""
    heaviest = max(weights)
    if min(weights) == heaviest:
        return itertools.cycle(members)
    return _weighted_turns(weights, members, heaviest)


def _weighted_turns(
    weights: Sequence[int], members: Sequence[_Claim], heaviest: int
) -> Iterator[_Claim]:
    # The heaviest backend claims a slot each round, the others their fraction of one; each of
    # them in the first round, so that the lightest is not left out. By a heap of (round, index,
    # turns so far): with one heavy backend among many light ones most rounds are nobody else's.
    heap = [(0, index, 0) for index in range(len(weights))]
    while True:
        _, index, turn = heap[0]
        yield members[index]
        turn += 1
        heapq.heapreplace(heap, (-(-turn * heaviest // weights[index]), index, turn))


def _inherited(
    table: Sequence[int], declared: Sequence[Backend], usable: Sequence[Backend]
) -> list[int]:
    """``table`` with the slots of those that are not ``usable`` passed on."""
    up = {each.id for each in usable}
    left: dict[int, list[int]] = {}
    for slot, owner in enumerate(table):
        if owner not in up:
            left.setdefault(owner, []).append(slot)
    out = list(table)
    nobody: list[int] = []
    for slot, heir in _heirs(declared, left):
        owner, at = heir, slot
        for _ in range(LOOKS):
            if owner in up:
                out[slot] = owner
                break
            at = (at + _STEPS[slot]) % HASH_SLOTS
            owner = table[at]
        else:
            nobody.append(slot)
    if nobody:
        others = _maglev(usable)
        for slot in nobody:
            out[slot] = others[slot]
    return out


def _heirs(
    declared: Sequence[Backend], left: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Each slot that is ``left`` by a backend, and whose it is if that one alone has gone.

    The backends are stretches of a line, as long as their weights, without the one that has
    gone; the heirs are those at points of equal distance. The first point depends on who has
    gone: the same few would get each one's odd slots.
    """
    ends = list(itertools.accumulate(each.weight for each in declared))
    for gone, end in zip(declared, ends, strict=True):
        slots = left.get(gone.id)
        if not slots:
            continue
        length = ends[-1] - gone.weight
        digest = hashlib.blake2b(_name(gone), digest_size=4, person=b"xdp-router heir").digest()
        point = int.from_bytes(digest, "big") * length >> 32
        for slot in slots:
            at = point // len(slots)
            if at >= end - gone.weight:
                at += gone.weight
            yield slot, declared[bisect.bisect_right(ends, at)].id
            point += length


def _identity(backend: Backend) -> tuple[int, int, int]:
    endpoint = backend.endpoint
    return endpoint.addr, endpoint.port, endpoint.proto


def _name(backend: Backend) -> bytes:
    addr, port, proto = _identity(backend)
    return address_bytes(addr) + port.to_bytes(4, "big") + proto.to_bytes(4, "big")


def _permutation(backend: Backend) -> Iterator[int]:
    """Slots in this backend's order of preference, each exactly once: HASH_SLOTS is a prime."""
    digest = hashlib.blake2b(_name(backend), digest_size=16, person=b"xdp-router slot").digest()
    start = int.from_bytes(digest[:8], "big") % HASH_SLOTS
    step = int.from_bytes(digest[8:], "big") % (HASH_SLOTS - 1) + 1
    steps = range(start, start + step * HASH_SLOTS, step)
    return map(operator.mod, steps, itertools.repeat(HASH_SLOTS))
