# SPDX-License-Identifier: Apache-2.0
"""When servers are looked at and probed, and what an interval has shown of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.cast import BACKENDS, T0, first, sequence, service
from tests.support.health_cast import SETTINGS, HealthWorld, S
from tests.support.playbook import MS
from xdp_router.core.commands import HealthNews, SendProbe
from xdp_router.core.events import BackendState, FlowSigns, ProbeReply, ProbeSent
from xdp_router.core.health import Ill, Source
from xdp_router.core.health_looks import NOTHING, Seen
from xdp_router.core.health_watch import HealthWatch
from xdp_router.core.model import (
    Backend,
    Endpoint,
    Mode,
    Probe,
    ProbeAnswer,
    ProbeKind,
    Service,
    Signs,
)
from xdp_router.core.strategy.base import ProbeSettings
from xdp_router.core.strategy.probing import Servers, no_draw

B1, B2 = BACKENDS[0], BACKENDS[1]


def watch(*services: Service) -> HealthWatch:
    """With all of them reached; the first look is at once, intervals are an eighth shorter."""
    made = HealthWatch(sequence, Servers(ProbeSettings()), no_draw)
    made.apply((), services)
    for one in services:
        for backend in one.backends:
            made.reached(backend.id, True, False, T0)
    return made


def healthy(count: int = 1, **change: Any) -> Service:
    return dataclasses.replace(service(count), health=SETTINGS, **change)


def turn(made: HealthWatch, now_ns: int) -> tuple[Seen, SendProbe | None]:
    """The only server's turn."""
    found = made.next_turn(now_ns)
    assert found is not None
    assert made.next_turn(now_ns) is None
    return found[1], found[2]


def sent(made: HealthWatch, command: SendProbe | None, at_ns: int) -> SendProbe:
    assert command is not None
    event = ProbeSent(command.backend, command.probe_port, command.seq, at_ns)
    assert made.probe_sent(event)
    return command


def reply(command: SendProbe, answer: ProbeAnswer = ProbeAnswer.SYNACK) -> ProbeReply:
    at = B1.endpoint
    return ProbeReply(at.addr, at.port, command.probe_port, command.seq, answer, T0)


# Probes


def test_one_look_and_one_probe_an_interval() -> None:
    """A good answer is one good observation; then the port is free, and the next probe another."""
    made = watch(healthy())
    seen, command = turn(made, T0)
    assert seen == NOTHING
    command = sent(made, command, T0)
    assert made.take([reply(command)], T0 + MS) == []
    assert made.deadline() == T0 + S - S // 8
    seen, again = turn(made, T0 + S)
    assert seen == Seen(True)
    assert again is not None
    assert again.probe_port != command.probe_port
    assert made.counters["health_probes"] == made.counters["probes_requested"] == 2
    assert made.counters["probes_synack"] == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ProbeAnswer.RST, Ill.REFUSED),
        (ProbeAnswer.UNREACHABLE, Ill.UNREACHABLE),
        (ProbeAnswer.UNEXPECTED, Ill.UNEXPECTED),
        (None, Ill.UNANSWERED),
    ],
)
def test_what_is_bad(answer: ProbeAnswer | None, why: Ill) -> None:
    """Each in its own word; only silence and "unreachable" are counted as silence."""
    made = watch(healthy())
    command = sent(made, turn(made, T0)[1], T0)
    if answer is not None:
        made.take([reply(command, answer)], T0 + MS)
    found = made.next_turn(T0 + S)
    assert found is not None
    assert found[1] == Seen(True, why)
    assert found[0].silences == (why in (Ill.UNANSWERED, Ill.UNREACHABLE))


def test_a_closed_port_of_udp_is_a_refusal() -> None:
    """Its host is there: it sends ICMP."""
    udp = Backend(1, "b1", B1.endpoint, 0, probe=Probe(ProbeKind.UDP))
    made = watch(dataclasses.replace(healthy(), backends=(udp,)))
    command = sent(made, turn(made, T0)[1], T0)
    at = B1.endpoint
    event = ProbeReply(at.addr, at.port, command.probe_port, 0, ProbeAnswer.UNREACHABLE, T0, 17)
    assert made.take([event], T0) == []
    assert turn(made, T0 + S)[0] == Seen(True, Ill.REFUSED)


def test_a_probe_that_could_not_be_sent_is_no_silence() -> None:
    """Nobody heard it."""
    made = watch(healthy())
    sent(made, turn(made, T0)[1], 0)
    assert turn(made, T0 + S)[0] == NOTHING
    assert made.counters["probes_not_sent"] == 1


def test_an_answer_that_comes_before_it_is_known_that_the_probe_left() -> None:
    """Is one all the same, and the probe is still known as ours."""
    made = watch(healthy())
    command = turn(made, T0)[1]
    assert command is not None
    assert made.take([reply(command)], T0) == []
    assert made.probe_sent(ProbeSent(1, command.probe_port, command.seq, T0))
    assert turn(made, T0 + S)[0] == Seen(True)


def test_others_probes_are_not_taken() -> None:
    """Their answers, and that they were sent, are handed on; and they count."""
    made = watch(healthy())
    command = sent(made, turn(made, T0)[1], T0)
    others = dataclasses.replace(reply(command), probe_port=61_500)
    assert made.take([others], T0) == [others]
    assert not made.probe_sent(ProbeSent(1, 61_500, 5, T0))
    made.answered(1, ProbeAnswer.SYNACK, T0 + 9 * S // 10)
    assert turn(made, T0 + S) == (Seen(True), None), "somebody has just asked: one probe less"
    seen, again = turn(made, T0 + 2 * S)
    assert (seen, again is None) == (NOTHING, False)


def test_a_race_that_was_too_short_says_nothing() -> None:
    """It was asked 10 ms ago; what counts is how long nobody has answered."""
    made = watch(healthy())
    turn(made, T0)
    made.asked(1, T0 + S - 10 * MS)
    assert turn(made, T0 + S)[0] == NOTHING
    assert turn(made, T0 + 2 * S)[0] == Seen(True, Ill.UNANSWERED)
    made.answered(1, ProbeAnswer.SYNACK, T0 + 2 * S)
    made.asked(1, T0 + 3 * S - 10 * MS)
    assert turn(made, T0 + 3 * S)[0] == Seen(True)


def test_most_of_an_interval_counts() -> None:
    """However many there were."""
    made = watch(healthy())
    turn(made, T0)
    for answer in (ProbeAnswer.SYNACK, ProbeAnswer.RST, ProbeAnswer.RST):
        made.answered(1, answer, T0)
    assert turn(made, T0 + S)[0] == Seen(True, Ill.REFUSED)
    for answer in (ProbeAnswer.SYNACK, ProbeAnswer.RST):
        made.answered(1, answer, T0 + S)
    assert turn(made, T0 + 2 * S)[0] == Seen(True)


def test_a_server_of_two_services_is_probed_once() -> None:
    """At the shorter interval, by the probe that both name; each other probe is another look."""
    quick = dataclasses.replace(SETTINGS, interval_ns=S // 2)
    other = Backend(7, "b7", B1.endpoint, 1)
    ping = Backend(8, "b8", B1.endpoint, 2, probe=Probe(ProbeKind.ICMP))
    made = watch(
        healthy(),
        Service(1, "api", Endpoint(9, 80), (other,), health=quick),
        Service(2, "ping", Endpoint(9, 81), (ping,), health=SETTINGS),
    )
    turns = [made.next_turn(T0), made.next_turn(T0)]
    assert made.next_turn(T0) is None
    assert [sorted(each[0].members) for each in turns if each is not None] == [[1, 7], [8]]
    assert made.deadline() == T0 + S // 2 - S // 16
    made.apply((Service(1, "api", Endpoint(9, 80), (other,), health=quick),), ())
    assert turn(made, T0 + S // 2)[1] is not None
    server = made.server_of(1)
    assert server is not None
    assert server.interval_ns == S, "found anew in its turn"


def test_who_is_not_reached_is_not_looked_at() -> None:
    """Unless its next hop has fallen silent: that is as bad as no answer, and nothing is sent."""
    made = watch(healthy())
    sent(made, turn(made, T0)[1], T0)
    made.reached(1, False, False, T0)
    assert made.next_turn(T0 + 9 * S) is None
    made.reached(1, False, True, T0 + 9 * S)
    for second in (10, 11, 12):
        found = made.next_turn(T0 + second * S)
        assert found is not None
        assert found[1:] == (Seen(True, Ill.UNREACHABLE), None)
        assert found[0].silences == second - 9
    made.reached(1, True, False, T0 + 12 * S)
    assert turn(made, T0 + 13 * S)[1] is not None


def test_whose_health_is_off_is_not_looked_at() -> None:
    """Nor who has gone: what was known of it is forgotten, its probe not waited for."""
    one = healthy()
    made = watch(one)
    sent(made, turn(made, T0)[1], T0)
    for _ in range(3):
        made.health.heard(1, Source.PROBE, Ill.REFUSED, T0)
    off = dataclasses.replace(one, health=None)
    assert made.apply((one,), (off,)) == [1]
    assert not made.is_watched(1)
    assert made.health.is_well(1)
    assert made.next_turn(T0 + 9 * S) is None
    assert made.apply((off,), (one,)) == []
    assert made.is_watched(1)
    assert made.apply((one,), ()) == [1]


def test_a_backend_that_is_probed_otherwise_is_as_it_was() -> None:
    """As well or ill; so with other settings, which hold at once. Another one begins anew."""
    one = healthy()
    made = watch(one)
    for _ in range(3):
        made.health.heard(1, Source.PROBE, Ill.REFUSED, T0)
    slower = dataclasses.replace(one, health=dataclasses.replace(SETTINGS, rise=9))
    assert made.apply((one,), (slower,)) == []
    assert not made.health.is_well(1)
    assert made.own[1].rise == 9
    ping = dataclasses.replace(B1, probe=Probe(ProbeKind.ICMP))
    pinged = dataclasses.replace(slower, backends=(ping,))
    assert made.apply((slower,), (pinged,)) == []
    assert not made.health.is_well(1)
    server = made.server_of(1)
    assert server is not None
    assert (server.key[1], server.members) == (ping.probe, [1])
    other = dataclasses.replace(ping, endpoint=dataclasses.replace(B1.endpoint, addr=9))
    assert made.apply((pinged,), (dataclasses.replace(slower, backends=(other,)),)) == [1]
    assert made.health.is_well(1)


@pytest.mark.parametrize("gone", [1, 2])
def test_a_backend_that_leaves_makes_no_bad_look_for_its_host(gone: int) -> None:
    """Whoever of two backends asked: the answer counts, or the question does not."""
    two = dataclasses.replace(
        healthy(),
        backends=(B1, Backend(2, "other", B1.endpoint, 0)),
    )
    made = watch(two)
    command = sent(made, turn(made, T0)[1], T0)
    assert command.backend == 1
    left = dataclasses.replace(two, backends=tuple(x for x in two.backends if x.id != gone))
    assert made.apply((two,), (left,)) == [gone]
    answered = made.take([reply(command)], T0 + MS) == []
    assert answered is (gone == 2)
    seen, again = turn(made, T0 + S)
    assert seen == (Seen(True) if answered else NOTHING)
    assert again is not None
    for second in (2, 3):  # one that is silent is so, whoever leaves
        sent(made, again, T0 + (second - 1) * S)
        seen, again = turn(made, T0 + second * S)
        assert seen == Seen(True, Ill.UNANSWERED)


def test_a_silence_outlives_who_asked_last() -> None:
    """It began before, with a probe that was waited for."""
    two = dataclasses.replace(healthy(), backends=(B1, Backend(2, "other", B1.endpoint, 0)))
    made = watch(two)
    again = turn(made, T0)[1]
    for second in (0, 1):
        sent(made, again, T0 + second * S)
        again = turn(made, T0 + (second + 1) * S)[1]
    sent(made, again, T0 + 2 * S)
    made.apply((two,), (dataclasses.replace(two, backends=two.backends[1:]),))
    assert turn(made, T0 + 3 * S)[0] == Seen(True, Ill.UNANSWERED)


def test_thousands_of_servers_do_not_hold_the_loop() -> None:
    """A batch at a time, with a pause after each; everyone has its turn."""
    many = tuple(Backend(i, f"b{i}", Endpoint(0xC6130000 + i, 80), 0) for i in range(1000))
    world = HealthWorld([dataclasses.replace(service(1), backends=many)])
    until = world.now_ns + 2 * S
    most = 0
    while world.now_ns < until:
        before = len(world.probed)
        world.obey(world.engine.expire(world.now_ns))
        most = max(most, len(world.probed) - before)
        world.now_ns += MS
    assert most <= 16
    assert set(world.probed) == {each.id for each in many}


# Traffic


def test_a_probe_of_another_port_contradicts_nothing() -> None:
    """A ping is answered by a host whose service is gone."""
    ping = dataclasses.replace(B1, probe=Probe(ProbeKind.ICMP))
    for backend, heard in ((B1, False), (ping, True)):
        made = watch(dataclasses.replace(healthy(), backends=(backend,)))
        server = made.server_of(1)
        assert server is not None
        made.signs(FlowSigns(((1, Signs(refused=1, sources=1)), (99, Signs()))), T0)
        made.signs(FlowSigns(((1, Signs(unanswered=1)),)), T0)
        assert made.traffic(server, backend, Seen(True)).heard is heard
        assert made.traffic(server, backend, Seen(True)) == NOTHING, "it was of that interval"


def test_one_client_that_is_cut_makes_nobody_ill() -> None:
    """It could have all backends fall, one after the other; clients of two prefixes may."""
    world = HealthWorld()
    world.run(S)
    for sources, news in ((0, []), (1, []), (2, [HealthNews.ILL])):
        for _ in range(5):
            world.signs(1, answered=3, cut=3, sources=sources)
            world.run(S)
        assert world.news()[:1] == news


# With an engine around it


def test_strategies_tell() -> None:
    """What a race and a snapshot have learned saves the probes of health."""
    raced = HealthWorld()
    for at in range(20):
        raced.tell(first(at, raced.now_ns))
        raced.run(100 * MS)
    assert raced.engine.counters["health_probes"] == 0
    snapshot = HealthWorld(mode=Mode.SNAPSHOT)
    snapshot.run(3 * S)
    assert snapshot.engine.counters["health_probes"] <= 3
    assert len(snapshot.probed) > 500
    snapshot.answers[1] = None
    snapshot.run(5 * S)
    assert snapshot.usable == {2, 3}
    snapshot.probed.clear()
    snapshot.run(5 * S)
    assert 4 <= snapshot.probed.count(1) <= 6, "an ill one is asked by us alone"
    snapshot.answers[1] = ProbeAnswer.SYNACK
    snapshot.run(4 * S)
    assert snapshot.usable == {1, 2, 3}


def test_inline_services_are_probed_for_their_health_alone() -> None:
    """Once an interval."""
    world = HealthWorld(mode=Mode.INLINE)
    world.run(10 * S)
    assert {each: world.probed.count(each) for each in (1, 2, 3)} == {1: 10, 2: 10, 3: 10}
    world.tell(BackendState(1, False))
    world.probed.clear()
    world.run(3 * S)
    assert 1 not in world.probed
