# SPDX-License-Identifier: Apache-2.0
"""The control arm: who is in it, and how its flows are decided, in conversation with the engine."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.cast import (
    BACKENDS,
    DEFAULTS,
    T0,
    backend_by_hash,
    first,
    key,
    sequence,
    service,
)
from tests.support.playbook import MS
from xdp_router.core.commands import LogDecision, SendProbe, WriteBinding
from xdp_router.core.engine import Engine
from xdp_router.core.events import BackendState, BindingWritten
from xdp_router.core.flow_hash import choice_hash
from xdp_router.core.model import NO_BACKEND, FlowKey, Mode, Reason, Service
from xdp_router.core.selection import build_table
from xdp_router.core.strategy.control_arm import Arm, arm_of

PORTS = range(1, 4001)


def with_arm(share: int = 50, by: Mode = Mode.ROUND_ROBIN, count: int = 2) -> Service:
    return dataclasses.replace(service(count), control_arm=share, control_arm_by=by)


def engine(web: Service, *up: int) -> Engine:
    made = Engine([web], DEFAULTS, sequence, build_table)
    for backend in up:
        made.handle(BackendState(backend, True), T0 - 1)
    return made


def in_arm(web: Service, arm: Arm) -> list[int]:
    return [port for port in PORTS if arm_of(web, key(port)) is arm]


def bound(made: Engine, port: int) -> WriteBinding:
    (command,) = made.handle(first(port), T0)
    assert isinstance(command, WriteBinding)
    return command


@pytest.mark.parametrize("share", [1, 10, 50])
def test_the_share_is_the_configured_one(share: int) -> None:
    """Of many clients' flows, within four standard deviations."""
    web = with_arm(share)
    keys = [FlowKey(0xC6120000 + each * 7, 1024 + each, 0xC6126401, 80) for each in range(20_000)]
    met = sum(arm_of(web, each) is Arm.CONTROL for each in keys)
    chance = share / 100
    assert abs(met - 20_000 * chance) < 4 * (20_000 * chance * (1 - chance)) ** 0.5


def test_without_a_share_nobody_is_in_it() -> None:
    """Nor in any mode, which says nothing of the arm."""
    assert not in_arm(service(), Arm.CONTROL)
    assert in_arm(dataclasses.replace(with_arm(), mode=Mode.SNAPSHOT), Arm.CONTROL) == in_arm(
        with_arm(), Arm.CONTROL
    )


def test_the_arm_says_nothing_of_the_hash() -> None:
    """Both arms' flows would be spread alike over the slots of a consistent hash."""
    web = with_arm(50)
    slots = build_table(BACKENDS[:2])
    for arm in Arm:
        ports = in_arm(web, arm)
        to_first = sum(slots[choice_hash(web, key(port)) % len(slots)] == 1 for port in ports)
        assert 0.45 < to_first / len(ports) < 0.55


def test_flows_of_one_source_are_in_one_arm_where_they_go_together() -> None:
    """With affinity it is the source that is assigned."""
    web = dataclasses.replace(with_arm(50), affinity_ns=MS)
    assert len({arm_of(web, key(port)) for port in PORTS}) == 1


def test_turns_decide_without_a_probe() -> None:
    """A flow of the control arm is bound at once, to each backend in turn."""
    web = with_arm()
    made = engine(web, 1, 2)
    found = [bound(made, port) for port in in_arm(web, Arm.CONTROL)[:6]]
    assert [each.backend for each in found] == [1, 2, 1, 2, 1, 2]
    assert {(each.mode, each.reason) for each in found} == {(Mode.ROUND_ROBIN, Reason.CONTROL_ARM)}
    assert made.counters["probes_requested"] == 0


def test_a_hash_decides_as_it_would_in_a_flood() -> None:
    """``control_arm_by = "hash"``: the slot that XDP would take."""
    web = with_arm(by=Mode.HASH)
    made = engine(web, 1, 2)
    for port in in_arm(web, Arm.CONTROL)[:20]:
        command = bound(made, port)
        assert (command.backend, command.mode) == (backend_by_hash(port, 1, 2), Mode.HASH)


def test_the_others_are_raced() -> None:
    """Nothing changes for them."""
    web = with_arm()
    made = engine(web, 1, 2)
    commands = made.handle(first(in_arm(web, Arm.MODE)[0]), T0)
    assert [type(each) for each in commands] == [SendProbe, SendProbe]


def test_a_backend_that_is_down_gets_none() -> None:
    """Neither in turns nor by hash; without any the chain is walked to its end."""
    for by in (Mode.ROUND_ROBIN, Mode.HASH):
        web = with_arm(by=by)
        made = engine(web, 2)
        ports = in_arm(web, Arm.CONTROL)
        assert {bound(made, port).backend for port in ports[:20]} == {2}
        made.handle(BackendState(2, False), T0)
        last = bound(made, ports[20])
        assert (last.backend, last.mode) == (NO_BACKEND, Mode.REFUSED)


def test_its_decisions_are_counted_and_kept() -> None:
    """The record says mode ``round_robin``, reason ``control_arm``."""
    web = with_arm()
    made = engine(web, 1, 2)
    port = in_arm(web, Arm.CONTROL)[0]
    bound(made, port)
    commands = made.handle(BindingWritten(key(port)), T0)
    (kept,) = [each.decision for each in commands if isinstance(each, LogDecision)]
    assert (kept.mode, kept.reason) == (Mode.ROUND_ROBIN, Reason.CONTROL_ARM)
    assert made.counters["decided_round_robin"] == 1
    assert made.backend_stats(1).wins == 0
