# SPDX-License-Identifier: Apache-2.0
"""Pages of metrics: any pieces of them say the same, and only what is wanted is read."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.measure.metrics_page import KEPT_MAX, LINE_MAX, MetricsPage, PageError

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


@given(st.lists(st.integers(0, len(PAGE)), max_size=6))
def test_a_page_may_come_in_any_pieces(cuts: list[int]) -> None:
    """What is wanted is read, and a bad line of something else does no harm."""
    page = MetricsPage(WANTED)
    ends = [0, *sorted(cuts), len(PAGE)]
    for begin, end in itertools.pairwise(ends):
        page.feed(PAGE[begin:end])
    assert page.samples() == SAID


def test_the_last_line_may_have_no_end() -> None:
    """It counts as well."""
    page = MetricsPage(["a"])
    page.feed(b'a 1\na{b="c"} 2')
    assert page.samples() == {"a": [({}, 1.0), ({"b": "c"}, 2.0)]}
    assert MetricsPage(["a"]).samples() == {}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a one\n", "not in the text format"),
        (b'a{b="\xff"} 1\n', "not in the text format"),
        (b"x" * (LINE_MAX + 1), "a line of more than 16384 bytes"),
        (b"a 1\n" * (KEPT_MAX + 1), "more than 2000 samples"),
    ],
)
def test_what_is_no_page_is_refused(data: bytes, words: str) -> None:
    """With the reason, whatever the parser makes of it."""
    page = MetricsPage(["a"])

    def read() -> None:
        page.feed(data)
        page.samples()

    with pytest.raises(PageError, match=words):
        read()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_page_or_an_error(data: bytes) -> None:
    """Never another exception."""
    page = MetricsPage(["a", "b"])
    try:
        page.feed(b"a" + data)
        page.samples()
    except PageError:
        pass
