# SPDX-License-Identifier: Apache-2.0
"""Damaged frames of the corpus: both loaders agree, and nothing broken is made."""

from __future__ import annotations

import random

import pytest

from tests.bpf.corpus import CASES
from tests.bpf.corpus.case import Case
from tests.bpf.corpus.faults import faults
from tests.bpf.corpus.recipe import generated, is_ours
from tests.bpf.corpus.recipe6 import generated6, is_ours6
from tests.bpf.corpus.states import STATES, State
from tests.bpf.corpus.world import World
from tests.support import frames, ipv6_judge
from tests.support.frames import ETH_HEADER, difference, summary
from tests.support.ipv6_frames import is_ipv6
from tests.support.program import DROP, FRAME_MAX, PASS, REDIRECT, TX, VERDICTS, Outcome

pytest_plugins = ("tests.support.worlds",)

COUNT = {4: 1_000, 6: 700}
GENERATED = {4: 4_000, 6: 3_000}
RECIPES = {4: (generated, is_ours), 6: (generated6, is_ours6)}


def mutate(frame: bytes, rng: random.Random) -> bytes:
    """One to three changes; headers are hit more often than payload."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(len(data), rng.choice((34, 60, 120, len(data)))))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            data[at] = rng.randrange(256)
        elif kind == 3:
            del data[max(ETH_HEADER, at) :]
        elif kind == 4:
            data += rng.randbytes(rng.randint(1, 64))
        else:
            data[at:at] = rng.randbytes(rng.choice((1, 4)))
    return bytes(data[:FRAME_MAX])


def _run(world: World, case: Case | State, frame: bytes) -> tuple[Outcome, tuple[int, int]]:
    case.prepare(world)
    outcome = world.run_native(frame, case.at)
    tables = world.program.pending, world.program.flows
    pending, flows = (len(list(table.each_key())) for table in tables)
    return outcome, (pending, flows)


def test_damaged_frames(worlds: dict[str, World], rng: random.Random) -> None:
    """Never a crash, never a wrong sum or length, and the same from both loaders."""
    verdicts, world = set(), worlds["object"]
    # Without a stage nothing is done with a frame, whatever it is, but that it is counted.
    cases = [case for case in CASES if world.family in case.families and not case.missing]
    for number in range(COUNT[world.family]):
        case = rng.choice(cases)
        frame = mutate(world.native(case.frame), rng)
        where = f"frame {number}, made from {case.name!r}: {frame.hex()}"
        one, other = (_run(world, case, frame) for world in worlds.values())
        assert not faults(frame, one[0]), where
        assert _comparable(one) == _comparable(other), where
        verdicts.add(one[0].verdict)
    assert verdicts == {PASS, DROP, TX, REDIRECT}


def _comparable(result: tuple[Outcome, tuple[int, int]]) -> tuple[object, ...]:
    outcome, tables = result
    lengths = [len(record) for record in outcome.records]
    return outcome.verdict, outcome.frame, outcome.counters, lengths, tables


def test_generated_frames(worlds: dict[str, World], rng: random.Random) -> None:
    """Odd frames on every state: what is not ours is untouched, what is ours never leaks.

    What goes out is right by scapy's reckoning wherever what came in was, keeps every byte that
    rewriting has no business with, and is the same from both loaders.
    """
    verdicts: dict[str, set[int]] = {state.name: set() for state in STATES}
    family = worlds["object"].family
    make, judge = RECIPES[family]
    for number in range(GENERATED[family]):
        state = STATES[number % len(STATES)]
        frame = make(state, rng)
        one, other = (_run(world, state, frame) for world in worlds.values())
        outcome, wrong = one[0], faults(frame, one[0])
        if _comparable(one) != _comparable(other):
            wrong += [f"loaders differ: {_comparable(one)} {_comparable(other)}"]
        ours = judge(frame, state)
        taken = outcome.verdict != PASS or "handed_to_kernel" in outcome.counters
        if ours is not None and taken != ours:
            wrong.append(f"ours: {ours}")
        # What scapy writes as it was read, and can therefore judge in every byte.
        rebuilt = ipv6_judge.rebuilt if is_ipv6(frame) else frames.rebuilt
        readable = number % 10 == 0 and not (is_ipv6(frame) and ipv6_judge.length_errors(frame))
        plain = outcome.verdict == TX or (readable and rebuilt(frame) == frame)
        if plain and rebuilt(outcome.frame) != outcome.frame:
            wrong.append(difference(outcome.frame, rebuilt(outcome.frame)))
        verdicts[state.name].add(outcome.verdict)
        if wrong:
            lines = [f"frame {number}, {state.name}, {VERDICTS[outcome.verdict]}", *wrong]
            pytest.fail("\n".join([*lines, summary(frame), frame.hex()]))
    for state in STATES:
        found = verdicts[state.name]
        # Of what is not ours hardly any change makes something that is: 3 of 384 frames.
        strange = is_ours(state.frame(), state) is False
        assert PASS in found if strange else len(found) > 1, f"{state.name}: nothing but {found}"
