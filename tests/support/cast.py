# SPDX-License-Identifier: Apache-2.0
"""Who speaks in the conversations with the core: a service, its backends, clients by port."""

from __future__ import annotations

from dataclasses import replace

from tests.support.playbook import MS
from xdp_router.core.commands import Command, LogDecision, Reinject, SendProbe
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendState, FirstPacket, ProbeReply, ProbeSent
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Decision,
    Endpoint,
    FlowKey,
    Mode,
    ProbeAnswer,
    ProbeRecord,
    Reason,
    Service,
)
from xdp_router.core.selection import build_table

BACKENDS = tuple(
    Backend(number, f"b{number}", Endpoint(0xC6120100 + number, 8080), 0) for number in (1, 2, 3)
)
T0 = 1_000 * MS
DEADLINE = T0 + 50 * MS
DEFAULTS = EngineSettings()


def sequence(backend: Backend, port: int, nonce: int) -> int:
    """A sequence number that shows what it was made from."""
    return backend.id * 100_000_000 + nonce * 100_000 + port


def service(count: int = 2, fallback: int = NO_BACKEND) -> Service:
    """A service with the first ``count`` backends."""
    return Service(0, "web", Endpoint(0xC6126401, 80), BACKENDS[:count], fallback=fallback)


def engine(
    *up: int,
    count: int = 2,
    fallback: int = NO_BACKEND,
    settings: EngineSettings = DEFAULTS,
) -> Engine:
    """An engine with one service, whose backends ``up`` are usable."""
    made = Engine([service(count, fallback)], settings, sequence, build_table)
    for backend in up:
        made.handle(BackendState(backend, True), T0 - 1)
    return made


def change_mode(made: Engine, number: int, mode: Mode, now_ns: int) -> list[Command]:
    """What an engine with settings by default says when one of its services gets another mode."""
    services = dict(made.roster.services)
    services[number] = replace(services[number], mode=mode)
    return made.apply(services.values(), DEFAULTS, now_ns)


def key(port: int) -> FlowKey:
    """The five-tuple of client port ``port``."""
    return FlowKey(0xC6120001, port, 0xC6126401, 80)


def first(port: int, seen_ns: int = T0) -> FirstPacket:
    """The first packet of client port ``port``."""
    return FirstPacket(key(port), 0, 2, seen_ns, port, 0, 7, b"syn")


def probe(backend: int, port: int = 61_000, nonce: int = 0) -> SendProbe:
    """The command that probes ``backend``."""
    return SendProbe(backend, port, sequence(BACKENDS[backend - 1], port, nonce))


def sent(backend: int, sent_ns: int, port: int = 61_000) -> ProbeSent:
    """The executor's answer to ``probe(backend, port)``."""
    command = probe(backend, port)
    return ProbeSent(backend, port, command.seq, sent_ns)


def reply(
    backend: int, at_ns: int, answer: ProbeAnswer = ProbeAnswer.SYNACK, port: int = 61_000
) -> ProbeReply:
    """What XDP reports for ``probe(backend, port)``."""
    endpoint = BACKENDS[backend - 1].endpoint
    return ProbeReply(endpoint.addr, endpoint.port, port, probe(backend, port).seq, answer, at_ns)


def final(packet: FirstPacket, decision: Decision) -> list[Command]:
    """What comes out when a binding is final."""
    return [Reinject(packet), LogDecision(decision)]


def decision(
    packet: FirstPacket,
    backend: int,
    mode: Mode,
    reason: Reason,
    decided_ns: int,
    probes: list[ProbeRecord],
) -> Decision:
    """A record of a flow that was decided and re-injected at the same instant."""
    return Decision(
        packet.key,
        0,
        backend,
        mode,
        reason,
        packet.seen_ns,
        decided_ns,
        reinjected_ns=decided_ns,
        probes=probes,
    )


def backend_by_hash(port: int, *usable: int) -> int:
    """The backend in the flow's slot when exactly these are up."""
    slots = build_table([BACKENDS[number - 1] for number in usable])
    return slots[flow_hash(key(port)) % len(slots)]
