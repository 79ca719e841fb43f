# SPDX-License-Identifier: Apache-2.0
"""Shares of many first packets that XDP decides by itself, against what they have to be.

The bounds are six standard deviations wide: one run in five hundred million is beyond them.
"""

from __future__ import annotations

import math
from collections import Counter

from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.inline import among, load
from tests.bpf.corpus.picks import snapshot
from tests.bpf.corpus.world import B1, B2, B3, MS, SECOND, SERVERS, Given, World, to_service
from tests.support.program import REDIRECT
from xdp_router.core import abi

pytest_plugins = ("tests.support.worlds",)

MANY = 1_024


def decided(world: World, *given: Given) -> Counter[int]:
    """How many of so many SYNs, each by a port of its own, went to which backend."""
    world.reset()
    for step in given:
        step(world)
    frame = bytearray(world.native(to_service(OPEN)))
    port_at = 34 if world.family == 4 else 54
    number_of = {server.mac: server.id for server in SERVERS[:3]}
    found: Counter[int] = Counter()
    for port in range(10_000, 10_000 + MANY):
        frame[port_at : port_at + 2] = port.to_bytes(2, "big")
        verdict, out, _ = world.program.run_only(bytes(frame), world.wires.client)
        assert verdict == REDIRECT
        found[number_of[out[:6]]] += 1
    return found


def is_share(count: int, share: float) -> bool:
    """Whether so many of MANY may be a share, drawn at random."""
    return abs(count - MANY * share) <= 6 * math.sqrt(MANY * share * (1 - share))


def test_a_snapshot_is_picked_from_by_slots(world: World) -> None:
    """Each backend gets what part of the table it has: nobody is always the best."""
    found = decided(world, *snapshot(B1, B2, B1, B3))
    assert is_share(found[B1.id], 1 / 2), found
    assert is_share(found[B2.id], 1 / 4), found
    assert is_share(found[B3.id], 1 / 4), found


def test_slots_at_the_end_of_a_snapshot_count_as_much(world: World) -> None:
    """Also the last ones, and none behind them."""
    slots = [B1] * (abi.PICK_SLOTS * 3 // 4) + [B2] * (abi.PICK_SLOTS // 4)
    found = decided(world, *snapshot(*slots))
    assert is_share(found[B2.id], 1 / 4), found


def test_a_backend_that_is_down_leaves_its_share_to_the_others(world: World) -> None:
    """Before a new table says so: in the order that the slots are gone through from there."""
    found = decided(
        world, *snapshot(B1, B2, B1, B3), lambda world: world.change_server(B2, flags=0)
    )
    assert found[B2.id] == 0
    assert found[B1.id] + found[B3.id] == MANY


def silent(*open_: int) -> tuple[Given, ...]:
    """All three have kept a client waiting for as long as counts; so many flows each has."""
    loads = [
        load(each, 1 * MS, waiting_ns=2 * SECOND, open_=count)
        for each, count in zip((B1, B2, B3), open_, strict=True)
    ]
    return (*among(B1, B2, B3), *loads)


def test_two_of_three_are_drawn_and_the_worst_is_never_chosen(world: World) -> None:
    """The best wins whenever it is drawn, which is in two of three pairs; the next one else."""
    found = decided(world, *silent(0, 10, 1000))
    assert found[B3.id] == 0
    assert is_share(found[B1.id], 2 / 3), found
    assert is_share(found[B2.id], 1 / 3), found


def test_equals_share_alike(world: World) -> None:
    """Nobody is preferred by its number: as many flows, as long a wait."""
    found = decided(world, *silent(5, 5, 5))
    for each in (B1, B2, B3):
        assert is_share(found[each.id], 1 / 3), found


def test_one_that_comes_back_has_its_share_by_and_by(world: World) -> None:
    """Inline: it takes part so often, though it answers sooner."""
    found = decided(
        world, *among(B1, B2), load(B1, MS), load(B2, 100 * MS),
        lambda world: world.change_server(B1, share=64),
    )  # fmt: skip
    assert is_share(found[B1.id], 64 / 256), found
    whole = decided(world, *among(B1, B2), load(B1, MS), load(B2, 100 * MS))
    assert whole[B1.id] == MANY
