# SPDX-License-Identifier: Apache-2.0
"""Who may be chosen, from who is reached and who drains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.availability import Availability

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reach", "drain", "leave", "forget"]), st.integers(1, 4), st.booleans()
    )
)


@given(STEPS)
def test_who_is_reached_and_neither_drains_nor_is_ill(
    steps: list[tuple[str, int, bool]],
) -> None:
    """After whatever happens; and the set that others look at stays the same object."""
    known = Availability()
    usable = known.usable
    reached: set[int] = set()
    draining: set[int] = set()
    left_out: set[int] = set()
    for what, backend, there in steps:
        if what == "forget":
            known.forget(backend)
            reached.discard(backend)
            draining.discard(backend)
            left_out.discard(backend)
            continue
        members = {"reach": reached, "drain": draining, "leave": left_out}[what]
        news = (backend in members) is not there
        (members.add if there else members.discard)(backend)
        change = {"reach": known.reach, "drain": known.drain, "leave": known.leave_out}[what]
        assert change(backend, there) is news
        assert known.is_left_out(backend) is (backend in left_out)
        assert known.is_up(backend) is (backend in reached - left_out)
    assert known.reached == frozenset(reached)
    assert known.draining == frozenset(draining)
    assert known.usable is usable
    assert usable == reached - draining - left_out


def test_what_a_router_begins_with() -> None:
    """A backend that drains from the start is reached, and may not be chosen."""
    known = Availability()
    known.begin({1, 2, 3}, {2, 4})
    assert known.usable == {1, 3}
    assert known.reached == {1, 2, 3}
