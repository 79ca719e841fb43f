# SPDX-License-Identifier: Apache-2.0
"""Conversations with the race of one request: what it is told and when, and what it must answer.

    play(
        race,
        (1 * MS, "start", [StartLeg(0, 0)]),
        (5 * MS, "head 0 503", [...]),
        (51 * MS, "expire", []),
    )

A row is (instant, what happens, all commands that must come out, in order). The first row that
is answered otherwise fails the test with the difference between the two conversations.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from xdp_router.gateway.race_commands import NS_PER_S, Command, Reason
from xdp_router.gateway.ttft_race import TtftRace

Row = tuple[int, str, Sequence[Command]]


def tell(race: TtftRace, said: str, now_ns: int) -> list[Command]:
    """One step: ``start``, ``expire``, ``gone``, ``freeze``, or ``connected LEG``,
    ``head LEG STATUS [RETRY_AFTER_S]``, ``token LEG``, ``fail LEG REASON``, ``end LEG``."""
    word, *rest = said.split()
    if word == "start":
        return race.start(now_ns)
    if word == "expire":
        return race.expire(now_ns)
    if word == "gone":
        return race.client_gone()
    if word == "freeze":
        race.freeze()
        return []
    leg = int(rest[0])
    if word == "connected":
        return race.leg_connected(leg, now_ns)
    if word == "head":
        wait_ns = int(rest[2]) * NS_PER_S if rest[2:] else None
        return race.leg_head(leg, int(rest[1]), now_ns, wait_ns)
    if word == "token":
        return race.leg_token(leg, now_ns)
    if word == "fail":
        return race.leg_failed(leg, Reason[rest[1]], now_ns)
    assert word == "end", said
    return race.leg_ended(leg, now_ns)


def play(race: TtftRace, *rows: Row) -> None:
    """Hold the conversation; raise AssertionError at the first wrong answer."""
    expected: list[str] = []
    heard: list[str] = []
    for now_ns, said, commands in rows:
        line = f"{now_ns / 1_000_000:12.3f} ms  >> {said}"
        answer = tell(race, said, now_ns)
        expected += [line, *(f"{'':15} << {command}" for command in commands)]
        heard += [line, *(f"{'':15} << {command}" for command in answer)]
        if answer != list(commands):
            difference = difflib.ndiff(expected, heard)
            raise AssertionError("- expected, + heard:\n" + "\n".join(difference))
