# SPDX-License-Identifier: Apache-2.0
"""When the kept number of flows is certainly wrong, and when it may be right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.usage_audit import Tally, UsageAudit, excess

COUNT = st.integers(0, 50)


@given(kept=COUNT, came=COUNT, went=COUNT, drift=st.integers(-20, 20), data=st.data())
def test_no_true_number_is_ever_called_wrong(
    kept: int, came: int, went: int, drift: int, data: st.DataObject
) -> None:
    """Whatever of that which came and went a walk has met; and a drift is not overstated."""
    went = min(went, kept + came)
    old_gone = data.draw(st.integers(0, min(went, kept)))
    stayed = kept - old_gone
    met = stayed + data.draw(st.integers(0, old_gone)) + data.draw(st.integers(0, came))
    before = Tally(kept + drift, 0)
    found = excess(before, met, Tally(before.opened + came, went))
    assert found == 0 or (found * drift > 0 and abs(found) <= abs(drift))


def test_a_quiet_table_is_exact() -> None:
    """Nothing comes or goes: the difference is the whole of it."""
    assert excess(Tally(9, 2), 5, Tally(9, 2)) == 2
    assert excess(Tally(9, 2), 8, Tally(9, 2)) == -1


def walk(audit: UsageAudit, kept: int, counted: int) -> dict[int, int]:
    """One walk of a quiet table."""
    tally = {0: Tally(kept, 0)}
    audit.begin(tally)
    audit.met({0: counted})
    return audit.end(tally)


def test_the_first_walk_is_believed_and_later_ones_twice() -> None:
    """A difference of a moment is none; one that stays is corrected by what both have."""
    audit = UsageAudit()
    assert walk(audit, 5, 4) == {0: 1}
    assert walk(audit, 5, 3) == {}
    assert walk(audit, 5, 4) == {0: 1}
    assert walk(audit, 5, 4) == {}
    assert walk(audit, 4, 5) == {}
    assert walk(audit, 5, 5) == {}


def test_flows_of_which_nothing_is_kept_are_met() -> None:
    """A service that was never counted is, once there are flows of it."""
    audit = UsageAudit()
    audit.begin({})
    audit.met({7: 2})
    assert audit.end({}) == {7: -2}
