# SPDX-License-Identifier: Apache-2.0
"""Flows of one source, before any of them is established."""

from __future__ import annotations

import dataclasses

from tests.support.cast import DEFAULTS, T0, first, probe, reply, sequence, service
from tests.support.playbook import MS, US
from xdp_router.core.commands import Command, WriteBinding
from xdp_router.core.companions import REMEMBERED, WAITS, Companions
from xdp_router.core.engine import Engine
from xdp_router.core.events import BackendState, BindingFailed, BindingWritten, XdpDecided
from xdp_router.core.flow import Flow
from xdp_router.core.model import FlowKey, Mode, Reason
from xdp_router.core.selection import build_table
from xdp_router.core.strategy.base import Evidence

SERVICE = dataclasses.replace(service(), affinity_ns=60_000 * MS)


def engine() -> Engine:
    """Two backends that are up, and affinity."""
    made = Engine([SERVICE], DEFAULTS, sequence, build_table)
    for backend in (1, 2):
        made.handle(BackendState(backend, True), T0 - 1)
    return made


def bindings(commands: list[Command]) -> list[tuple[int, int, Mode, Reason]]:
    """Client port, backend, mode and reason of each binding."""
    return [
        (each.first.key.client_port, each.backend, each.mode, each.reason)
        for each in commands
        if isinstance(each, WriteBinding)
    ]


def test_they_wait_for_the_first_and_go_with_it() -> None:
    """One race for all; those that come just after do not wait at all."""
    made = engine()
    assert made.handle(first(1), T0) == [probe(1), probe(2)]
    assert made.handle(first(2), T0) == []
    assert made.handle(first(3), T0) == []
    won = made.handle(reply(2, T0 + 300 * US), T0 + 400 * US)
    assert bindings(won) == [(1, 2, Mode.RACE, Reason.RACE_WON)]
    followed = made.handle(BindingWritten(first(1).key), T0 + 400 * US)
    joined = (Mode.STICKY, Reason.AFFINITY)
    assert bindings(followed) == [(2, 2, *joined), (3, 2, *joined)]
    late = made.handle(first(4), T0 + 900 * MS)
    assert bindings(late) == [(4, 2, *joined)]
    assert made.counters["races_started"] == 1


def test_another_source_has_a_race_of_its_own() -> None:
    """What one source has says nothing of the next one."""
    made = engine()
    made.handle(first(1), T0)
    made.handle(reply(2, T0 + US), T0 + US)
    made.handle(BindingWritten(first(1).key), T0 + US)
    key = FlowKey(0xC6120009, 1, 0xC6126401, 80)
    other = dataclasses.replace(first(1, T0 + 50 * MS), key=key)
    assert not bindings(made.handle(other, T0 + 50 * MS))


def test_a_backend_that_went_is_not_followed() -> None:
    """The next one is raced anew, and is ahead of those behind it."""
    made = engine()
    made.handle(first(1), T0)
    made.handle(reply(2, T0 + US), T0 + US)
    made.handle(BindingWritten(first(1).key), T0 + US)
    made.handle(BackendState(2, False), T0 + 2 * US)
    assert not bindings(made.handle(first(2, T0 + 50 * MS), T0 + 50 * MS))
    assert made.handle(first(3, T0 + 50 * MS), T0 + 50 * MS) == []


def test_a_first_one_that_comes_to_nothing_holds_nobody_up() -> None:
    """Of those that waited one goes ahead; the others wait for that one."""
    made = engine()
    made.handle(first(1), T0)
    made.handle(first(2), T0)
    made.handle(first(3), T0)
    made.handle(reply(2, T0 + US), T0 + US)
    out = made.handle(BindingFailed(first(1).key, "no memory"), T0 + US)
    assert bindings(out) == [(2, 2, Mode.RACE, Reason.RACE_JOINED)]
    out = made.handle(BindingWritten(first(2).key), T0 + US)
    assert bindings(out) == [(3, 2, Mode.STICKY, Reason.AFFINITY)]


def test_what_xdp_decides_is_followed() -> None:
    """Its decision for the first one is the source's."""
    made = engine()
    made.handle(first(1), T0)
    made.handle(first(2), T0)
    xdp = XdpDecided(first(1).key, 0, 1, Mode.HASH, Reason.DEADLINE, T0, T0 + MS)
    assert bindings(made.handle(xdp, T0 + MS)) == [(2, 1, Mode.STICKY, Reason.AFFINITY)]


def test_forged_sources_push_out_each_other() -> None:
    """As many are remembered as have room, the newest ones."""
    companions = Companions()
    for number in range(REMEMBERED + 1):
        flow = _flow(number)
        assert companions.meet(flow, T0) is None
        companions.settled(flow, 1, T0)
    assert companions.meet(_flow(0), T0) is None
    assert companions.meet(_flow(REMEMBERED), T0) == 1
    assert companions.meet(_flow(0), T0) == WAITS


def _flow(number: int) -> Flow:
    key = FlowKey(0xC6120000 + number, 1, 0xC6126401, 80)
    return Flow(dataclasses.replace(first(1), key=key), SERVICE, Evidence())
