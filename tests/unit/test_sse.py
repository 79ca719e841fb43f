# SPDX-License-Identifier: Apache-2.0
"""Event streams: the WHATWG rules, in any pieces, within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.whatwg_events import events_of
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.sse import MAX_EVENT_BYTES, SseReader

CASES = {
    "an event": (b"data: hello\n\n", [b"hello"]),
    "one space is taken off, no more": (b"data:  a\n\ndata:b\n\n", [b" a", b"b"]),
    "lines are joined": (b"data: a\ndata: b\ndata:\ndata: c\n\n", [b"a\nb\n\nc"]),
    "CR LF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed ends": (b"data: a\r\ndata: b\r\n\ndata: c\n\r", [b"a\nb", b"c"]),
    "CR LF CR LF are two lines, not four": (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
    "a comment": (b": ping\n\ndata: a\n\n:\n\n", [b"a"]),
    "a comment inside": (b"data: a\n: keep\ndata: b\n\n", [b"a\nb"]),
    "other fields": (b"event: x\nid: 7\nretry: 10\ndata: a\n\n", [b"a"]),
    "an event without data is none": (b"event: ping\n\n\n\n", []),
    "data without a colon": (b"data\n\n", [b""]),
    "data without a value": (b"data:\n\n", [b""]),
    "twice nothing": (b"data\ndata\n\n", [b"\n"]),
    "another field's name": (b"dataset: a\nDATA: b\ndata : c\n data: d\n\n", []),
    "a mark at the begin": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "a mark later on": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
    "half a mark": (b"\xef\xbbdata: a\n\ndata: b\n\n", [b"b"]),
    "what is not finished is dropped": (b"data: a\n\ndata: b\n", [b"a"]),
    "the last line has no end": (b"data: a\n\ndata: b", [b"a"]),
    "colons in a value": (b"data: a:b: c\n\n", [b"a:b: c"]),
    "bytes that are no UTF-8": (b"data: \xff\x00\xfe\n\n", [b"\xff\x00\xfe"]),
    "nothing": (b"", []),
}

# Pieces of what streams are made of, so that random ones meet all rules.
STREAMS = st.lists(
    st.sampled_from(
        [
            b"data",
            b":",
            b" ",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"a",
            b"\xef\xbb\xbf",
            b"event",
            b"\0",
        ]
    ),
    max_size=30,
).map(b"".join)


def bytewise(stream: bytes, reader: SseReader) -> Iterator[bytes]:
    """What comes out if each byte comes alone."""
    for at in range(len(stream)):
        yield from reader.feed(stream[at : at + 1])


@pytest.mark.parametrize(("stream", "events"), CASES.values(), ids=CASES)
def test_events_are_those_of_the_standard(stream: bytes, events: list[bytes]) -> None:
    """Whole and one byte at a time, and as a slow reading of the standard has it."""
    assert SseReader().feed(stream) == events
    assert list(bytewise(stream, SseReader())) == events
    assert events_of(stream) == events


@pytest.mark.parametrize(("stream", "events"), CASES.values(), ids=CASES)
def test_a_stream_that_is_cut_gives_the_first_events(stream: bytes, events: list[bytes]) -> None:
    """At every length: what comes out is a beginning of what the whole gives."""
    for length in range(len(stream)):
        found = SseReader().feed(stream[:length])
        assert found == events[: len(found)]


@given(STREAMS)
def test_any_stream_is_read_as_the_standard_has_it(stream: bytes) -> None:
    """Against a reader that follows the text of the standard, character by character."""
    assert SseReader().feed(stream) == events_of(stream)


@given(STREAMS | st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_make_no_difference(stream: bytes, cuts: list[int]) -> None:
    """Cut anywhere, empty pieces included."""
    reader = SseReader()
    found = []
    edges = [0, *sorted(cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        found += reader.feed(stream[start:end])
    assert found == SseReader().feed(stream)


def test_an_event_comes_out_with_its_last_byte() -> None:
    """A line that ends by CR does not wait for an LF that may never come."""
    reader = SseReader()
    assert reader.feed(b"data: a\r") == []
    assert reader.feed(b"\r") == [b"a"]
    assert reader.feed(b"\ndata: b\n") == []
    assert reader.feed(b"\n") == [b"b"]


TOO_LONG = {
    "a line that has no end": b"data: 789",
    "a line": b"data: 789\n",
    "a comment": b": 3456789\n",
    "an event": b"data: a\n" * 5,
}


@pytest.mark.parametrize("stream", TOO_LONG.values(), ids=TOO_LONG)
def test_what_is_too_long_is_an_error(stream: bytes) -> None:
    """What was whole before it still comes out, then every call raises."""
    whole, single = SseReader(max_bytes=8), SseReader(max_bytes=8)
    assert whole.feed(b"data: ok\n\n" + stream) == [b"ok"]
    found: list[bytes] = []
    with pytest.raises(MessageError, match="than 8 bytes") as raised:
        found.extend(bytewise(b"data: ok\n\n" + stream, single))
    assert found == [b"ok"]
    assert raised.value.status == 502
    for _ in range(2):
        with pytest.raises(MessageError, match="than 8 bytes"):
            whole.feed(b"data: a\n\n")


@given(STREAMS, st.integers(1, 12))
def test_a_bound_is_the_same_in_any_pieces(stream: bytes, bound: int) -> None:
    """The same events, and the same fault or none."""
    outcomes = []
    for step in (1, len(stream) or 1):
        reader = SseReader(max_bytes=bound)
        found: list[bytes] = []
        fault = ""
        try:
            for at in range(0, len(stream), step):
                found += reader.feed(stream[at : at + step])
            reader.feed(b"")
        except MessageError as error:
            fault = error.reason
        outcomes.append((found, fault))
    assert outcomes[0] == outcomes[1]


def test_a_line_in_small_pieces_costs_no_more_than_its_length() -> None:
    """Half a megabyte in single bytes: what was looked at is not looked at again."""
    reader = SseReader()
    for _ in range(MAX_EVENT_BYTES // 2):
        reader.feed(b"a")
    with pytest.raises(MessageError):
        reader.feed(b"a" * MAX_EVENT_BYTES)
