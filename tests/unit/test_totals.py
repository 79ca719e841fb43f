# SPDX-License-Identifier: Apache-2.0
"""Sums over workers: counters never go back, what is passing goes with its worker."""

from __future__ import annotations

from typing import Any

from xdp_router.daemon.gateway.totals import Figures, Totals, histogram_of, merge, spread_of


def figures(count: int, open_now: int, *times: int) -> Figures:
    """Of one worker."""
    value: dict[str, Any] = {"bounds": [1, 2], "counts": list(times), "total": sum(times)}
    return {
        "requests_total": [[["web", "200"], count], [["web", "500"], 1]],
        "connections": [[["web"], open_now]],
        "ttfb_seconds": [[["web"], value]],
    }


def test_sums() -> None:
    """Value by value, histograms bucket by bucket."""
    both = merge([figures(3, 1, 1, 0, 2), figures(4, 2, 0, 1, 1)])
    assert both["requests_total"] == [[["web", "200"], 7], [["web", "500"], 2]]
    assert both["connections"] == [[["web"], 3]]
    ((_, value),) = both["ttfb_seconds"]
    assert value == {"bounds": [1, 2], "counts": [1, 1, 3], "total": 5}
    assert merge([]) == {}


def test_workers_that_have_ended() -> None:
    """What they had counted stays, what they had open does not; the parts are left as they are."""
    totals = Totals(["connections"])
    gone, living = figures(3, 1, 1, 0, 0), figures(4, 2, 0, 1, 0)
    totals.keep(gone)
    totals.keep(gone)
    assert totals.sum([living])["requests_total"][0] == [["web", "200"], 10]
    assert totals.sum([living])["connections"] == [[["web"], 2]]
    assert totals.sum([living])["ttfb_seconds"][0][1]["counts"] == [2, 1, 0]
    assert totals.sum([]).keys() == {"requests_total", "ttfb_seconds"}
    assert (gone, living) == (figures(3, 1, 1, 0, 0), figures(4, 2, 0, 1, 0))


def test_other_bounds() -> None:
    """Of another version: nothing is added up that does not fit."""
    other = figures(1, 0, 1, 0, 0)
    other["ttfb_seconds"][0][1]["bounds"] = [1, 3]
    assert merge([figures(1, 0, 5, 0, 0), other])["ttfb_seconds"][0][1]["counts"] == [1, 0, 0]


def test_spreads_add_up() -> None:
    """Bucket by bucket; nobody's own is changed by it."""
    one = {"times": [[["a"], {"spread": {"3": 1, "9": 2}}]]}
    other = {"times": [[["a"], {"spread": {"9": 5, "11": 1}}], [["b"], {"spread": {"1": 1}}]]}
    found = merge([one, other])
    assert found == {
        "times": [[["a"], {"spread": {"3": 1, "9": 7, "11": 1}}], [["b"], {"spread": {"1": 1}}]]
    }
    assert one["times"][0][1] == {"spread": {"3": 1, "9": 2}}
    times = histogram_of(found["times"][0][1])
    assert (times.count, spread_of(times)["spread"]["9"]) == (9, 7)


def test_some_figures_only() -> None:
    """Those that are asked for."""
    totals = Totals(())
    totals.keep({"a": [[[], 1]], "b": [[[], 1]]})
    assert totals.sum([{"a": [[[], 2]], "c": [[[], 9]]}], ("a", "d")) == {"a": [[[], 3]]}
