# SPDX-License-Identifier: Apache-2.0
"""The race by itself: who is probed, who joins, who wins, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.playbook import MS, US
from xdp_router.core.commands import SendProbe
from xdp_router.core.events import FirstPacket, ProbeReply, ProbeSent
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    FlowKey,
    Mode,
    ProbeAnswer,
    ProbeRecord,
    Reason,
    Service,
)
from xdp_router.core.strategy import STRATEGIES, create
from xdp_router.core.strategy.base import BackendStats, ProbeSettings, Step, Verdict
from xdp_router.core.strategy.race import LATE_GRACE_NS, RaceStrategy

BACKENDS = tuple(
    Backend(number, f"b{number}", Endpoint(0xC6120100 + number, 8080), 0) for number in (1, 2, 3)
)
SERVICE = Service(0, "web", Endpoint(0xC6126401, 80), BACKENDS)
SETTINGS = ProbeSettings(probe_rate=1000, probe_burst=2)
T0 = 1_000 * MS


def sequence(backend: Backend, port: int, nonce: int) -> int:
    """A sequence number that shows what it was made from."""
    return backend.id * 100_000_000 + nonce * 100_000 + port


def race_of(
    *up: int, services: Sequence[Service] = (SERVICE,), settings: ProbeSettings = SETTINGS
) -> tuple[RaceStrategy, set[int]]:
    """A strategy and the set of usable backends that it looks at."""
    usable = set(up)
    return RaceStrategy(services, usable, settings, sequence), usable


def first(port: int, seen_ns: int, service: int = 0) -> FirstPacket:
    """The first packet of client port ``port``."""
    key = FlowKey(0xC6120001, port, 0xC6126401, 80)
    return FirstPacket(key, service, 2, seen_ns, port, 0, 7, b"syn")


def probe(backend: int, port: int = 61_000, nonce: int = 0) -> SendProbe:
    """The command that probes ``backend``."""
    return SendProbe(backend, port, sequence(BACKENDS[backend - 1], port, nonce))


def sent(command: SendProbe, sent_ns: int) -> ProbeSent:
    """The executor's answer to a SendProbe."""
    return ProbeSent(command.backend, command.probe_port, command.seq, sent_ns)


def reply(
    command: SendProbe, received_ns: int, answer: ProbeAnswer = ProbeAnswer.SYNACK
) -> ProbeReply:
    """What XDP reports for a probe."""
    endpoint = BACKENDS[command.backend - 1].endpoint
    return ProbeReply(
        endpoint.addr, endpoint.port, command.probe_port, command.seq, answer, received_ns
    )


def test_the_leader_probes_every_candidate_that_is_up() -> None:
    """One probe each, none to a backend that is down; no verdict yet."""
    race, _ = race_of(1, 3)
    _, steps = race.admit(SERVICE, first(1, T0), T0)
    assert steps == [probe(1), probe(3)]
    assert race.open_races == 1
    assert race.deadline() == T0 + 50 * MS


def test_first_synack_wins_for_leader_and_followers() -> None:
    """All members get the winner; the leader has won, the others have joined."""
    race, _ = race_of(1, 2)
    leader, follower = first(1, T0), first(2, T0 + 100 * US)
    evidence, _ = race.admit(SERVICE, leader, T0)
    shared, steps = race.admit(SERVICE, follower, T0 + 100 * US)
    assert steps == ()
    assert shared is evidence
    race.probe_sent(sent(probe(1), T0 + 10), T0 + 20)
    race.probe_sent(sent(probe(2), T0 + 30), T0 + 40)
    assert race.probe_reply(reply(probe(2), T0 + 500 * US), T0 + 600 * US) == [
        Verdict(leader, 2, Reason.RACE_WON),
        Verdict(follower, 2, Reason.RACE_JOINED),
    ]
    assert race.open_races == 0
    assert race.stats(2) == BackendStats(wins=1, answers=1, last_rtt_ns=500 * US - 30)
    assert race.stats(1) == BackendStats()


def test_late_answers_are_recorded_until_the_deadline() -> None:
    """A slower candidate's answer still shows up in the shared record, and decides nothing."""
    race, _ = race_of(1, 2)
    evidence, _ = race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0 + 1), T0 + 1)
    race.probe_sent(sent(probe(2), T0 + 2), T0 + 2)
    race.probe_reply(reply(probe(2), T0 + 1 * MS), T0 + 1 * MS)
    assert race.probe_reply(reply(probe(1), T0 + 30 * MS), T0 + 30 * MS) == ()
    assert evidence.records == [
        ProbeRecord(1, T0 + 1, ProbeAnswer.SYNACK, T0 + 30 * MS),
        ProbeRecord(2, T0 + 2, ProbeAnswer.SYNACK, T0 + 1 * MS),
    ]
    assert evidence.answered == [2, 1]
    assert race.counters["probe_answers_late"] == 1
    assert race.deadline() is None


def test_an_answer_after_the_deadline_matches_nothing() -> None:
    """The record is closed, the candidate has lost, and its port has been given back."""
    race, _ = race_of(1)
    evidence, _ = race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0 + 1), T0 + 1)
    race.expire(T0 + 50 * MS)
    assert race.probe_reply(reply(probe(1), T0 + 51 * MS), T0 + 51 * MS) == ()
    assert evidence.records == [ProbeRecord(1, T0 + 1)]
    assert race.counters["probe_answers_unmatched"] == 1
    assert race.stats(1) == BackendStats(losses=1)


def test_an_answer_handled_before_its_probe_was_reported_sent() -> None:
    """It wins all the same; the RTT is known as soon as both instants are."""
    race, _ = race_of(1)
    leader = first(1, T0)
    evidence, _ = race.admit(SERVICE, leader, T0)
    verdicts = race.probe_reply(reply(probe(1), T0 + 300), T0 + 400)
    assert verdicts == [Verdict(leader, 1, Reason.RACE_WON)]
    assert evidence.records[0].rtt_ns == 0
    race.probe_sent(sent(probe(1), T0 + 100), T0 + 500)
    assert evidence.records[0].rtt_ns == 200
    assert race.stats(1) == BackendStats(wins=1, answers=1, last_rtt_ns=200)
    assert race.deadline() is None


def test_a_wrong_sequence_number_decides_nothing() -> None:
    """Only the answer to the outstanding probe counts, not one to an older use of its port."""
    race, _ = race_of(1)
    race.admit(SERVICE, first(1, T0), T0)
    assert race.probe_reply(reply(probe(1, nonce=5), T0 + 1), T0 + 1) == ()
    assert race.open_races == 1
    assert race.counters["probe_answers_unmatched"] == 1


def test_a_second_answer_to_the_same_probe_is_not_a_second_answer() -> None:
    """A SYN-ACK that the backend sends again is counted as unmatched."""
    race, _ = race_of(1, 2)
    evidence, _ = race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0 + 1), T0 + 1)
    race.probe_reply(reply(probe(1), T0 + 10), T0 + 10)
    race.probe_reply(reply(probe(1), T0 + 20), T0 + 20)
    assert evidence.answered == [1]
    assert race.counters["probe_answers_unmatched"] == 1


def test_a_second_answer_before_the_send_time_is_known() -> None:
    """The port is still held for the send time stamp; the first answer stands all the same."""
    race, _ = race_of(1, 2)
    evidence, _ = race.admit(SERVICE, first(1, T0), T0)
    race.probe_reply(reply(probe(1), T0 + 10), T0 + 10)
    race.probe_reply(reply(probe(1), T0 + 20, ProbeAnswer.RST), T0 + 20)
    assert evidence.records[0] == ProbeRecord(1, 0, ProbeAnswer.SYNACK, T0 + 10)
    assert evidence.refused == set()


@pytest.mark.parametrize("refusal", [ProbeAnswer.RST, ProbeAnswer.UNREACHABLE])
def test_a_refusal_loses_however_fast_it_came(refusal: ProbeAnswer) -> None:
    """A closed port must not win by answering fast."""
    race, _ = race_of(1, 2)
    leader = first(1, T0)
    evidence, _ = race.admit(SERVICE, leader, T0)
    assert race.probe_reply(reply(probe(1), T0 + 1, refusal), T0 + 1) == ()
    assert evidence.refused == {1}
    assert race.probe_reply(reply(probe(2), T0 + 9), T0 + 9) == [
        Verdict(leader, 2, Reason.RACE_WON)
    ]
    assert race.stats(1) == BackendStats(losses=1)


def test_all_refused_ends_the_race_at_once() -> None:
    """Nobody waits for a deadline when every candidate has said no."""
    race, _ = race_of(1, 2)
    leader, follower = first(1, T0), first(2, T0)
    race.admit(SERVICE, leader, T0)
    race.admit(SERVICE, follower, T0)
    race.probe_reply(reply(probe(1), T0 + 1, ProbeAnswer.RST), T0 + 1)
    assert race.probe_reply(reply(probe(2), T0 + 2, ProbeAnswer.UNREACHABLE), T0 + 2) == [
        Verdict(leader, NO_BACKEND, Reason.ALL_REFUSED),
        Verdict(follower, NO_BACKEND, Reason.ALL_REFUSED),
    ]


def test_a_candidate_without_a_probe_keeps_the_race_from_being_refused() -> None:
    """One refused, the other could not be asked: the degrade chain goes on, without waiting."""
    race, _ = race_of(1, 2, settings=ProbeSettings(probe_rate=0, probe_burst=1))
    other = Service(9, "other", Endpoint(0xC6126402, 80), BACKENDS[1:2])
    race.admit(other, first(7, T0, 9), T0)  # uses up backend 2's only token
    leader = first(1, T0)
    _, steps = race.admit(SERVICE, leader, T0)
    assert steps == [probe(1)]
    assert race.probe_reply(reply(probe(1), T0 + 1, ProbeAnswer.RST), T0 + 1) == [
        Verdict(leader, NO_BACKEND, Reason.PROBE_BUDGET)
    ]


def test_a_failed_send_loses_but_does_not_refuse() -> None:
    """The race then waits for its deadline: the others may answer, or the degrade chain acts."""
    race, _ = race_of(1, 2)
    leader = first(1, T0)
    evidence, _ = race.admit(SERVICE, leader, T0)
    assert race.probe_sent(sent(probe(1), 0), T0) == ()
    assert race.probe_reply(reply(probe(2), T0 + 1, ProbeAnswer.RST), T0 + 1) == ()
    assert race.deadline() == T0 + 50 * MS
    assert race.expire(T0 + 50 * MS) == [Verdict(leader, NO_BACKEND, Reason.DEADLINE)]
    assert evidence.refused == {2}
    assert race.counters["probes_not_sent"] == 1
    assert race.stats(1) == BackendStats(losses=1)


def test_nothing_is_due_before_the_deadline() -> None:
    """One nanosecond early is too early; at the instant itself it is due."""
    race, _ = race_of(1)
    leader = first(1, T0)
    race.admit(SERVICE, leader, T0)
    assert race.expire(T0 + 50 * MS - 1) == []
    assert race.expire(T0 + 50 * MS) == [Verdict(leader, NO_BACKEND, Reason.DEADLINE)]
    assert race.deadline() is None


def test_an_event_that_is_handled_late_still_gets_a_short_race() -> None:
    """Seen long ago: the deadline is not in the past but LATE_GRACE_NS ahead."""
    race, _ = race_of(1)
    race.admit(SERVICE, first(1, T0), T0 + 80 * MS)
    assert race.deadline() == T0 + 80 * MS + LATE_GRACE_NS


def test_first_packets_shortly_after_the_decision_take_its_winner() -> None:
    """Inside the coalescing window no probe is sent; at its end a new race starts."""
    race, _ = race_of(1)
    race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0 + 1), T0 + 1)
    race.probe_reply(reply(probe(1), T0 + 10), T0 + 10)
    inside, outside = first(2, T0 + 2 * MS + 9), first(3, T0 + 2 * MS + 10)
    _, steps = race.admit(SERVICE, inside, inside.seen_ns)
    assert steps == (Verdict(inside, 1, Reason.RACE_JOINED),)
    _, steps = race.admit(SERVICE, outside, outside.seen_ns)
    assert steps == [probe(1, 61_001)]


def test_a_winner_that_went_down_is_not_taken_over() -> None:
    """Inside the window, but the winner is gone: a new race among those that are up."""
    race, up = race_of(1, 2)
    race.admit(SERVICE, first(1, T0), T0)
    race.probe_reply(reply(probe(1), T0 + 10), T0 + 10)
    up.remove(1)
    race.backend_state(SERVICE, 1, up=False)
    _, steps = race.admit(SERVICE, first(2, T0 + 1 * MS), T0 + 1 * MS)
    assert steps == [probe(2, 61_001)]


def test_a_refusal_by_all_is_taken_over_too() -> None:
    """Else every SYN of a service whose servers refuse would be a race of its own."""
    race, _ = race_of(1)
    race.admit(SERVICE, first(1, T0), T0)
    race.probe_reply(reply(probe(1), T0 + 10, ProbeAnswer.RST), T0 + 10)
    late = first(2, T0 + 1 * MS)
    _, steps = race.admit(SERVICE, late, T0 + 1 * MS)
    assert steps == (Verdict(late, NO_BACKEND, Reason.ALL_REFUSED),)


def test_a_backend_that_comes_up_ends_the_window() -> None:
    """The old outcome says nothing about the newcomer: the next first packet races."""
    race, up = race_of(1)
    race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0 + 1), T0 + 1)
    race.probe_reply(reply(probe(1), T0 + 10, ProbeAnswer.RST), T0 + 10)
    up.add(2)
    race.backend_state(SERVICE, 2, up=True)
    _, steps = race.admit(SERVICE, first(2, T0 + 1 * MS), T0 + 1 * MS)
    assert steps == [probe(1, 61_001), probe(2)]


def test_candidates_take_turns_in_being_asked_first() -> None:
    """Among equals the first one asked wins by a few microseconds: not always the same one."""
    race, _ = race_of(1, 2, 3)
    asked = []
    for number in range(4):
        at = T0 + number * 100 * MS
        _, steps = race.admit(SERVICE, first(number + 1, at), at)
        asked.append([step.backend for step in steps if isinstance(step, SendProbe)])
        race.expire(at + 60 * MS)
    assert asked == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]


def test_a_backend_that_goes_down_loses_its_outstanding_probes() -> None:
    """Its answer, should it still come, does not win."""
    race, up = race_of(1, 2)
    leader = first(1, T0)
    race.admit(SERVICE, leader, T0)
    up.remove(1)
    race.backend_state(SERVICE, 1, up=False)
    assert race.probe_reply(reply(probe(1), T0 + 5), T0 + 5) == ()
    assert race.stats(1) == BackendStats(losses=1)
    assert race.probe_reply(reply(probe(2), T0 + 9), T0 + 9) == [
        Verdict(leader, 2, Reason.RACE_WON)
    ]


def test_a_race_that_only_waits_to_expire_is_not_joined() -> None:
    """Its deadline has passed: the newcomer gets a race of its own."""
    race, _ = race_of(1)
    race.admit(SERVICE, first(1, T0), T0)
    _, steps = race.admit(SERVICE, first(2, T0 + 50 * MS), T0 + 50 * MS)
    assert steps == [probe(1, 61_001)]
    assert race.open_races == 2


def test_no_candidate_is_no_race() -> None:
    """With nobody up the verdict comes at once."""
    race, _ = race_of()
    lonely = first(1, T0)
    _, steps = race.admit(SERVICE, lonely, T0)
    assert steps == (Verdict(lonely, NO_BACKEND, Reason.NO_CANDIDATE),)
    assert race.deadline() is None


def test_the_budget_bounds_probes_per_backend() -> None:
    """Burst used up: no race; after one interval there is a token again."""
    race, _ = race_of(1, settings=ProbeSettings(coalesce_window_ns=0, probe_burst=2))
    asked: list[Step] = []
    for number in range(3):
        now = T0 + number
        _, steps = race.admit(SERVICE, first(number, now), now)
        asked += steps
        if isinstance(steps[0], SendProbe):
            race.probe_reply(reply(steps[0], now), now)
    assert asked[:2] == [probe(1), probe(1, 61_001)]
    assert asked[2] == Verdict(first(2, T0 + 2), NO_BACKEND, Reason.PROBE_BUDGET)
    assert race.counters["probes_over_budget"] == 1
    _, steps = race.admit(SERVICE, first(9, T0 + 1 * MS), T0 + 1 * MS)
    assert steps == [probe(1, 61_002)]


def test_a_port_with_an_outstanding_probe_is_not_used_again() -> None:
    """One port, one unanswered probe: no second probe before the first one's deadline."""
    settings = ProbeSettings(probe_port_min=61_000, probe_port_max=61_000)
    second = Service(1, "second", Endpoint(0xC6126402, 80), BACKENDS[:1])
    race, _ = race_of(1, services=(SERVICE, second), settings=settings)
    race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0 + 1), T0 + 1)
    waiting = first(2, T0 + 1, 1)
    _, steps = race.admit(second, waiting, T0 + 1)
    assert steps == (Verdict(waiting, NO_BACKEND, Reason.PROBE_BUDGET),)
    assert race.counters["probes_without_port"] == 1
    race.expire(T0 + 50 * MS)
    _, steps = race.admit(second, waiting, T0 + 50 * MS)
    assert steps == [probe(1, nonce=1)]


def test_services_race_independently() -> None:
    """A first packet of another service does not join."""
    second = Service(1, "second", Endpoint(0xC6126402, 80), BACKENDS[1:2])
    race, _ = race_of(1, 2, services=(SERVICE, second))
    race.admit(SERVICE, first(1, T0), T0)
    _, steps = race.admit(second, first(2, T0, 1), T0)
    assert steps == [probe(2, 61_001)]
    assert race.open_races == 2


def test_modes_are_created_by_name() -> None:
    """The dict is the list of what can be configured; other modes are refused by name."""
    assert list(STRATEGIES) == ["race", "snapshot", "inline"]
    made = create(Mode.RACE, (SERVICE,), set(), SETTINGS, sequence)
    assert isinstance(made, RaceStrategy)
    with pytest.raises(ValueError, match="mode 'hash' is not available; choose one of race, sn"):
        create(Mode.HASH, (SERVICE,), set(), SETTINGS, sequence)
