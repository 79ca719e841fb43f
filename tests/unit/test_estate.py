# SPDX-License-Identifier: Apache-2.0
"""What a gateway tells its successor of what it has counted, and what that makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xdp_router.daemon.gateway import estate as estate_module
from xdp_router.daemon.gateway.estate import Estate, hear, lasting, understood
from xdp_router.daemon.gateway.figures import BOUNDS_NS, Figures
from xdp_router.daemon.gateway.kept import Remembered
from xdp_router.daemon.gateway.page_told import COUNTED
from xdp_router.daemon.gateway.totals import merge

TIMES = {
    "bounds": list(BOUNDS_NS),
    "counts": [0] * len(BOUNDS_NS) + [1],
    "total": 10**11,
}


def test_what_workers_tell_is_understood() -> None:
    """All of it: a successor of the same version loses nothing."""
    figures = Figures()
    figures.count("requests", "web", "b", "200", by=3)
    figures.count("retries", "web")
    figures.time("ttfb", 5_000_000, "web", "b")
    told = json.loads(json.dumps(lasting(figures.plain())))
    assert understood(told) == told == figures.plain()


def test_gauges_go_with_their_gateway() -> None:
    """Only what grows is handed over, and of that only what the page has."""
    told: dict[str, Any] = {
        "connections": [[["web"], 1]],
        "connections_total": [[["web"], 2]],
        "arm_times": [[["web", "control"], {"spread": {"1": 1}}]],
    }
    assert lasting(told) == {"connections_total": [[["web"], 2]]}


@pytest.mark.parametrize(
    "told",
    [
        {"requests_by_moon_total": [[["web"], 1]]},  # a name that is not in the catalogue
        {"connections": [[["web"], 1]]},  # a gauge
        {"connections_total": [[["web", "b"], 1]]},  # another label
        {"connections_total": [[["web"], "1"]]},
        {"connections_total": [[["web"], -1]]},
        {"connections_total": [[["web"], True]]},
        {"connections_total": [[[1], 1]]},
        {"connections_total": [["web"], 1, [], None]},
        {"connections_total": [[["web"], TIMES]]},
        {"ttfb_seconds": [[["web", "b"], 3]]},
        {"ttfb_seconds": [[["web", "b"], {**TIMES, "bounds": [1, 2]}]]},
        {"ttfb_seconds": [[["web", "b"], {**TIMES, "counts": [1]}]]},
        {"ttfb_seconds": [[["web", "b"], {**TIMES, "total": None}]]},
        {"connections_total": 7},
        ["connections_total"],
        None,
    ],
)
def test_what_another_version_tells(told: Any) -> None:
    """What has no meaning here is dropped, and nothing else is lost by it."""
    assert not any(understood(told).values())
    if isinstance(told, dict):
        good = {"retries_total": [[["web"], 4]], "ttfb_seconds": [[["web", "b"], TIMES]]}
        both = {**good, **told, "worker_deaths_total": [[[], 1]]}
        if "ttfb_seconds" in told:
            both["ttfb_seconds"] = good["ttfb_seconds"] + told["ttfb_seconds"]
        found = understood(both)
        assert found["ttfb_seconds"] == good["ttfb_seconds"]
        assert found["retries_total"] == good["retries_total"]
        # What was not told begins at zero.
        own = {"hedges_total": [[["web", "b"], 1]], "worker_deaths_total": [[[], 2]]}
        whole = merge((found, own))
        assert (whole["hedges_total"], whole["worker_deaths_total"]) == (
            [[["web", "b"], 1]],
            [[[], 3]],
        )


def test_all_is_told_and_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures each time, records once, in lines that are not too long."""
    monkeypatch.setattr(estate_module, "RECORDS_AT_ONCE", 2)
    figures = {"retries_total": [[["web"], 4]]}
    ours, theirs = Remembered(10), Remembered(4)
    estate = Estate(lambda: figures, ours)
    ours.add(7, [(f"r-{at}", float(at), json.dumps({"id": f"r-{at}"})) for at in range(5)])
    lines = [json.loads(json.dumps(each)) for each in estate.lines()]
    assert [len(each.get("records", ())) for each in lines] == [0, 2, 2, 1]
    heard = [hear(each, theirs) for each in lines]
    assert heard == [figures, None, None, None]
    assert [each["id"] for each in theirs.newest(9)] == ["r-4", "r-3", "r-2", "r-1"]
    figures["retries_total"] = [[["web"], 5]]
    ours.add(8, [("s", 9.0, "{}")])
    assert list(estate.lines()) == [{"figures": figures}, {"records": [[8, "s", 9.0, "{}"]]}]


def test_what_is_counted_no_more() -> None:
    """Stays, though who counted it has forgotten it by then."""
    figures = {"scrapes_total": [[["web", "b", "ok"], 4]], "retries_total": [[["web"], 1]]}
    estate = Estate(lambda: figures, Remembered(0))
    estate.settle(COUNTED)
    figures = {"scrapes_total": [], "retries_total": [[["web"], 2]]}
    assert estate.figures()["figures"] == {
        "scrapes_total": [[["web", "b", "ok"], 4]],
        "retries_total": [[["web"], 2]],
    }


def test_records_of_another_version() -> None:
    """Are left out; the figures beside them are not."""
    remembered = Remembered(9)
    rows = [[1, "r", 1.0], [1, "r", 1.0, {}], ["1", "r", 1.0, "{}"], "r", [1, "s", 2, "{}"]]
    assert hear({"records": rows, "figures": {}}, remembered) == {}
    assert hear({"records": 5, "yours": True}, remembered) is None
    assert [row[1] for _, row in remembered.since(-1)] == ["s"]
