# SPDX-License-Identifier: Apache-2.0
"""Random fragments of one flow: each becomes what a pure model says, with the tags that it says.

First, later, out of order, again, too late, of a flow that is gone, and of others that have the
same number; in either address family.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.bpf.corpus.world import World
from tests.conftest import LIVES_SEED
from tests.support.fragment_model import AD, PAUSES_S, FragmentModel, Outcome, Q, Tagging, Tags
from tests.support.fragment_side import VERDICT_OF, FragmentSide
from tests.support.frames import difference
from tests.support.program import VERDICTS

pytest_plugins = ("tests.support.worlds",)

EXAMPLES = 12
SIDE = st.sampled_from(("client", "client", "backend"))
IDENT = st.sampled_from((1, 1, 2, 0xFFFF))
TAGS = st.sampled_from(((), (), ((Q, 0xA005),), ((AD, 5), (Q, 6)), ((Q, 7),)))
TO_BACKEND = st.sampled_from((None, Tagging(7), Tagging(0)))
TO_CLIENT = st.sampled_from(
    (None, Tagging(0), Tagging(5), Tagging(5, service=True), Tagging(5, service=True, push=True))
)


class Fragments(RuleBasedStateMachine):
    """Everything that can happen to the fragments of a client and its backend."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.model = FragmentModel()
        self.side = FragmentSide(self.world, self.model)
        self.story: list[str] = []

    @rule(seconds=st.sampled_from(PAUSES_S))
    def time_passes(self, seconds: float) -> None:
        passed = self.model.pass_time(seconds)
        self.story.append(f"{passed} s pass")
        self.side.grow_older(passed)

    @rule(there=st.sampled_from((True, True, False)), to_backend=TO_BACKEND, to_client=TO_CLIENT)
    def flow_begins_or_ends(
        self, there: bool, to_backend: Tagging | None, to_client: Tagging | None
    ) -> None:
        """With tags of its own on either side."""
        self.model.there = there
        self.model.tagging = {"client": to_backend, "backend": to_client}
        self.story.append(f"the flow is {'there' if there else 'gone'}, {self.model.tagging}")
        self.side.put(self.model)

    @rule(side=SIDE, ident=IDENT, tags=TAGS)
    def first(self, side: str, ident: int, tags: Tags) -> None:
        tags = self._of(tags)
        self._run(side, ident, tags, "first", self.model.first(side, ident, tags))

    @rule(side=SIDE, ident=IDENT)
    def first_of_others(self, side: str, ident: int) -> None:
        """Of a conversation between the same hosts that is not ours."""
        outcome = self.model.foreign(side, ident)
        self._run(side, ident, (), "first", outcome, foreign=True)

    @rule(side=SIDE, ident=IDENT, tags=TAGS, piece=st.sampled_from(("middle", "last")),
          ttl=st.sampled_from((64, 64, 64, 2, 1)))  # fmt: skip
    def later(self, side: str, ident: int, tags: Tags, piece: str, ttl: int) -> None:
        tags = self._of(tags)
        self._run(side, ident, tags, piece, self.model.later(side, ident, tags, ttl), ttl)

    @rule(side=SIDE, ident=IDENT, tags=TAGS)
    def whole_datagram(self, side: str, ident: int, tags: Tags) -> None:
        """In its order."""
        tags = self._of(tags)
        self.first(side, ident, tags)
        self.later(side, ident, tags, "middle", 64)
        self.later(side, ident, tags, "last", 64)

    def _run(
        self, side: str, ident: int, tags: Tags, piece: str, outcome: Outcome, ttl: int = 64,
        foreign: bool = False,
    ) -> None:  # fmt: skip
        self.story.append(f"{side}: {piece} of {ident}, tags {tags}, ttl {ttl} -> {outcome}")
        segment = self.side.segment(side, ident, tags, ttl)
        frame = self.world.native(self.side.came(side, segment, piece, foreign))
        got = self.world.run_native(frame, side)
        verdict = VERDICT_OF[outcome.what]
        wrong = f"{VERDICTS[got.verdict]}, wanted {VERDICTS[verdict]}, {got.counters}"
        assert got.verdict == verdict, self._report(wrong)
        made = self.side.made_of(side, segment, piece, outcome)
        wanted = frame if made is None else self.world.native(made)
        assert got.frame == wanted, self._report(difference(got.frame, wanted))
        counted = f"{got.counters}, wanted {dict(outcome.counters)}"
        assert got.counters == dict(outcome.counters), self._report(counted)
        assert not got.records, self._report("an event")

    @invariant()
    def notes_and_account_are_as_the_model_says(self) -> None:
        assert self.side.noted() == len(self.model.noted), self._report(f"{self.side.noted()}")
        packets = {side: self.model.packets[side] for side in ("client", "backend")}
        found = self.side.packets()
        assert found == (packets if self.model.there else {}), self._report(f"{found} {packets}")

    def _of(self, tags: Tags) -> Tags:
        """No third one: nobody here can read what is behind it."""
        pushed = any(each and each.push for each in self.model.tagging.values())
        return tags[:1] if pushed else tags

    def _report(self, wrong: str) -> str:
        return "\n".join(["", *(f"{n:3} {line}" for n, line in enumerate(self.story, 1)), wrong])


@pytest.mark.timeout(400)  # a failing life is made shorter first
@pytest.mark.parametrize("world", [("object", 4), ("object", 6)], ids=("ipv4", "ipv6"),
                         indirect=True)  # fmt: skip
def test_random_fragments(world: World) -> None:
    """Any order of fragments, pauses, tags, beginnings and ends of a flow: as the model says."""
    machine = type("FragmentsHere", (Fragments,), {"world": world})
    how = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None, database=None,
                   suppress_health_check=list(hypothesis.HealthCheck), print_blob=True,
                   report_multiple_bugs=False)  # fmt: skip
    run_state_machine_as_test(hypothesis.seed(LIVES_SEED)(machine), settings=how)
