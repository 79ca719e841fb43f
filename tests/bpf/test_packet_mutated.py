# SPDX-License-Identifier: Apache-2.0
"""Damaged frames of the corpus: both loaders agree, and nothing broken is made."""

from __future__ import annotations

import random

from tests.bpf.corpus import CASES
from tests.bpf.corpus.case import Case
from tests.bpf.corpus.world import World
from tests.support.frames import ETH_HEADER, checksum_errors, length_errors
from tests.support.program import DROP, FRAME_MAX, PASS, REDIRECT, TX, VERDICTS, Outcome

pytest_plugins = ("tests.support.worlds",)

COUNT = 2_000
MADE_BY_US = {"orphan_reset", "refused_no_backend", "refused_by_daemon", "probe_synack"}
"""What is counted when a RST of our own goes out: all of its sums are ours."""


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


def faults(frame: bytes, outcome: Outcome) -> list[str]:
    """What no frame may bring about."""
    found = []
    if outcome.verdict not in (PASS, DROP, TX, REDIRECT):
        return [f"verdict {outcome.verdict}"]
    if outcome.verdict in (PASS, DROP):
        if outcome.frame != frame:
            found.append(f"changed and then {VERDICTS[outcome.verdict]}")
        if not outcome.counters:
            found.append(f"{VERDICTS[outcome.verdict]} without a reason counted")
        return found
    found += length_errors(outcome.frame)
    if found:
        return found
    if MADE_BY_US & outcome.counters.keys():
        found += [f"our RST: {name} checksum" for name in checksum_errors(outcome.frame)]
    else:
        made = checksum_errors(outcome.frame) - checksum_errors(frame)
        found += [f"{name} checksum was right" for name in made]
        if len(outcome.frame) != len(frame):
            found.append("another length")
    return found


def _run(world: World, case: Case, frame: bytes) -> tuple[Outcome, tuple[int, int]]:
    case.prepare(world)
    outcome = world.run(frame, case.at)
    tables = world.program.pending, world.program.flows
    pending, flows = (len(list(table.each_key())) for table in tables)
    return outcome, (pending, flows)


def test_damaged_frames(worlds: dict[str, World], rng: random.Random) -> None:
    """Never a crash, never a wrong sum or length, and the same from both loaders."""
    verdicts = set()
    for number in range(COUNT):
        case = rng.choice(CASES)
        frame = mutate(case.frame, rng)
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
