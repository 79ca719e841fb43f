# SPDX-License-Identifier: Apache-2.0
"""Which connections may end, by which trouble; and what a run says about the others."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.judge import Done, End, Judge, Rules, Story, tally
from tests.chaos.leaks import MORE_FDS, MORE_KIB, Quiet, complaints, uncounted, went_back
from tests.chaos.report import Outcome, text
from tests.chaos.schedule import Kind, Trouble

RULES = Rules()
LIFE = Story(
    1, "stream", "web4", "198.18.0.2:5", "b1", 100, 100.1, 109, 110, 0, 5000, 0.2, End.CLOSED
)
"""On b1, from 100 to 110 s; it got on last at 109 s."""
LOST = (End.REFUSED, End.RESET, End.EOF, End.SILENT, End.MOVED)


def done(kind: Kind, target: str = "", first_s: float = 109.5, last_s: float | None = 112) -> Done:
    """A trouble from ``first_s`` to ``last_s``, as long as it was meant to be."""
    for_s = (last_s or first_s) - first_s
    return Done(Trouble(1, kind, 0, for_s, target), first_s, first_s, last_s, last_s)


def lawful(story: Story, *troubles: Done, rules: Rules = RULES) -> bool:
    return Judge(rules, list(troubles)).judge(story).lawful


def ended(end: End, **more: object) -> Story:
    return dataclasses.replace(LIFE, end=end, **more)  # type: ignore[arg-type]  # fields by name


def test_what_its_client_closes_is_kept() -> None:
    """Whatever goes on."""
    for kind in Kind:
        assert Judge(RULES, [done(kind, "b1")]).judge(LIFE).reason == "kept"


@pytest.mark.parametrize("end", LOST)
def test_only_its_own_server_s_death_ends_it(end: End) -> None:
    """Not another's, nothing else, and not a death long ago."""
    story = ended(end)
    assert lawful(story, done(Kind.KILL, "b1"))
    assert lawful(story, done(Kind.KILL, "b1", last_s=None))
    # What has come to nobody at a dead server is answered when there is one again.
    assert lawful(story, done(Kind.KILL, "b1", 108, 108.5))
    assert not lawful(story)
    assert not lawful(story, done(Kind.KILL, "b2"))
    assert not lawful(story, done(Kind.KILL, "b1", 105, 107))
    assert not lawful(story, done(Kind.KILL, "b1", 110.5))
    for kind in set(Kind) - {Kind.KILL}:
        for target in ("", "b1", "web4-b1"):
            assert not lawful(story, done(kind, target)), kind


def test_other_bytes_are_never_lawful() -> None:
    """Not even beside a death."""
    assert not lawful(ended(End.WRONG), done(Kind.KILL, "b1"))


@given(st.sampled_from(Kind), st.sampled_from(("", "b1", "b2", "web4-b1")), st.sampled_from(End))
def test_nothing_done_to_the_daemon_excuses(kind: Kind, target: str, end: End) -> None:
    """Established connections notice neither kills, reloads, drains nor floods."""
    if kind in (Kind.KILL, Kind.STALL, Kind.HOST_FLAP, Kind.ROUTER_FLAP, Kind.CLIENT_FLAP):
        return
    assert lawful(ended(end), done(kind, target)) == (end is End.CLOSED)


def test_nobody_knows_who_refused() -> None:
    """Then any of the service's servers may have been it, and no other."""
    story = ended(End.REFUSED, host="", connected_s=None)
    assert lawful(story, done(Kind.KILL, "b3"))
    assert not lawful(story, done(Kind.KILL, "u1"))


def test_a_dead_host_may_end_connections_if_that_is_a_rule() -> None:
    """One that is stopped, or not reached, for long may be found dead."""
    story = ended(End.RESET)
    stall = done(Kind.STALL, "b1", 107, 110)
    assert not lawful(story, stall)
    rules = Rules(dead_after_s=2.0)
    assert lawful(story, done(Kind.ROUTER_FLAP, "b1", 107, 110), rules=rules)
    assert not lawful(story, done(Kind.CLIENT_FLAP, "", 107, 110), rules=rules)
    assert lawful(story, stall, rules=rules)
    assert lawful(story, done(Kind.STALL, "b1", 107, None), rules=rules)
    assert not lawful(story, done(Kind.STALL, "b1", 108.5, 110), rules=rules)
    assert not lawful(story, done(Kind.STALL, "b2", 107, 110), rules=rules)


def test_links_that_are_down_end_nothing() -> None:
    """But nobody can be reached, and what lasts longer than was meant is no fault of the router."""
    silent = ended(End.SILENT)
    for kind, target in ((Kind.HOST_FLAP, "b1"), (Kind.ROUTER_FLAP, "b1"), (Kind.CLIENT_FLAP, "")):
        link = done(kind, target)
        assert not lawful(silent, link)
        assert not lawful(ended(End.UNREACHABLE), link)
        assert lawful(ended(End.UNREACHABLE, connected_s=None, host=""), link)
        link.ended_s = 109.5 + link.trouble.for_s + RULES.overrun_s + 1
        assert lawful(silent, link)
        assert not lawful(ended(End.RESET), link)
    nobody = ended(End.UNREACHABLE, connected_s=None)
    assert not lawful(nobody, done(Kind.HOST_FLAP, "b2"))
    assert not lawful(nobody, done(Kind.KILL, "b1"))


@pytest.mark.parametrize(("kind", "said"), [(Kind.DRAIN, "drained"), (Kind.REMOVE, "removed")])
def test_nobody_new_on_a_backend_that_is_leaving(kind: Kind, said: str) -> None:
    """From a moment after the command to the one that takes it back; of that service alone."""
    away = done(kind, "web4-b1", 95, 120)
    verdict = Judge(RULES, [away]).judge(LIFE)
    assert verdict.reason == f"new on a backend that was {said}"
    assert not lawful(LIFE, done(kind, "web4-b1", 95, None))
    assert lawful(LIFE, done(kind, "web4-b1", 99.8, 120))
    assert lawful(LIFE, done(kind, "web4-b1", 95, 100.05))
    assert lawful(LIFE, done(kind, "web4-b2", 95, 120))
    assert lawful(LIFE, done(kind, "web6-b1", 95, 120))
    away.settled_s = None
    assert lawful(LIFE, away)


def test_accepted_by_the_first_syn_or_the_second() -> None:
    """A third one has its cause on the way, or in a flood."""
    late = dataclasses.replace(LIFE, resent=2, connected_s=103.0)
    assert lawful(dataclasses.replace(LIFE, resent=1))
    assert Judge(RULES, []).judge(late).reason == "accepted only after 3 SYNs without a cause"
    assert lawful(late, done(Kind.CLIENT_FLAP, "", 99, 101))
    assert lawful(late, done(Kind.HOST_FLAP, "b1", 102, 104))
    assert not lawful(late, done(Kind.HOST_FLAP, "b2", 102, 104))
    assert not lawful(late, done(Kind.HOST_FLAP, "b1", 104, 105))
    assert not lawful(late, done(Kind.DAEMON_KILL, "", 99, 103))
    flood = done(Kind.SYN_FLOOD, "", 99, 103)
    assert lawful(late, flood)
    assert not lawful(dataclasses.replace(late, resent=RULES.resent_flood + 1), flood)


def test_why_a_syn_was_sent_again() -> None:
    """By what went on between the first and the acceptance."""
    late = dataclasses.replace(LIFE, resent=1, connected_s=101.0)
    assert Judge(RULES).late_by(late) == "nothing"
    for kind, target, word in (
        (Kind.CLIENT_FLAP, "", "links"),
        (Kind.RESTART, "", "the daemon"),
        (Kind.UDP_FLOOD, "", "floods"),
        (Kind.STALL, "b1", "nothing"),
    ):
        assert Judge(RULES, [done(kind, target, 99, 100.5)]).late_by(late) == word
        assert Judge(RULES, [done(kind, target, 102, 103)]).late_by(late) == "nothing"


def test_what_leaks_is_told() -> None:
    """And what may grow a little, or rests, is none."""
    before = Quiet(fds=100, kib=80_000)
    good = Quiet(
        fds=100 + MORE_FDS,
        kib=80_000 + MORE_KIB,
        entries={"flow_table": 4, "pending_flows": 9, "flow_table6": 0},
        resting={"one4": 2},
        unmade=1,
        used={"one4": 2, "web4": 0},
        loads={"backend 3": 0},
    )
    assert complaints(before, good) == []
    bad = Quiet(
        fds=good.fds + 1,
        kib=good.kib + 1,
        entries={"flow_table": 5, "flood_flows": 7},
        rows={"web4": 3},
        resting={"one4": 2},
        used={"one4": 1, "web4": 1},
        loads={"backend 3": 1},
    )
    assert len(complaints(before, bad)) == 8


def test_totals_that_go_back_are_told() -> None:
    """What is new is not."""
    assert went_back({"a": 5.0, "b": 1.0}, {"a": 4.0, "b": 1.0, "c": 0.0}) == ["a went from 5 to 4"]


def test_bytes_that_nobody_counted_are_told() -> None:
    """Of whom the totals know; headers are counted, too, so more is right."""
    assert uncounted({"a": 5, "b": 5, "c": 5}, {"a": 5.0, "b": 4.0}) == [
        "5 bytes by b were compared, and 4 counted"
    ]


def test_the_report_says_it_all() -> None:
    """Kinds, connections, reasons; of an unlawful one its life, and what went on then."""
    outcome = Outcome(
        7, 60.0, 90.0, RULES, [done(Kind.STALL, "b1"), done(Kind.DRAIN, "web4-b2", 10, 11)]
    )
    outcome.stories = [LIFE, ended(End.RESET, number=2, detail="by peer")]
    outcome.explained = {2: {"flows": []}}
    outcome.figures = {"frames": "12"}
    outcome.counted = [(109.0, "no_path", 2), (50.0, "no_path", 3)]
    said = text(outcome)
    assert "CHAOS_SEED=7" in said
    assert "connections 2 (2 of kind stream), 10,000 bytes compared" in said
    assert "unlawful: 1 connections, 0 other faults\n  1 reset without a cause" in said
    assert (
        "began 10.00 s, accepted 10.10 s, got on last 19.00 s, ended 20.00 s: reset by peer" in said
    )
    assert "19.50 -   22.00  #1 backend stalled b1" in said
    assert "drained web4-b2" not in said
    assert "  5  counted as no_path" in said
    assert "  19.00            no_path +2" in said
    assert "no_path +3" not in said
    assert 'what the router says: {"flows": []}' in said
    assert [story.number for story, _ in outcome.unlawful] == [2]


def test_a_tally_has_the_most_first() -> None:
    """By reason."""
    judge = Judge(RULES)
    verdicts = [judge.judge(each) for each in (ended(End.WRONG), LIFE, LIFE)]
    assert list(tally(verdicts).items()) == [("kept", 2), ("other bytes than were sent", 1)]
