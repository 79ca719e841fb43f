# SPDX-License-Identifier: Apache-2.0
"""Who may be chosen, from who is reached and who drains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.availability import Availability

STEPS = st.lists(
    st.tuples(st.sampled_from(["reach", "drain", "forget"]), st.integers(1, 4), st.booleans())
)


@given(STEPS)
def test_who_is_reached_and_does_not_drain(steps: list[tuple[str, int, bool]]) -> None:
    """After whatever happens; and the set that others look at stays the same object."""
    known = Availability()
    usable = known.usable
    reached: set[int] = set()
    draining: set[int] = set()
    for what, backend, there in steps:
        if what == "forget":
            known.forget(backend)
            reached.discard(backend)
            draining.discard(backend)
            continue
        members = reached if what == "reach" else draining
        news = (backend in members) is not there
        (members.add if there else members.discard)(backend)
        assert (known.reach if what == "reach" else known.drain)(backend, there) is news
    assert known.reached == frozenset(reached)
    assert known.draining == frozenset(draining)
    assert known.usable is usable
    assert usable == reached - draining


def test_what_a_router_begins_with() -> None:
    """A backend that drains from the start is reached, and may not be chosen."""
    known = Availability()
    known.begin({1, 2, 3}, {2, 4})
    assert known.usable == {1, 3}
    assert known.reached == {1, 2, 3}
