# SPDX-License-Identifier: Apache-2.0
"""Consistent hashing: the Maglev lookup table of a service (Eisenbud et al., NSDI 2016).

Each backend has its own permutation of the slots, made from its address, and backends take
turns claiming their next free slot. The table depends on nothing but the set of backends and
their weights: not on order, ids, names or the process. If a backend goes, nearly all slots of
the others stay as they were.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

from .abi import HASH_SLOTS
from .model import NO_BACKEND, Backend

EMPTY_TABLE = (NO_BACKEND,) * HASH_SLOTS
"""Table of a service without a usable backend."""


def build_table(usable: Iterable[Backend]) -> tuple[int, ...]:
    """Backend id for each of HASH_SLOTS slots, in shares proportional to the weights.

    ``usable`` are the backends that may get new flows; none gives NO_BACKEND everywhere.
    """
    backends = sorted(usable, key=_identity)
    if not backends:
        return EMPTY_TABLE
    table = [NO_BACKEND] * HASH_SLOTS
    unclaimed = bytearray(b"\1" * HASH_SLOTS)
    # Iterators of the interpreter's own: a table looks at 7,000 slots, and there may be
    # 10,000 tables to make.
    claims = [
        (backend.id, filter(unclaimed.__getitem__, _permutation(backend))) for backend in backends
    ]
    turns = _turns([backend.weight for backend in backends])
    for index in itertools.islice(turns, HASH_SLOTS):
        backend_id, preferences = claims[index]
        slot = next(preferences)
        unclaimed[slot] = 0
        table[slot] = backend_id
    return tuple(table)


def _turns(weights: Sequence[int]) -> Iterator[int]:
    """Whose turn it is to claim a slot, for ever: shares are proportional to the weights."""
    heaviest = max(weights)
    if min(weights) == heaviest:
        yield from itertools.cycle(range(len(weights)))
    # Each backend claims a slot in the first round, so that the lightest is not left out.
    credit = [heaviest - weight for weight in weights]
    while True:
        for index, weight in enumerate(weights):
            # The heaviest backend claims a slot each round, the others their fraction of one.
            credit[index] += weight
            if credit[index] >= heaviest:
                credit[index] -= heaviest
                yield index


def _identity(backend: Backend) -> tuple[int, int, int]:
    endpoint = backend.endpoint
    return endpoint.addr, endpoint.port, endpoint.proto


def _permutation(backend: Backend) -> Iterator[int]:
    """Slots in this backend's order of preference, each exactly once: HASH_SLOTS is a prime."""
    name = b"".join(number.to_bytes(4, "big") for number in _identity(backend))
    digest = hashlib.blake2b(name, digest_size=16, person=b"xdp-router slot").digest()
    start = int.from_bytes(digest[:8], "big") % HASH_SLOTS
    step = int.from_bytes(digest[8:], "big") % (HASH_SLOTS - 1) + 1
    steps = range(start, start + step * HASH_SLOTS, step)
    return map(operator.mod, steps, itertools.repeat(HASH_SLOTS))
