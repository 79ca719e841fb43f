# SPDX-License-Identifier: Apache-2.0
"""The background prober: when it asks, what a table is made of, when it is published."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.support.background import T0, Answer, World, backend, near, service
from tests.support.playbook import MS, US
from xdp_router.core.events import ProbeReply, ProbeSent
from xdp_router.core.model import NO_BACKEND, Endpoint, Mode, ProbeAnswer, Reason, Service
from xdp_router.core.strategy.base import ProbeSettings, Step
from xdp_router.core.strategy.snapshot import BATCH, COST_NS

S = 1_000 * MS


def test_the_first_table_is_there_when_all_have_answered() -> None:
    """And with it the service's mode in XDP: until then the daemon decides."""
    web = service(1, 2, 3)
    world = World([web], {1: near(), 2: near(), 3: near(300 * US)})
    world.run(2 * MS)
    ((at, table),) = world.published
    assert at < MS
    assert (table.service, len(table.slots)) == (0, 256)
    assert [(each.service, each.mode) for each in world.modes] == [(0, Mode.SNAPSHOT)]


def test_the_first_table_does_not_wait_for_the_slow_one() -> None:
    """5 ms for those that have not answered; they follow."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: near(20 * MS)})
    world.run(15 * MS)
    assert world.shares() == {1: 256}
    assert 5 * MS <= world.published[0][0] < 7 * MS


def test_shares_follow_the_square_of_the_distance() -> None:
    """100 us and 200 us, but for the noise: 100 to 170. One that is 20 ms away gets nothing."""
    web = service(1, 2, 3)
    world = World([web], {1: near(100 * US), 2: near(200 * US), 3: near(20 * MS)})
    world.run(S)
    near_share = world.shares()[1]
    assert world.shares() == {1: near_share, 2: 256 - near_share}
    assert near_share / (256 - near_share) == pytest.approx((170 / 100) ** 2, rel=0.05)


def test_equals_share_by_weight() -> None:
    """Whatever noise there is below the tie window."""
    own = (backend(1), backend(2, weight=3))
    web = Service(0, "web", Endpoint(0xC6126401, 80), own, mode=Mode.SNAPSHOT)
    world = World([web], {1: near(110 * US), 2: near(90 * US)})
    world.run(100 * MS)
    assert world.shares() == {1: 64, 2: 192}


def test_each_server_is_probed_each_interval_with_jitter() -> None:
    """100 times a second, never at the same distance, never far from it."""
    web = service(1)
    world = World([web], {1: near()})
    times: list[int] = []

    def noted(now_ns: int) -> Answer:
        times.append(now_ns)
        return ProbeAnswer.SYNACK, 100 * US

    world.servers[1] = noted
    world.run(S)
    assert 95 <= len(times) <= 105
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert 8.7 * MS <= min(gaps) < 9.3 * MS
    assert 10.7 * MS < max(gaps) <= 11.5 * MS


def test_a_table_is_published_when_it_is_half_worn_and_not_before() -> None:
    """Nothing changes: one about each 50 ms, never one older than 100 ms."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: near()})
    world.run(S)
    assert 15 <= len(world.published) <= 25
    made = [table.made_ns - T0 for _, table in world.published]
    until = [at for at, _ in world.published[1:]]
    assert all(after - before < 100 * MS for before, after in zip(made, until, strict=False))


@pytest.mark.parametrize("interval_ms", [1, 34, 1_000, 60_000])
def test_no_table_is_ever_too_old(interval_ms: int) -> None:
    """With any interval, and an age of three of them at least."""
    age_ns = max(3 * interval_ms, 100) * MS
    web = service(1, 2, probe_interval_ns=interval_ms * MS, snapshot_age_ns=age_ns)
    world = World([web], {1: near(), 2: near(5 * MS)})
    world.run(20 * age_ns)
    worn = [
        at - before.made_ns + T0
        for (_, before), (at, _) in zip(world.published, world.published[1:], strict=False)
    ]
    assert worn
    assert max(worn) < age_ns


def test_a_stall_costs_its_slots_before_it_is_over() -> None:
    """By the age of the probe that is not answered; and they come back when it answers again."""
    web = service(1, 2)

    def stalls(now_ns: int) -> Answer:
        return ProbeAnswer.SYNACK, 50 * MS if 500 * MS <= now_ns < 700 * MS else 100 * US

    world = World([web], {1: near(), 2: stalls})
    world.run(500 * MS)
    assert world.shares() == {1: 128, 2: 128}
    world.run(514 * MS)
    assert world.shares().get(2, 0) <= 2
    world.run(700 * MS)
    assert world.shares() == {1: 256}
    world.run(800 * MS)
    assert world.shares()[2] > 100
    world.run(S)
    assert world.shares() == {1: 128, 2: 128}


def test_a_server_that_falls_silent_has_no_slot_after_the_deadline() -> None:
    """Not one, however small its share would be; when it answers again it has them all."""
    web = service(1, 2)
    alive = [True]
    world = World(
        [web], {1: near(), 2: lambda now: (ProbeAnswer.SYNACK, 100 * US) if alive[0] else None}
    )
    world.run(500 * MS)
    alive[0] = False
    world.run(570 * MS)
    assert world.shares() == {1: 256}
    world.run(10 * S)
    before = world.probes[2]
    world.run(11 * S)
    assert 8 <= world.probes[2] - before <= 13, "a server that is silent is probed less often"
    alive[0] = True
    world.run(11 * S + 300 * MS)
    assert world.shares() == {1: 128, 2: 128}


@pytest.mark.parametrize("pause_ms", [60, 90, 101, 150, 400])
@pytest.mark.parametrize("far_ms", [0, 20])
def test_after_a_pause_of_the_daemon_nobody_is_taken_for_gone(pause_ms: int, far_ms: int) -> None:
    """What is only old is asked again first; XDP knows itself how old its table is."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: near(100 * US + far_ms * MS)})
    world.run(500 * MS)
    before = world.shares()
    world.now += pause_ms * MS
    world.run((500 + pause_ms + 14) * MS)
    assert world.strategy.counters["snapshots_empty"] == 0
    at, table = world.published[-1]
    assert at >= (500 + pause_ms) * MS
    assert table.made_ns > T0 + (500 + pause_ms) * MS, "and is soon measured again"
    assert 1 in table.slots
    world.run((500 + pause_ms + 200) * MS)
    assert world.shares() == before


def test_when_nobody_answers_the_table_is_empty() -> None:
    """XDP goes down the degrade chain then, as it does without one."""
    web = service(1, 2)
    world = World([web], {1: lambda now: None, 2: lambda now: None})
    world.run(200 * MS)
    assert world.shares() == {NO_BACKEND: 256}
    assert 50 * MS <= world.published[0][0] < 57 * MS
    assert world.strategy.counters["snapshots_empty"] == len(world.published)
    assert world.modes


def test_a_refusal_costs_all_slots_at_once() -> None:
    """A closed port answers fast; so it gets nothing until it is open again."""
    web = service(1, 2)
    closed = [False]
    world = World(
        [web],
        {
            1: near(),
            2: lambda now: (ProbeAnswer.RST if closed[0] else ProbeAnswer.SYNACK, 50 * US),
        },
    )
    world.run(300 * MS)
    closed[0] = True
    world.run(315 * MS)
    assert world.shares() == {1: 256}
    closed[0] = False
    world.run(330 * MS)
    assert set(world.shares()) == {1, 2}


def test_what_is_down_has_no_slot_and_no_probe() -> None:
    """From the moment on; when it is up it is probed at once."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: near()})
    world.run(300 * MS)
    world.turn(2, up=False)
    before = world.probes[2]
    world.run(301 * MS)
    assert world.shares() == {1: 256}
    world.run(500 * MS)
    assert world.probes[2] == before
    world.turn(2, up=True)
    world.run(510 * MS)
    assert world.shares() == {1: 128, 2: 128}


def test_one_server_of_many_services_is_probed_once() -> None:
    """As often as the most eager one says; each service has its own table of it."""
    services = [
        Service(
            number,
            f"s{number}",
            Endpoint(0xC6126401, 80 + number),
            (backend(10 * number + 1, number, host=1), backend(10 * number + 2, number, host=2)),
            mode=Mode.SNAPSHOT,
            probe_interval_ns=(100 - 9 * number) * MS,
            snapshot_age_ns=S,
        )
        for number in range(10)
    ]
    world = World(services, {1: near(), 2: near(200 * US)})
    world.run(S)
    assert world.probes.total() == pytest.approx(2 * 1_000 / 19, rel=0.15)
    assert {step.service for _, step in world.published} == set(range(10))
    assert len({tuple(sorted(world.shares(number).values())) for number in range(10)}) == 1


def test_scores_count_what_was_told() -> None:
    """A long queue costs slots at once; when nobody repeats it, it is forgotten."""
    web = service(1, 2, score_age_ns=S)
    world = World([web], {1: near(), 2: near()})
    world.run(100 * MS)
    world.inputs.tell(1, {"queue": 0}, world.now)
    world.inputs.tell(2, {"queue": 10}, world.now)
    world.strategy.told(0)
    world.run(101 * MS)
    # 0.4 of 0.6 against 1: its square.
    assert world.shares() == {1: 177, 2: 79}
    found = world.strategy.snapshot(0)
    assert found is not None
    assert [(each.queue, each.queue_term) for each in found.scored] == [(0, 1.0), (10, 0.0)]
    world.run(1_200 * MS)
    assert world.shares() == {1: 128, 2: 128}


def test_a_first_packet_that_comes_to_the_daemon_gets_a_slot() -> None:
    """At once, in the shares of the table."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: near(20 * MS)})
    world.run(100 * MS)
    for port in range(200):
        world.ask(web, port)
    assert {(each.backend, each.reason, each.mode) for _, each in world.verdicts} == {
        (1, Reason.SNAPSHOT, Mode.SNAPSHOT)
    }


def test_first_packets_before_the_first_table_wait_for_it() -> None:
    """Or for their deadline, if nobody answers."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: near()})
    world.ask(web, 1)
    assert not world.verdicts
    world.run(MS)
    ((_, verdict),) = world.verdicts
    assert verdict.reason is Reason.SNAPSHOT
    late = World([web], {1: near(), 2: near()})
    late.can_send = False
    late.ask(web, 1)
    late.run(60 * MS)
    ((at, verdict),) = late.verdicts
    assert verdict.backend == NO_BACKEND
    assert 50 * MS <= at < 56 * MS


def test_a_table_that_is_too_old_decides_nothing() -> None:
    """When no probe can be sent, nothing is measured any more."""
    web = service(1)
    world = World([web], {1: near()})
    world.run(100 * MS)
    world.can_send = False
    world.run(250 * MS)
    world.ask(web, 1)
    ((_, verdict),) = world.verdicts
    assert (verdict.backend, verdict.mode) == (NO_BACKEND, Mode.SNAPSHOT)
    assert verdict.reason in (Reason.SNAPSHOT_STALE, Reason.NO_CANDIDATE)


def test_what_cannot_be_had_is_passed_over() -> None:
    """A backend that has just gone, or that this client must not get."""
    web = service(1, 2, 3)
    world = World([web], {1: near(), 2: near(), 3: near()})
    world.run(100 * MS)
    world.up.discard(1)
    for port in range(50):
        world.ask(web, port)
    assert {each.backend for _, each in world.verdicts} == {2, 3}


def test_a_service_that_leaves_is_probed_no_more() -> None:
    """Servers that others have go on being probed; those who wait are let go."""
    one = service(1, 2)
    other = Service(
        1, "other", Endpoint(0xC6126402, 80), (backend(12, 1, host=2),), mode=Mode.SNAPSHOT
    )
    world = World([one, other], {1: near(), 2: near()})
    world.run(50 * MS)
    world.do(world.strategy.drop(one))
    assert world.strategy.snapshot(0) is None
    assert world.strategy.stats(1) is None
    before = dict(world.probes)
    world.published.clear()
    world.run(200 * MS)
    assert world.probes[1] == before[1]
    assert world.probes.total() > sum(before.values()) + 10
    assert {step.service for _, step in world.published} == {1}
    assert world.strategy.drop(one) == ()


def test_the_budget_of_a_server_holds() -> None:
    """What is beyond it is not sent, and counted; the table is made of what is known."""
    web = service(1, probe_interval_ns=MS)
    world = World([web], {1: near()}, ProbeSettings(probe_rate=100, probe_burst=1))
    world.run(S)
    assert world.probes.total() <= 102
    assert world.strategy.counters["probes_over_budget"] > 700
    assert world.shares() == {1: 256}


def test_ports_are_given_back() -> None:
    """Of answered probes at once, of lost ones after a second; all modes share them."""
    web = service(1, 2)
    world = World([web], {1: near(), 2: lambda now: None})
    world.run(5 * S)
    for number, most in ((1, 1), (2, 12)):
        server = world.shared.servers.find(backend(number).endpoint)
        assert server is not None
        assert server.ports.outstanding <= most


def test_lost_probes_count() -> None:
    """A server that loses every fourth SYN gets far fewer flows than one that loses none."""
    web = service(1, 2)
    number = [0]

    def lossy(now_ns: int) -> Answer:
        number[0] += 1
        return None if number[0] % 4 == 0 else (ProbeAnswer.SYNACK, 100 * US)

    world = World([web], {1: near(), 2: lossy})
    world.run(3 * S)
    slots = [step.slots.count(2) for at, step in world.published if at > 1_500 * MS]
    assert sum(slots) / len(slots) < 64


class _Watched(World):
    """Notes how many steps came at once, at most."""

    largest = 0

    def do(self, steps: Sequence[Step]) -> None:
        self.largest = max(self.largest, len(steps))
        super().do(steps)


def test_work_comes_in_batches() -> None:
    """However many are due, one call does no more than a batch, and names the time for the next.

    With more servers than can be probed in time each has its turn all the same.
    """
    services = [service(*range(16 * n, 16 * n + 16), number=n) for n in range(40)]
    world = _Watched(services, {each: near() for each in range(640)})
    world.run(400 * MS)
    assert world.largest <= BATCH + 1
    assert len(world.probes) == 640
    assert world.probes.total() <= 400 * MS / COST_NS
    deadline = world.strategy.deadline()
    assert deadline is not None
    assert world.strategy.expire(deadline - 1) == () or deadline <= world.now


def test_a_server_of_thousands_of_services_that_stalls() -> None:
    """All their tables follow, a few at a time; the servers are probed all the while."""
    count = 1_000
    services = [
        Service(
            number,
            f"s{number}",
            Endpoint(0xC6126401, 1 + number),
            (backend(2 * number, number, host=1), backend(2 * number + 1, number, host=2)),
            mode=Mode.SNAPSHOT,
            snapshot_age_ns=60 * S,
            probe_interval_ns=20 * MS,
        )
        for number in range(count)
    ]
    stalled = [False]
    world = _Watched(
        services,
        {1: near(), 2: lambda now: (ProbeAnswer.SYNACK, 80 * MS if stalled[0] else 100 * US)},
    )
    world.run(S)
    assert {step.service for _, step in world.published} == set(range(count))
    world.published.clear()
    world.largest = 0
    stalled[0] = True
    before = world.probes.total()
    world.run(1_500 * MS)
    assert world.largest <= BATCH + 1
    assert {step.service for _, step in world.published} == set(range(count))
    assert all(step.slots.count(2 * step.service + 1) <= 2 for _, step in world.published)
    assert world.probes.total() - before >= 2 * 500 / 23


def test_an_answer_that_nobody_waits_for() -> None:
    """It is counted, and changes nothing."""
    web = service(1)
    world = World([web], {1: near()})
    world.run(50 * MS)
    made = world.strategy.counters
    stray = ProbeReply(backend(1).endpoint.addr, 8080, 61_500, 7, ProbeAnswer.SYNACK, world.now)
    assert not world.strategy.awaits(stray)
    world.strategy.probe_replies((stray,), world.now)
    world.strategy.probe_sent(ProbeSent(1, 61_500, 7, world.now), world.now)
    assert (made["probe_answers_unmatched"], made["probe_sends_unmatched"]) == (1, 1)
