# SPDX-License-Identifier: Apache-2.0
"""Conversations about clients that some of the backends are unfit for."""

from __future__ import annotations

import dataclasses

from tests.support.cast import BACKENDS, DEADLINE, T0, engine, first, probe, reply, sent
from tests.support.playbook import EXPIRE, MS, play
from xdp_router.core.commands import LogDecision, Reinject, SendProbe, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendPath, BindingWritten, FirstPacket
from xdp_router.core.model import NO_BACKEND, Decision, Mode, ProbeAnswer, Reason, Unfit

B1, B2, _ = BACKENDS
SUBNET = (0xC6120100, 0xFFFFFF00)
NEIGHBOUR = 0xC6120177


def of(addr: int, port: int = 1, seen_ns: int = T0) -> FirstPacket:
    """The first packet of a client of this address."""
    packet = first(port, seen_ns)
    return dataclasses.replace(packet, key=dataclasses.replace(packet.key, client_addr=addr))


def beside(made: Engine, *backends: int) -> Engine:
    """These backends are in SUBNET, at the interface that clients come in by."""
    for backend in backends:
        made.handle(BackendPath(backend, 2, (SUBNET,)), T0 - 1)
    return made


def test_a_backend_does_not_race_for_itself() -> None:
    """It is not even probed; who asks at the same time has a race of its own."""
    made = engine(1, 2)
    own, others = of(B1.endpoint.addr), first(2)
    play(
        made,
        (T0, own, [probe(2)]),
        (T0, others, [probe(1), SendProbe(2, *_second(2))]),
        (T0 + 1, sent(2, T0 + 1), []),
        (
            T0 + MS,
            reply(2, T0 + MS),
            [WriteBinding(own, 2, Mode.RACE, Reason.RACE_WON, MS)],
        ),
    )
    assert made.counters["client_is_backend"] == 1
    decision = _settled(made, own)
    assert decision.unfit == ((1, Unfit.CLIENT_ITSELF),)


def _second(backend: int) -> tuple[int, int]:
    command = probe(backend, 61_001)
    return command.probe_port, command.seq


def _settled(made: Engine, packet: FirstPacket) -> Decision:
    reinject, log = made.handle(BindingWritten(packet.key), T0 + 2 * MS)
    assert isinstance(reinject, Reinject)
    assert isinstance(log, LogDecision)
    return log.decision


def test_the_only_backend_is_the_client() -> None:
    """Refused, also when it is the fallback; the decision says why."""
    made = engine(1, count=1, fallback=1)
    own = of(B1.endpoint.addr)
    play(
        made,
        (T0, own, [WriteBinding(own, NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE, 0)]),
    )
    assert _settled(made, own).unfit == ((1, Unfit.CLIENT_ITSELF),)


def test_fallback_and_hash_pass_over_it_too() -> None:
    """No answer in time: not the fallback, which it is, but the other one."""
    made = engine(1, 2, fallback=1)
    own = of(B1.endpoint.addr)
    play(
        made,
        (T0, own, [probe(2)]),
        (T0 + 1, sent(2, T0 + 1), []),
        (DEADLINE, EXPIRE, [WriteBinding(own, 2, Mode.HASH, Reason.DEADLINE, 50 * MS)]),
    )


def test_nor_does_it_get_itself_when_there_is_no_time_for_a_race() -> None:
    """More first packets than may be open: what is decided at once goes past it as well."""
    made = engine(1, 2, fallback=1, settings=EngineSettings(max_open_decisions=1))
    own = of(B1.endpoint.addr)
    play(
        made,
        (T0, first(1), [probe(1), probe(2)]),
        (T0, own, [WriteBinding(own, 2, Mode.HASH, Reason.OVERLOAD, 0)]),
    )
    assert made.counters["client_is_backend"] == 1


def test_backends_beside_the_client_are_passed_over() -> None:
    """As long as another one is up."""
    made = beside(engine(1, 2), 1)
    packet = of(NEIGHBOUR)
    play(made, (T0, packet, [probe(2)]))
    assert made.counters["client_beside_backend"] == 1


def test_all_are_beside_the_client() -> None:
    """They race as ever: a route on the backends may lead their answers here."""
    made = beside(engine(1, 2), 1, 2)
    packet = of(NEIGHBOUR)
    play(
        made,
        (T0, packet, [probe(1), probe(2)]),
        (T0 + 1, sent(1, T0 + 1), []),
        (T0 + MS, reply(1, T0 + MS), [WriteBinding(packet, 1, Mode.RACE, Reason.RACE_WON, MS)]),
    )
    expected = ((1, Unfit.BESIDE_CLIENT), (2, Unfit.BESIDE_CLIENT))
    assert _settled(made, packet).unfit == expected


def test_the_others_refuse() -> None:
    """One beside the client is better than nobody."""
    made = beside(engine(1, 2), 1)
    packet = of(NEIGHBOUR)
    play(
        made,
        (T0, packet, [probe(2)]),
        (T0 + 1, sent(2, T0 + 1), []),
        (
            T0 + MS,
            reply(2, T0 + MS, ProbeAnswer.RST),
            [WriteBinding(packet, 1, Mode.HASH, Reason.ALL_REFUSED, MS)],
        ),
    )


def test_first_packets_of_one_kind_share_a_race() -> None:
    """Joined while it runs and just after, as any other."""
    made = engine(1, 2)
    one, two = of(B1.endpoint.addr, 1), of(B1.endpoint.addr, 2)
    play(
        made,
        (T0, one, [probe(2)]),
        (T0 + 1, two, []),
        (T0 + 2, sent(2, T0 + 2), []),
        (
            T0 + MS,
            reply(2, T0 + MS),
            [
                WriteBinding(one, 2, Mode.RACE, Reason.RACE_WON, MS),
                WriteBinding(two, 2, Mode.RACE, Reason.RACE_JOINED, MS),
            ],
        ),
    )
