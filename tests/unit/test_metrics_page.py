# SPDX-License-Identifier: Apache-2.0
"""Pages of metrics: any pieces of them say the same, and only what is wanted is read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.measure.metrics_page import (
    KEPT_BYTES_MAX,
    KEPT_MAX,
    LINE_MAX,
    PARSED_BYTES,
    PARSED_LINES,
    WANTED_MAX,
    MetricsPage,
    PageError,
)

PAGE = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a b\\"c"} 3.0
vllm:num_requests_waiting{engine="1",model_name="x"} 1
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9
# TYPE t_seconds histogram
t_seconds_bucket{le="0.1"} 4
t_seconds_sum 0.5
t_seconds_count 5 1700000000000
plain\t7
broken{{{ 7"""
WANTED = ("vllm:num_requests_waiting", "t_seconds_sum", "t_seconds_count", "plain")
SAID = {
    "vllm:num_requests_waiting": [
        ({"engine": "0", "model_name": 'a b"c'}, 3.0),
        ({"engine": "1", "model_name": "x"}, 1.0),
    ],
    "t_seconds_sum": [({}, 0.5)],
    "t_seconds_count": [({}, 5.0)],
    "plain": [({}, 7.0)],
}


Said = dict[str, list[tuple[Mapping[str, str], float]]]


def parsed(page: MetricsPage) -> Said:
    """What it says when all of it is parsed."""
    while page.parse():
        pass
    return page.samples


@given(st.lists(st.integers(0, len(PAGE)), max_size=6))
def test_a_page_may_come_in_any_pieces(cuts: list[int]) -> None:
    """What is wanted is read, and a bad line of something else does no harm."""
    page = MetricsPage(WANTED)
    ends = [0, *sorted(cuts), len(PAGE)]
    for begin, end in itertools.pairwise(ends):
        page.feed(PAGE[begin:end])
    assert parsed(page) == SAID


def test_the_last_line_may_have_no_end() -> None:
    """It counts as well."""
    page = MetricsPage(["a"])
    page.feed(b'a 1\na{b="c"} 2')
    assert parsed(page) == {"a": [({}, 1.0), ({"b": "c"}, 2.0)]}
    assert parsed(MetricsPage(["a"])) == {}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a 1\na one\n", "not in the text format of Prometheus: 'a one'$"),
        (b'a{b="\xff"} 1\n', "of Prometheus: 'a{b=\"\ufffd\"} 1'$"),
        (b"x" * (LINE_MAX + 1), "a line of more than 16384 bytes"),
        (b"x" * (LINE_MAX + 1) + b"\n", "a line of more than 16384 bytes"),
        (b'a{b="%s"} 1\n' % (b"c" * WANTED_MAX), "a line of more than 4096 bytes for a"),
        (b"a 1\n" * (KEPT_MAX + 1), "more than 2000 samples"),
        (b'a{b="%s"} 1\n' % (b"c" * 1000) * (KEPT_BYTES_MAX // 1000), "or 256 KiB, of the"),
        (b"a 1" + b"0" * 400, "of Prometheus: 'a 10{77}'$"),
        (b"a 1 1" + b"0" * 400, "not in the text format"),
    ],
)
def test_what_is_no_page_is_refused(data: bytes, words: str) -> None:
    """With the reason, whatever the parser makes of it."""
    page = MetricsPage(["a"])

    def read() -> None:
        page.feed(data)
        parsed(page)

    with pytest.raises(PageError, match=words):
        read()


@pytest.mark.parametrize(
    ("line", "count", "most"),
    [(b"a 1", 1000, PARSED_LINES), (b'a{b="%s"} 1' % (b"c" * 900), 100, PARSED_BYTES // 900)],
)
def test_a_page_is_parsed_a_few_lines_at_a_time(line: bytes, count: int, most: int) -> None:
    """By their number and by their length: nobody has to wait for all of them."""
    page = MetricsPage(["a"])
    page.feed(b"\n".join([line] * count))
    before, more = 0, True
    while more:
        more = page.parse()
        assert 0 < len(page.samples["a"]) - before <= most
        before = len(page.samples["a"])
    assert before == count


def test_a_line_that_is_not_wanted_may_be_long() -> None:
    """Longer than one that is parsed."""
    page = MetricsPage(["a"])
    page.feed(b'info{b="%s"} 1\na 2\n' % (b"c" * WANTED_MAX))
    assert parsed(page) == {"a": [({}, 2.0)]}


def test_numbers_are_of_one_kind() -> None:
    """However they are written."""
    page = MetricsPage(["a"])
    page.feed(b"a 1\na 1e3\na +Inf\n")
    values = [value for _, value in parsed(page)["a"]]
    assert values == [1, 1000, float("inf")]
    assert {type(value) for value in values} == {float}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_page_or_an_error(data: bytes) -> None:
    """Never another exception."""
    page = MetricsPage(["a", "b"])
    try:
        page.feed(b"a" + data)
        parsed(page)
    except PageError:
        pass
