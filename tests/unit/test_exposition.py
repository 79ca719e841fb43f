# SPDX-License-Identifier: Apache-2.0
"""The text of metrics: whole, escaped, and in pieces that take no time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from xdp_router.measure.catalogue import Kind, Metric
from xdp_router.measure.exposition import SAMPLES_AT_ONCE, STEP_NS, Sample, pieces
from xdp_router.measure.histogram import Buckets

HITS = Metric("hits_total", Kind.COUNTER, ("who",), "how many")
LEVEL = Metric("level", Kind.GAUGE, (), "how high")
TIMES = Metric("times_seconds", Kind.HISTOGRAM, ("who",), "how long")


def test_the_text_is_what_a_parser_reads() -> None:
    """Names with quotes and line ends, counters, gauges, histograms in seconds."""
    times = Buckets((10_000, 1_000_000))
    for each in (5_000, 500_000, 5_000_000):
        times.add(each)
    text = b"".join(
        pieces([(HITS, [(('a"\n\\',), 3.0)]), (LEVEL, [((), 1.5)]), (TIMES, [(("x",), times)])])
    ).decode()
    found = {
        (sample.name, *sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found == {
        ("xdp_router_hits_total", ("who", 'a"\n\\')): 3.0,
        ("xdp_router_level",): 1.5,
        ("xdp_router_times_seconds_bucket", ("le", "1e-05"), ("who", "x")): 1.0,
        ("xdp_router_times_seconds_bucket", ("le", "0.001"), ("who", "x")): 2.0,
        ("xdp_router_times_seconds_bucket", ("le", "+Inf"), ("who", "x")): 3.0,
        ("xdp_router_times_seconds_count", ("who", "x")): 3.0,
        ("xdp_router_times_seconds_sum", ("who", "x")): 0.005505,
    }


def test_a_large_family_comes_in_pieces_with_one_head() -> None:
    """No piece has more lines than one step has time for; samples are read as they are needed."""
    asked = 0

    def samples() -> Iterator[Sample]:
        nonlocal asked
        for number in range(10 * SAMPLES_AT_ONCE):
            asked += 1
            yield (str(number),), 1.0

    text = []
    for piece in pieces([(HITS, samples())]):
        text.append(piece)
        assert asked <= len(text) * SAMPLES_AT_ONCE
    assert len(text) == 10
    assert max(piece.count(b"\n") for piece in text) <= SAMPLES_AT_ONCE + 2
    assert b"".join(text).count(b"# TYPE") == 1


def test_work_without_a_sample_ends_a_piece_as_well() -> None:
    """Backends of which none was ever asked, or slow values: other work has its turn."""
    nothing: list[Sample | None] = [None] * (5 * SAMPLES_AT_ONCE)
    assert list(pieces([(HITS, nothing)])) == [b""] * 5
    clock = itertools.count(0, STEP_NS)
    slow = [((str(number),), 1.0) for number in range(20)]
    assert len(list(pieces([(HITS, slow)], lambda: next(clock)))) == 10


def test_a_metric_without_a_value_is_left_out() -> None:
    """Rather than a head without anything below."""
    assert list(pieces([(HITS, []), (LEVEL, [])])) == []
