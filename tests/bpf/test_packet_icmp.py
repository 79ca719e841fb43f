# SPDX-License-Identifier: Apache-2.0
"""Damaged ICMP errors about a flow: the flow's are translated, all others are left alone."""

from __future__ import annotations

import random

import pytest

from tests.bpf.corpus.faults import faults
from tests.bpf.corpus.flows import established
from tests.bpf.corpus.icmp_recipe import SOURCES, generated_error, is_translated
from tests.bpf.corpus.world import World
from tests.support.frames import l3_offset, summary
from tests.support.icmp_frames import rebuilt
from tests.support.program import DROP, PASS, REDIRECT, VERDICTS

pytest_plugins = ("tests.support.worlds",)

GENERATED = {4: 6_000, 6: 4_000}


def test_generated_errors(worlds: dict[str, World], rng: random.Random) -> None:
    """Odd errors: what is the flow's goes on with right sums, what is not is untouched."""
    verdicts = set()
    for number in range(GENERATED[worlds["object"].family]):
        case = rng.choice(SOURCES)
        told = generated_error(case, rng)
        try:
            frame = worlds["object"].native(told)
        except ValueError:  # a fault that only IPv4 has
            continue
        outcomes = []
        for world in worlds.values():
            world.reset()
            established()(world)
            outcomes.append(world.run_native(frame, case.at))
        outcome = outcomes[0]
        wrong = faults(frame, outcome)
        if outcomes[0] != outcomes[1]:
            wrong.append(f"loaders differ: {outcomes}")
        at = l3_offset(told)
        wanted = PASS
        if is_translated(told, case.at):
            wanted = REDIRECT if told[at + 8] > 1 else DROP
        if outcome.verdict != wanted:
            wrong.append(f"wanted {VERDICTS[wanted]}")
        # What scapy writes as it was read, it can judge in every byte.
        plain = wanted == REDIRECT and rebuilt(frame) == frame
        if plain and rebuilt(outcome.frame) != outcome.frame:
            wrong.append("scapy would write other sums")
        verdicts.add(outcome.verdict)
        if wrong:
            lines = [
                f"frame {number}, made from {case.name!r}, {VERDICTS[outcome.verdict]}",
                *wrong,
            ]
            pytest.fail("\n".join([*lines, summary(frame), frame.hex()]))
    assert verdicts == {PASS, DROP, REDIRECT}
