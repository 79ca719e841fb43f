# SPDX-License-Identifier: Apache-2.0
"""Each combination of TCP flags on each kind of flow, against a model of the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.bpf.corpus.degrade import rst_to_client
from tests.bpf.corpus.flows import decided, established, refused, seen
from tests.bpf.corpus.orphans import hash_orphans
from tests.bpf.corpus.probes import SEQ, the_rst
from tests.bpf.corpus.world import (
    B2,
    CLIENT_ISN,
    PROBE_SOURCE,
    SERVER_ISN,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)
from tests.support.frames import ACK, FIN, RST, SYN, Segment, difference
from tests.support.program import DROP, PASS, REDIRECT, TX, VERDICTS
from xdp_router.core import abi

pytest_plugins = ("tests.support.worlds",)

Expected = tuple[int, bytes | None, dict[str, int]]
MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class State:
    """One kind of flow, the segment that meets it, and what must become of it."""

    given: tuple[Given, ...]
    segment: Segment
    rule: Callable[[Segment, bool], Expected]
    """Gets the segment, and whether it is a SYN without ACK, RST and FIN."""
    backend: bool = False
    """Whether the segment comes from the backend."""


def _forward(segment: Segment, **counters: int) -> Expected:
    return REDIRECT, to_backend(segment), counters


def _rst(segment: Segment, counter: str) -> Expected:
    if segment.flags & RST:
        return DROP, None, {"orphan_dropped": 1}
    if segment.flags & ACK:
        return TX, rst_to_client(segment.ack, 0, RST), {counter: 1}
    length = len(segment.payload) + bool(segment.flags & SYN) + bool(segment.flags & FIN)
    return TX, rst_to_client(0, (segment.seq + length) & MASK, RST | ACK), {counter: 1}


def _no_state(segment: Segment, syn: bool) -> Expected:
    return (DROP, None, {"first_packet": 1}) if syn else _rst(segment, "orphan_reset")


def _held(segment: Segment, syn: bool) -> Expected:
    return (DROP, None, {"syn_held_again": 1}) if syn else _rst(segment, "orphan_reset")


def _hashed(segment: Segment, syn: bool) -> Expected:
    if syn or segment.flags & RST:
        return _no_state(segment, syn)
    return REDIRECT, to_backend(segment, B2), {"orphan_hashed": 1, "decided_hash": 1}


def _decided(segment: Segment, syn: bool) -> Expected:
    return _forward(segment, **({"syn_on_live_flow": 1} if syn else {}))


def _decided_same_isn(segment: Segment, syn: bool) -> Expected:
    return _forward(segment, **({"syn_retransmit": 1} if syn else {}))


def _answered(segment: Segment, syn: bool) -> Expected:
    proven = segment.flags & (ACK | RST) == ACK
    return _forward(segment, promoted=1) if proven else _decided(segment, syn)


def _refused(segment: Segment, syn: bool) -> Expected:
    return _rst(segment, "refused_by_daemon")


def _closing(segment: Segment, syn: bool) -> Expected:
    if syn:
        return DROP, None, {"syn_reopened": 1, "first_packet": 1}
    revokes = not segment.flags & (SYN | RST | FIN)
    return _forward(segment, **({"closing_revoked": 1} if revokes else {}))


def _to_client(segment: Segment, syn: bool) -> Expected:
    return REDIRECT, to_client(segment), {}


def _unknown(segment: Segment, syn: bool) -> Expected:
    return PASS, None, {"pass_not_service": 1}


THERE = Segment(seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"data")
BACK = Segment(seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1, payload=b"data")
OVER = {"state": abi.TcpState.CLOSING, "flags": abi.FLOW_FIN}
STATES = {
    "no state": State((), THERE, _no_state),
    "held": State((seen(),), THERE.but(seq=CLIENT_ISN), _held),
    "orphans hashed": State((hash_orphans,), THERE, _hashed),
    "decided": State(decided(), THERE, _decided),
    "decided, SYN's number": State(decided(), THERE.but(seq=CLIENT_ISN), _decided_same_isn),
    "answered": State(decided(synack=True), THERE, _answered),
    "refused": State((refused(),), THERE.but(seq=CLIENT_ISN), _refused),
    "established": State((established(),), THERE, _decided),
    "closing": State((established(OVER, OVER),), THERE, _closing),
    "pending, from the backend": State(decided(), BACK, _to_client, True),
    "answered, from the backend": State(decided(synack=True), BACK, _to_client, True),
    "established, from the backend": State((established(),), BACK, _to_client, True),
    "no state, from the backend": State((), BACK, _unknown, True),
}


@pytest.mark.parametrize("name", STATES)
def test_every_combination_of_flags(name: str, world: World) -> None:
    """Verdict, frame and counters follow the rules for all 256 combinations."""
    state = STATES[name]
    for flags in range(256):
        segment = state.segment.but(flags=flags)
        verdict, out, counters = state.rule(segment, flags & (SYN | ACK | RST | FIN) == SYN)
        frame = from_backend(segment) if state.backend else to_service(segment)
        _compare(world, state.given, frame, state.backend, (verdict, out, counters))


def test_every_combination_of_flags_on_an_answer_to_a_probe(world: World) -> None:
    """With the right number: SYN-ACK and RST with ACK count, and nothing else does."""
    for flags in range(256):
        segment = Segment(flags=flags, seq=7, ack=SEQ + 1)
        frame = from_backend(segment, client=PROBE_SOURCE)
        expected: Expected = (PASS, None, {"probe_unverified": 1})
        if flags & ACK and flags & RST:
            expected = (DROP, None, {"probe_rst": 1})
        elif flags & ACK and flags & SYN:
            expected = (TX, the_rst(SEQ + 1), {"probe_synack": 1})
        _compare(world, (), frame, True, expected)


def _compare(
    world: World, given: tuple[Given, ...], frame: bytes, backend: bool, expected: Expected
) -> None:
    world.reset()
    for step in given:
        step(world)
    outcome = world.run(frame, "backend" if backend else "client")
    verdict, out, counters = expected
    wanted = world.native(frame if out is None else out)
    got = VERDICTS[outcome.verdict], outcome.counters
    assert got == (VERDICTS[verdict], counters), difference(outcome.frame, wanted)
    assert outcome.frame == wanted, difference(outcome.frame, wanted)
