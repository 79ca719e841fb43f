# SPDX-License-Identifier: Apache-2.0
"""The degrade chain; conversations with the engine walk it, see test_engine.py."""

from __future__ import annotations

import dataclasses

from tests.support.cast import BACKENDS, first, key, service
from xdp_router.core.degrade_chain import DegradeChain
from xdp_router.core.flow import Flow
from xdp_router.core.flow_hash import choice_hash
from xdp_router.core.hash_tables import HashTables
from xdp_router.core.model import NO_BACKEND, Mode, Reason, Service
from xdp_router.core.selection import build_table
from xdp_router.core.strategy.base import Evidence


def chain(made: Service, *up: int) -> DegradeChain:
    """The chain of one service."""
    usable = set(up)
    return DegradeChain(usable, HashTables([made], usable, build_table))


def flow(made: Service, port: int = 1) -> Flow:
    """A flow that nothing is known of."""
    return Flow(first(port), made, Evidence())


def test_fallback_then_hash_then_nobody() -> None:
    """Each step is taken when the one before is not to be had."""
    made = service(2, fallback=1)
    assert chain(made, 1, 2).choice(flow(made), Reason.DEADLINE) == (
        1, Mode.FALLBACK, Reason.DEADLINE
    )  # fmt: skip
    assert chain(made, 2).choice(flow(made), Reason.DEADLINE) == (2, Mode.HASH, Reason.DEADLINE)
    nobody = (NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE)
    assert chain(made).choice(flow(made), Reason.DEADLINE) == nobody


def test_flows_of_a_source_are_hashed_alike_where_that_is_wanted() -> None:
    """Its ports do not matter then; else they do."""
    alone, together = service(3), dataclasses.replace(service(3), affinity_ns=1)
    up = [each.id for each in BACKENDS]
    for made, how_many in ((alone, 3), (together, 1)):
        found = {chain(made, *up).choice(flow(made, n), Reason.DEADLINE)[0] for n in range(1, 40)}
        assert len(found) == how_many
    assert choice_hash(together, key(1)) == choice_hash(together, key(2))
    assert choice_hash(alone, key(1)) != choice_hash(alone, key(2))


def test_another_one_is_neither_tried_nor_down() -> None:
    """Who answered first, then by hash; None when all were tried."""
    made = service(2)
    tried = flow(made)
    tried.evidence.answered += [2, 1]
    assert chain(made, 1, 2).another(tried) == (2, Mode.RACE, Reason.TUPLE_TAKEN)
    tried.tried = (2,)
    assert chain(made, 1, 2).another(tried) == (1, Mode.RACE, Reason.TUPLE_TAKEN)
    tried.tried = (2, 1)
    assert chain(made, 1, 2).another(tried) is None
