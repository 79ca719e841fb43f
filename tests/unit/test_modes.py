# SPDX-License-Identifier: Apache-2.0
"""Services of several modes in one engine, and a mode that is changed while it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cast import (
    BACKENDS,
    DEFAULTS,
    T0,
    change_mode,
    engine,
    first,
    key,
    reply,
    sent,
    sequence,
)
from tests.support.playbook import MS, US
from xdp_router.core.commands import (
    LogDecision,
    PublishPickTable,
    SendProbe,
    SetServiceMode,
    WriteBinding,
)
from xdp_router.core.engine import Engine
from xdp_router.core.events import (
    BackendState,
    BindingWritten,
    ProbeReply,
    ProbeSent,
    XdpDecided,
)
from xdp_router.core.model import Endpoint, FlowKey, Mode, Probe, ProbeAnswer, Reason, Service
from xdp_router.core.selection import build_table

WEB = Service(0, "web", Endpoint(0xC6126401, 80), BACKENDS[:2])


def answered(made: Engine, commands: list[object], now_ns: int) -> list[object]:
    """Send the probes among the commands, and have each answered after 100 us."""
    out: list[object] = []
    probes = [each for each in commands if isinstance(each, SendProbe)]
    for probe in probes:
        at = ProbeSent(probe.backend, probe.probe_port, probe.seq, now_ns)
        out += made.handle(at, now_ns)
    for probe in probes:
        endpoint = next(each.endpoint for each in BACKENDS if each.id == probe.backend % 10)
        event = ProbeReply(
            endpoint.addr,
            endpoint.port,
            probe.probe_port,
            probe.seq,
            ProbeAnswer.SYNACK,
            now_ns + 100 * US,
        )
        out += made.handle(event, now_ns + 100 * US)
    return out


def with_table(made: Engine, now_ns: int) -> list[object]:
    """Let the background prober make its first table; all that comes out of that."""
    out: list[object] = list(made.expire(now_ns))
    out += answered(made, out, now_ns)
    deadline = made.deadline()
    assert deadline is not None
    return out + list(made.expire(max(deadline, now_ns + MS)))


def test_to_snapshot_and_back() -> None:
    """XDP goes over to it with the first table; back it goes with the service that is written."""
    made = engine(1, 2)
    assert made.roster.mode_of(0) is Mode.RACE
    assert change_mode(made, 0, Mode.RACE, T0) == []
    assert change_mode(made, 0, Mode.SNAPSHOT, T0) == []
    assert made.roster.mode_of(0) is Mode.SNAPSHOT
    out = with_table(made, T0)
    (table,) = (each for each in out if isinstance(each, PublishPickTable))
    assert set(table.slots) == {1, 2}
    assert out.index(table) < out.index(SetServiceMode(0, Mode.SNAPSHOT))
    assert change_mode(made, 0, Mode.INLINE, T0 + 9 * MS) == []
    assert change_mode(made, 0, Mode.RACE, T0 + 9 * MS) == []
    assert made.roster.snapshot(0) is None
    out2 = made.handle(first(1, T0 + 10 * MS), T0 + 10 * MS)
    assert [type(each) for each in out2] == [SendProbe, SendProbe]


def test_a_race_that_runs_is_not_touched() -> None:
    """Its flow gets its winner; the next one is decided in the new mode."""
    made = engine(1, 2)
    made.handle(first(1), T0)
    made.handle(sent(1, T0), T0)
    assert change_mode(made, 0, Mode.SNAPSHOT, T0 + 1) == []
    (binding,) = made.handle(reply(1, T0 + 400 * US), T0 + 500 * US)
    assert binding == WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 500 * US)
    made.handle(BindingWritten(key(1)), T0 + 500 * US)
    with_table(made, T0 + MS)
    later = first(2, T0 + 3 * MS)
    (binding,) = made.handle(later, T0 + 3 * MS)
    assert isinstance(binding, WriteBinding)
    assert (binding.mode, binding.reason) == (Mode.SNAPSHOT, Reason.SNAPSHOT)


def test_flows_that_wait_for_a_first_table_when_the_mode_changes() -> None:
    """They go down the degrade chain: nothing comes that they could wait for."""
    made = engine(1, 2)
    change_mode(made, 0, Mode.SNAPSHOT, T0)
    assert made.handle(first(1), T0) == []
    out = change_mode(made, 0, Mode.RACE, T0 + MS)
    (binding,) = (each for each in out if isinstance(each, WriteBinding))
    assert (binding.mode, binding.reason) == (Mode.HASH, Reason.SNAPSHOT_STALE)


def test_two_modes_probe_one_server() -> None:
    """Ports are shared, so that each answer comes to the mode that has asked."""
    shop = replace(
        WEB,
        id=1,
        name="shop",
        endpoint=Endpoint(0xC6126402, 80),
        mode=Mode.SNAPSHOT,
        backends=tuple(replace(each, id=each.id + 10, service=1) for each in WEB.backends),
    )
    made = Engine([WEB, shop], DEFAULTS, sequence, build_table)
    for number in (1, 2, 11, 12):
        made.handle(BackendState(number, True), T0 - 1)
    background = list(made.expire(T0))
    raced = made.handle(first(1), T0)
    ports = [
        (each.backend % 10, each.probe_port)
        for each in (*background, *raced)
        if isinstance(each, SendProbe)
    ]
    assert len(ports) == len(set(ports)) == 4
    out = answered(made, list(background), T0)
    assert not any(isinstance(each, WriteBinding) for each in out)
    out = answered(made, list(raced), T0)
    assert [type(each) for each in out] == [WriteBinding]
    assert made.counters["probe_answers_unmatched"] == 0
    assert made.backend_stats(11).answers == 1


def test_what_xdp_has_decided_is_explained_by_the_newest_table() -> None:
    """With every backend's part in it; a decision of a service that is not known has none."""
    made = engine(1, 2)
    change_mode(made, 0, Mode.SNAPSHOT, T0)
    with_table(made, T0)
    how = (Mode.SNAPSHOT, Reason.SNAPSHOT, T0 + 5 * MS, T0 + 5 * MS)
    (log,) = made.handle(XdpDecided(key(7), 0, 2, *how), T0 + 6 * MS)
    assert isinstance(log, LogDecision)
    snapshot = log.decision.snapshot
    assert snapshot is not None
    assert snapshot is made.roster.snapshot(0)
    assert [(each.backend, each.slots, each.rtt_term) for each in snapshot.scored] == [
        (1, 128, 1.0),
        (2, 128, 1.0),
    ]
    other = FlowKey(1, 2, 3, 4)
    (log,) = made.handle(XdpDecided(other, 9, 2, *how), T0 + 6 * MS)
    assert isinstance(log, LogDecision)
    assert log.decision.snapshot is None


def test_what_is_told_of_a_backend_moves_its_share() -> None:
    """At once: the table follows when it is its turn."""
    made = engine(1, 2)
    change_mode(made, 0, Mode.SNAPSHOT, T0)
    with_table(made, T0)
    made.roster.tell(BACKENDS[0], {"queue": 9}, T0 + 2 * MS)
    made.roster.tell(BACKENDS[1], {"queue": 1}, T0 + 2 * MS)
    out = made.expire(T0 + 4 * MS)
    (table,) = (each for each in out if isinstance(each, PublishPickTable))
    assert table.slots.count(1) < table.slots.count(2)
    with pytest.raises(ValueError, match="no input"):
        made.roster.tell(BACKENDS[0], {"load": 1}, T0)


def test_backends_that_are_up_from_the_beginning_are_probed() -> None:
    """Without an event for each: the daemon knows their paths before it starts."""
    made = Engine([replace(WEB, mode=Mode.SNAPSHOT)], DEFAULTS, sequence, build_table)
    made.begin([1, 2])
    assert [type(each) for each in made.expire(T0)] == [SendProbe, SendProbe]


def test_a_service_that_changes_or_goes() -> None:
    """With other backends, in the same mode, it is probed anew; removed, it is not any more."""
    made = Engine([replace(WEB, mode=Mode.SNAPSHOT)], DEFAULTS, sequence, build_table)
    made.begin([1, 2])
    with_table(made, T0)
    fewer = replace(WEB, mode=Mode.SNAPSHOT, backends=WEB.backends[:1])
    made.apply([fewer], DEFAULTS, T0 + 50 * MS)
    out = with_table(made, T0 + 50 * MS)
    (table,) = (each for each in out if isinstance(each, PublishPickTable))
    assert set(table.slots) == {1}
    made.roster.tell(BACKENDS[0], {"queue": 1}, T0)
    made.apply([], DEFAULTS, T0 + 60 * MS)
    assert not made.roster.inputs.told(1)
    assert made.roster.snapshot(0) is None
    assert not any(isinstance(each, SendProbe) for each in made.expire(T0 + 500 * MS))


def test_a_mode_that_is_not_available_is_refused() -> None:
    """And nothing changes."""
    made = engine(1, 2)
    with pytest.raises(ValueError, match="'refused' is not available"):
        change_mode(made, 0, Mode.REFUSED, T0)
    assert made.roster.mode_of(0) is Mode.RACE
    assert made.roster.snapshot(7) is None


def changed(made: Engine, now_ns: int, **to: Any) -> list[object]:
    """Let its service be another one."""
    (service,) = made.roster.services.values()
    return list(made.apply([replace(service, **to)], DEFAULTS, now_ns))


def test_who_departs_wins_no_race_of_the_mode_before() -> None:
    """It runs on when the mode changes, without those that are removed after that."""
    made = engine(1, 2)
    made.handle(first(1), T0)
    made.handle(sent(2, T0), T0)
    changed(made, T0, mode=Mode.SNAPSHOT)
    changed(made, T0, backends=BACKENDS[:1])
    assert made.handle(reply(2, T0 + MS), T0 + MS) == []
    assert made.counters["probes_backend_down"] == 1
    (binding,) = (e for e in made.expire(T0 + 60 * MS) if isinstance(e, WriteBinding))
    assert (binding.backend, binding.reason) == (1, Reason.DEADLINE)


def test_a_race_of_the_mode_before_is_not_about_what_is_probed_now() -> None:
    """Its probes are let go with the place that they went to; the next race is held anew."""
    made = engine(1, 2)
    made.handle(first(1), T0)
    changed(made, T0, mode=Mode.SNAPSHOT)
    other = tuple(replace(each, probe=Probe(port=99)) for each in BACKENDS[:2])
    changed(made, T0, backends=other)
    changed(made, T0, mode=Mode.RACE)
    late = T0 + 60 * MS
    assert any(isinstance(each, WriteBinding) for each in made.expire(late))
    out = made.handle(first(2, late), late)
    assert [type(each) for each in out] == [SendProbe, SendProbe]
