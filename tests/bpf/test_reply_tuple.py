# SPDX-License-Identifier: Apache-2.0
"""The daemon's take-over of reply tuples, beside the program's: the same rule, the same outcome."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from tests.bpf.corpus import udp_flows
from tests.bpf.corpus.case import Case
from tests.bpf.corpus.first import given_up
from tests.bpf.corpus.flows import (
    established,
    forward_entry,
    forward_value,
    put_flow,
    put_pending,
    read_pending,
    reply,
    reply_entry,
    reply_key,
)
from tests.bpf.corpus.isn import CLOSING, flows_idle, flows_idle_unattended
from tests.bpf.corpus.takeover import ALL, KEEPS, TAKES, theirs, theirs_pending
from tests.bpf.corpus.world import B1, MS, SECOND, SHOP, SHOP_B1, Given, World, flow_key
from xdp_router.core import abi
from xdp_router.daemon.reply_tuple import free_reply_tuple

pytest_plugins = ("tests.support.worlds",)


def entries(world: World) -> tuple[int, int]:
    """How many are in ``pending_flows`` and ``flow_table``."""
    tables = world.program.pending, world.program.flows
    pending, flows = (len(list(table.each_key())) for table in tables)
    return pending, flows


def free(world: World, *given: Given) -> bool:
    """Whether the tuple of B1 was freed for a flow of the first service."""
    world.reset()
    for step in given:
        step(world)
    return free_reply_tuple(world.maps, reply_key(B1), flow_key(), time.monotonic_ns())


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ((theirs(CLOSING, CLOSING),), (0, 0)),
        ((theirs(CLOSING, CLOSING), theirs_pending(*ALL)), (0, 0)),
        ((theirs(back=CLOSING, alone=True),), (0, 0)),
        ((theirs(), flows_idle), (0, 0)),
        ((theirs_pending(*ALL, flags=abi.PENDING_CLOSED),), (0, 0)),
        ((theirs_pending(*ALL), given_up), (0, 0)),
        ((theirs_pending("REPLY"),), (0, 0)),
        ((theirs_pending("REPLY", "SEEN"),), (1, 0)),
    ],
)
def test_a_flow_that_is_over_gives_way(
    given: tuple[Given, ...], left: tuple[int, int], world: World
) -> None:
    """Nothing of it is left, but a first packet that is held since."""
    assert free(world, *given)
    assert entries(world) == left


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ((theirs(),), (0, 2)),
        ((theirs(), theirs_pending(*ALL)), (3, 2)),
        ((theirs(), flows_idle_unattended), (0, 2)),
        (
            (
                theirs(),
                flows_idle,
                lambda world: world.change_control(resumed_ns=world.now_ns - MS),
            ),
            (0, 2),
        ),
        ((theirs_pending(*ALL),), (3, 0)),
        ((theirs_pending(*ALL, flags=abi.PENDING_PROVEN), given_up), (3, 0)),
        ((), (0, 0)),
    ],
)
def test_a_flow_that_lives_keeps_its_tuple(
    given: tuple[Given, ...], left: tuple[int, int], world: World
) -> None:
    """Nothing of it is touched."""
    assert not free(world, *given)
    assert entries(world) == left


def test_the_own_entries_are_nobody_elses(world: World) -> None:
    """What the flow itself has left does not count as another one's."""

    assert not free(world, established(CLOSING, CLOSING), reply())
    assert entries(world) == (1, 2)
    assert read_pending(world, reply_key(B1)) is not None


@pytest.mark.parametrize("case", [*TAKES, *KEEPS], ids=lambda case: case.name)
def test_the_program_frees_what_the_daemon_frees(case: Case, world: World) -> None:
    """In each state of the corpus both come to the same."""
    case.prepare(world)
    freed = free_reply_tuple(world.maps, reply_key(B1), flow_key(), time.monotonic_ns())
    by_xdp = case.counters.get("reply_tuple_freed", 0)
    if "better" not in case.name:  # there XDP had no need to
        assert freed == bool(by_xdp)


@pytest.mark.parametrize(("idle_ns", "freed"), [(59 * SECOND, False), (61 * SECOND, True)])
@pytest.mark.parametrize("pending", [False, True])
def test_flows_of_udp_have_their_own_time(
    pending: bool, idle_ns: int, freed: bool, world: World
) -> None:
    """One of another service that was silent for ``udp_idle`` gives way, established or not."""
    world.reset()
    world.change_control(udp_idle_ns=60 * SECOND)
    there = abi.pack_flow_key(udp_flows.key(service=SHOP))
    back = udp_flows.back_key(kind=abi.Kind.NONE)
    then: dict[str, Any] = {"last_seen_ns": world.now_ns - idle_ns}
    if pending:
        udp_flows.reply(new_saddr=SHOP.number, idle_ns=idle_ns)(world)
        value = forward_value(world, SHOP_B1, **then)
        put_pending(world, abi.pack_flow_key(udp_flows.key(service=SHOP), abi.Kind.FORWARD), value)
        put_pending_backend(world)
    else:
        put_flow(world, there, forward_entry(world, service=SHOP, **then))
        put_flow(world, back, reply_entry(world, service=SHOP, **then))
    wants = udp_flows.key()
    now_ns = time.monotonic_ns()
    assert free_reply_tuple(world.maps, udp_flows.back_key(), wants, now_ns) is freed
    assert entries(world) == ((0, 0) if freed else ((2, 0) if pending else (0, 2)))


def put_pending_backend(world: World) -> None:
    """REPLY is of the same backend id as FORWARD."""
    key = udp_flows.back_key()
    value = read_pending(world, key)
    assert value is not None
    world.maps.pending_flows.delete(key)
    put_pending(world, key, dataclasses.replace(value, backend=SHOP_B1.id))
