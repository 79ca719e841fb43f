# SPDX-License-Identifier: Apache-2.0
"""Races whose candidates are probed by other kinds than SYN."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.playbook import MS
from xdp_router.core.commands import SendProbe
from xdp_router.core.events import FirstPacket, ProbeReply, ProbeSent
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    FlowKey,
    Probe,
    ProbeAnswer,
    ProbeKind,
    ProbeRecord,
    Reason,
    Service,
)
from xdp_router.core.probe_kinds import message_of
from xdp_router.core.strategy.base import BackendStats, ProbeSettings, Step, Verdict
from xdp_router.core.strategy.race import RaceStrategy

T0 = 1_000 * MS
US = 0xC6120001
HOST = 0xC6120101
OTHER = 0xC6120102
FIRST = 61_000

PING = Probe(ProbeKind.UDP, payload=b"ping", answer=b"pong")
GOOD = {
    ProbeKind.ICMP: ProbeAnswer.ECHO,
    ProbeKind.STUN: ProbeAnswer.STUN,
    ProbeKind.UDP: ProbeAnswer.DATAGRAM,
}


def backend(number: int, probe: Probe, addr: int = HOST, port: int = 3478) -> Backend:
    """A UDP backend."""
    return Backend(number, f"b{number}", Endpoint(addr, port, 17), 0, probe=probe)


class Played:
    """A race of some backends, all of them up."""

    def __init__(self, *backends: Backend, settings: ProbeSettings | None = None) -> None:
        self.backends = {each.id: each for each in backends}
        self.service = Service(0, "voice", Endpoint(0xC6126401, 3478, 17), backends)
        self.race = RaceStrategy(
            [self.service],
            set(self.backends),
            settings or ProbeSettings(),
            lambda each, port, nonce: each.id << 24 | nonce << 16 | port,
        )
        self.first = FirstPacket(
            FlowKey(US, 5, 0xC6126401, 3478, 17), 0, 2, T0, 0, 0, 0, b"datagram"
        )
        self.evidence, steps = self.race.admit(self.service, self.first, T0)
        self.probes = {step.backend: step for step in steps if isinstance(step, SendProbe)}
        for probe in self.probes.values():
            self.race.probe_sent(
                ProbeSent(probe.backend, probe.probe_port, probe.seq, T0 + 10), T0 + 10
            )

    def payload(self, number: int) -> bytes:
        """What a live server says to a datagram."""
        each, probe = self.backends[number], self.probes[number]
        if each.probe.kind is ProbeKind.UDP:
            return each.probe.answer
        request = message_of(each, US).build(probe.probe_port, probe.seq)[8:]
        return b"\x01\x01" + request[2:]

    def reply(self, number: int, **change: object) -> ProbeReply:
        """The good answer of a backend, as XDP reports it."""
        each, probe = self.backends[number], self.probes[number]
        if each.probe.kind is ProbeKind.ICMP:
            found = ProbeReply(
                *(each.endpoint.addr, 0, probe.probe_port, probe.seq),
                *(ProbeAnswer.ECHO, T0 + 1 * MS, 1),
            )
        else:
            found = ProbeReply(
                *(each.endpoint.addr, each.endpoint.port, probe.probe_port, 0),
                *(ProbeAnswer.DATAGRAM, T0 + 1 * MS, 17, self.payload(number)),
            )
        return dataclasses.replace(found, **change)  # type: ignore[arg-type]  # test's words

    def answered(self, number: int, **change: object) -> list[Step]:
        """What follows from it."""
        return list(self.race.probe_reply(self.reply(number, **change), T0 + 1 * MS))


@pytest.mark.parametrize("kind", list(GOOD), ids=lambda kind: kind.value)
def test_the_first_good_answer_wins(kind: ProbeKind) -> None:
    """Of whatever kind; its round trip is measured, and it is counted as what it was."""
    probe = PING if kind is ProbeKind.UDP else Probe(kind)
    played = Played(backend(1, probe), backend(2, probe, OTHER))
    assert played.answered(2) == [Verdict(played.first, 2, Reason.RACE_WON)]
    assert played.evidence.records == [
        ProbeRecord(1, T0 + 10),
        ProbeRecord(2, T0 + 10, GOOD[kind], T0 + 1 * MS),
    ]
    rtt_ns = 1 * MS - 10
    assert played.race.stats(2) == BackendStats(wins=1, answers=1, last_rtt_ns=rtt_ns)
    assert played.race.counters[f"probes_{GOOD[kind].name.lower()}"] == 1


def test_kinds_race_each_other() -> None:
    """Each backend by its own; what loses at once is a closed port."""
    played = Played(backend(1, Probe(ProbeKind.ICMP)), backend(2, Probe(ProbeKind.STUN), OTHER))
    refusal = played.answered(2, answer=ProbeAnswer.UNREACHABLE, payload=b"")
    assert refusal == []
    assert played.evidence.refused == {2}
    assert played.answered(1) == [Verdict(played.first, 1, Reason.RACE_WON)]


def test_all_ports_closed_refuses() -> None:
    """Nobody is there: the client need not wait."""
    played = Played(backend(1, PING), backend(2, Probe(ProbeKind.STUN), OTHER))
    closed = {"answer": ProbeAnswer.UNREACHABLE, "payload": b""}
    assert played.answered(1, **closed) == []
    assert played.answered(2, **closed) == [Verdict(played.first, NO_BACKEND, Reason.ALL_REFUSED)]
    assert played.race.counters["probes_unreachable"] == 2


def test_another_answer_than_expected_does_not_win() -> None:
    """Nor does it refuse: the race waits for the others, and for its deadline."""
    played = Played(backend(1, PING), backend(2, PING, OTHER))
    assert played.answered(1, payload=b"no") == []
    assert played.answered(1) == []  # one answer a probe
    assert played.evidence.refused == set()
    assert played.evidence.records[0].answer is ProbeAnswer.UNEXPECTED
    assert played.race.counters["probes_unexpected"] == 1
    assert played.race.stats(1) == BackendStats(losses=1)
    assert played.race.expire(T0 + 50 * MS) == [Verdict(played.first, NO_BACKEND, Reason.DEADLINE)]


@pytest.mark.parametrize(
    "change",
    [
        {"proto": 6},
        {"backend_port": 3479},
        {"backend_addr": OTHER},
        {"probe_port": FIRST + 1},
        {"payload": b"\x01\x01" + bytes(18)},
    ],
)
def test_what_belongs_to_no_probe_changes_nothing(change: dict[str, object]) -> None:
    """From elsewhere, to another port, or about another question; the right one still wins."""
    played = Played(backend(1, Probe(ProbeKind.STUN)))
    assert played.answered(1, **change) == []
    assert played.race.counters["probe_answers_unmatched"] == 1
    assert played.answered(1) == [Verdict(played.first, 1, Reason.RACE_WON)]


def test_two_kinds_of_one_host_do_not_take_each_others_answers() -> None:
    """Both have the first probe port, each in its own protocol."""
    played = Played(backend(1, Probe(ProbeKind.ICMP)), backend(2, PING, port=53))
    assert {probe.probe_port for probe in played.probes.values()} == {FIRST}
    assert played.answered(2) == [Verdict(played.first, 2, Reason.RACE_WON)]
    assert played.answered(1) == []
    assert [record.answer for record in played.evidence.records] == [
        ProbeAnswer.ECHO,
        ProbeAnswer.DATAGRAM,
    ]


def test_backends_of_one_host_share_what_is_probed() -> None:
    """Each outstanding probe has a port of its own, and the budget is the host's."""
    settings = ProbeSettings(probe_burst=2)
    echo = Probe(ProbeKind.ICMP)
    played = Played(*(backend(each, echo, port=each) for each in (1, 2, 3)), settings=settings)
    assert [probe.probe_port for probe in played.probes.values()] == [FIRST, FIRST + 1]
    assert played.race.counters["probes_over_budget"] == 1
    assert played.answered(2) == [Verdict(played.first, 2, Reason.RACE_WON)]


def test_a_syn_to_another_port_is_matched_by_that_port() -> None:
    """A UDP backend that is probed by ``tcp:22``."""
    played = Played(backend(1, Probe(port=22)))
    seq = played.probes[1].seq
    answer = ProbeReply(HOST, 22, FIRST, seq, ProbeAnswer.SYNACK, T0 + 1 * MS)
    assert list(played.race.probe_reply(answer, T0 + 1 * MS)) == [
        Verdict(played.first, 1, Reason.RACE_WON)
    ]


def test_a_backend_that_goes_down_gives_its_port_back() -> None:
    """Whatever it was probed by: the next race may have it."""
    settings = ProbeSettings(probe_port_max=FIRST)
    played = Played(backend(1, PING), settings=settings)
    played.race.backend_state(played.service, 1, up=False)
    assert played.answered(1) == []
    later = dataclasses.replace(played.first, seen_ns=T0 + 100 * MS)
    _, steps = played.race.admit(played.service, later, T0 + 100 * MS)
    assert [step.probe_port for step in steps if isinstance(step, SendProbe)] == [FIRST]


def test_a_good_answer_wins_among_others_that_came_with_it() -> None:
    """What is no answer, and what refuses, are in one event with it."""
    third = 0xC6120103
    played = Played(backend(1, PING), backend(2, PING, OTHER), backend(3, PING, third))
    closed = played.reply(3, answer=ProbeAnswer.UNREACHABLE, payload=b"")
    answers = [played.reply(1, payload=b"no"), closed, played.reply(2)]
    assert list(played.race.probe_replies(answers, T0 + 2 * MS)) == [
        Verdict(played.first, 2, Reason.RACE_WON)
    ]
    assert played.evidence.refused == {3}
