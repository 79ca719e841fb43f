# SPDX-License-Identifier: Apache-2.0
"""The engine with an IPv6 service beside an IPv4 one: addresses count whole."""

from __future__ import annotations

import pytest

from tests.support.cast import T0, sequence
from tests.support.playbook import MS, US, play
from xdp_router.core.address import parse_addr, parse_endpoint
from xdp_router.core.commands import SendProbe, SetBackendUp, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import (
    BackendPath,
    BackendState,
    BindingWritten,
    FirstPacket,
    ProbeReply,
    ProbeSent,
)
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import NO_BACKEND, Backend, FlowKey, Mode, ProbeAnswer, Reason, Service
from xdp_router.core.selection import build_table

# Two that have the last 64 bits alike, and the last 32 of the IPv4 one.
FAR_1 = Backend(1, "f1", parse_endpoint("[2001:db8:1::c612:102]:80"), 0)
FAR_2 = Backend(2, "f2", parse_endpoint("[2001:db8:2::c612:102]:80"), 0)
NEAR = Backend(3, "n1", parse_endpoint("198.18.1.2:80"), 1)
WEB6 = Service(0, "web6", parse_endpoint("[2001:db8:100::1]:80"), (FAR_1, FAR_2))
WEB4 = Service(1, "web4", parse_endpoint("198.18.100.1:80"), (NEAR,))
PORT = 61_000


def engine() -> Engine:
    made = Engine([WEB6, WEB4], EngineSettings(), sequence, build_table)
    for backend in (FAR_1, FAR_2, NEAR):
        made.handle(BackendState(backend.id, True), T0 - 1)
    return made


def first(client: str, port: int = 4711, seen_ns: int = T0) -> FirstPacket:
    service = WEB6 if ":" in client else WEB4
    key = FlowKey(parse_addr(client), port, service.endpoint.addr, 80)
    return FirstPacket(key, service.id, 2, seen_ns, 7, 0, 7, b"syn")


def probe(backend: Backend) -> SendProbe:
    return SendProbe(backend.id, PORT, sequence(backend, PORT, 0))


def answer(backend: Backend, at_ns: int) -> ProbeReply:
    where = backend.endpoint
    seq = probe(backend).seq
    return ProbeReply(where.addr, where.port, PORT, seq, ProbeAnswer.SYNACK, at_ns)


def test_each_backend_wins_its_own_race() -> None:
    """Answers are told apart by all 128 bits, and from those of the IPv4 backend."""
    packet, other = first("2001:db8:c::5"), first("198.18.0.5")
    made = engine()
    assert set(made.handle(packet, T0)) == {probe(FAR_1), probe(FAR_2)}
    made.handle(other, T0)
    for backend in (FAR_1, FAR_2, NEAR):
        made.handle(ProbeSent(backend.id, PORT, probe(backend).seq, T0 + US), T0 + US)
    play(
        made,
        (T0 + MS, answer(NEAR, T0 + MS), [_binding(other, NEAR, MS)]),
        (T0 + 2 * MS, answer(FAR_2, T0 + 2 * MS), [_binding(packet, FAR_2, 2 * MS)]),
    )
    made.handle(BindingWritten(packet.key), T0 + 3 * MS)
    found = made.decisions.newest_of_client(parse_addr("2001:db8:c::5"), 4711)
    assert found is not None
    assert (found.backend, made.backend_stats(1).wins, made.backend_stats(2).wins) == (2, 0, 1)
    assert made.decisions.newest_of_client(parse_addr("2001:db8:d::5"), 4711) is None


def _binding(packet: FirstPacket, backend: Backend, latency_ns: int) -> WriteBinding:
    return WriteBinding(packet, backend.id, Mode.RACE, Reason.RACE_WON, latency_ns)


@pytest.mark.parametrize("client", ["2001:db8:c::5", "2001:db8:d::5", "2001:db8:c::6"])
def test_deadline_decides_by_the_hash_that_xdp_has(client: str) -> None:
    """No answer: the flow's slot of the table gives the backend, as in XDP."""
    made, packet = engine(), first(client)
    made.handle(packet, T0)
    (binding,) = (each for each in made.expire(T0 + 50 * MS) if isinstance(each, WriteBinding))
    slots = build_table([FAR_1, FAR_2])
    assert binding.backend == slots[flow_hash(packet.key) % len(slots)]
    assert binding.mode is Mode.HASH


def test_a_client_that_is_the_backend_or_beside_it() -> None:
    """By its whole address, and by its subnet: such backends are not probed for it."""
    made = engine()
    mask = (1 << 128) - (1 << 64)
    made.handle(BackendPath(1, 2, ((FAR_1.endpoint.addr & mask, mask),)), T0 - 1)
    assert made.handle(first("2001:db8:1::77"), T0) == [probe(FAR_2)]
    made = engine()
    assert made.handle(first("2001:db8:2::c612:102"), T0) == [probe(FAR_1)]
    made = engine()
    assert len(made.handle(first("2001:db8:3::c612:102"), T0)) == 2


def test_a_backend_that_goes() -> None:
    """Its service's table names the other one, and nobody else's is touched."""
    made = engine()
    made.start()
    commands = made.handle(BackendState(FAR_1.id, False), T0)
    assert commands[0] == SetBackendUp(FAR_1.id, False)
    slots = build_table([FAR_2])
    assert set(slots) == {FAR_2.id}
    assert NO_BACKEND not in slots
    assert made.handle(first("2001:db8:c::5"), T0) == [probe(FAR_2)]
