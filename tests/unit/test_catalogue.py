# SPDX-License-Identifier: Apache-2.0
"""Names of metrics keep to the conventions, and the documentation has every one of them."""

from __future__ import annotations

import re
from pathlib import Path

from xdp_router.core import abi
from xdp_router.measure.catalogue import METRICS, Kind, xdp_counter
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_names_are_well_formed() -> None:
    """Counters, and they alone, end in _total; times are in seconds; no label is reserved."""
    for metric in [
        *METRICS.values(),
        *GATEWAY_METRICS.values(),
        *map(xdp_counter, abi.Counter.__members__),
    ]:
        assert re.fullmatch(r"xdp_router_[a-z0-9_]+", metric.full_name)
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
        assert metric.help
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith("_seconds")


def test_the_documentation_has_each_metric_with_its_labels() -> None:
    """docs/metrics.md: a row for each, and for no other; kind and labels are the real ones."""
    told = {}
    for line in DOCS.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`xdp_router_"):
            told[cells[0].strip("`")] = (cells[1], tuple(re.findall(r"`([a-z]+)`", cells[2])))
    wanted = {each.full_name: (each.kind.value, each.labels) for each in METRICS.values()}
    wanted |= {each.full_name: (each.kind.value, each.labels) for each in GATEWAY_METRICS.values()}
    wanted["xdp_router_xdp_COUNTER_total"] = ("counter", ())
    assert told == wanted
