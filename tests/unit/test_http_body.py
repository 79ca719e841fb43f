# SPDX-License-Identifier: Apache-2.0
"""Where bodies end, in pieces of all sizes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import fuzz_http_body
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_body import EXTENSION_BYTES, TRAILER_BYTES, BodyReader
from xdp_router.gateway.http_head import Framing

CHUNKS = b"5\r\nhello\r\n1;a=b\r\n \r\n00A\r\n0123\r\n6789\r\n0\r\nX: y\r\n\r\n"
CONTENT = b"hello 0123\r\n6789"


def feed_all(body: BodyReader, data: bytes, cuts: tuple[int, ...] = ()) -> tuple[int, bytes]:
    """Feed data cut at these places; return how much of it was the body, and its content."""
    content = b""
    used = 0
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        count = body.feed(data[start:end])
        content += b"".join(body.payload)
        used += count
        if body.done:
            break
    return used, content


def test_no_body_takes_nothing() -> None:
    """Framing NONE and a length of 0 are done before anything came."""
    for body in (BodyReader(Framing.NONE), BodyReader(Framing.LENGTH, 0)):
        assert body.done
        assert body.feed(b"GET /") == 0
        assert body.feed(b"xGET /", 1) == 1
        assert body.end_of_stream()


def test_a_length_is_counted() -> None:
    """The last byte ends it; what follows is left; a stream that ends before is cut short."""
    body = BodyReader(Framing.LENGTH, 5, decode=True)
    assert body.feed(b"he") == 2
    assert body.payload == [b"he"]
    assert not body.end_of_stream()
    assert body.feed(memoryview(b"__lloGET"), 2) == 5
    assert body.payload == [b"llo"]
    assert body.done
    assert body.feed(b"GET", 1) == 1
    assert body.payload == []


def test_a_body_that_ends_with_the_stream() -> None:
    """All that comes belongs to it, and it is whole when the peer closes."""
    for framing in (Framing.CLOSE, Framing.TUNNEL):
        body = BodyReader(framing, decode=True)
        assert body.feed(b"xabc", 1) == 4
        assert body.payload == [b"abc"]
        assert not body.done
        assert body.end_of_stream()
        assert body.done


def test_without_decode_nothing_is_copied() -> None:
    """Forwarding needs only the index."""
    for kind, data in ((Framing.CHUNKED, CHUNKS), (Framing.LENGTH, CONTENT)):
        body = BodyReader(kind, len(CONTENT))
        assert body.feed(data) == len(data)
        assert body.payload == []
        assert body.done


def test_chunks_cut_in_two_and_three_at_every_place() -> None:
    """Content and end are the same however the bytes come; what follows is not touched."""
    stream = CHUNKS + b"GET /"
    places = range(1, len(CHUNKS))
    for cuts in [(), *((at,) for at in places), *combinations(places, 2)]:
        body = BodyReader(Framing.CHUNKED, decode=True)
        assert feed_all(body, stream, cuts) == (len(CHUNKS), CONTENT)
        assert body.done


def test_chunks_one_byte_at_a_time_in_each_type() -> None:
    """bytes, bytearray and memoryview are read alike."""
    for kind in (bytes, bytearray, memoryview):
        body = BodyReader(Framing.CHUNKED, decode=True)
        content = b""
        assert body.feed(kind(b"GET" + CHUNKS + b"GET"), 3) == 3 + len(CHUNKS)
        assert b"".join(body.payload) == CONTENT
        body = BodyReader(Framing.CHUNKED, decode=True)
        for at in range(len(CHUNKS)):
            assert not body.done
            assert body.feed(kind(CHUNKS[at : at + 1])) == 1
            content += b"".join(body.payload)
        assert body.done
        assert content == CONTENT


def test_truncated_chunks_are_not_whole() -> None:
    """A stream that ends before the last CRLF has lost something, at every length."""
    for size in range(len(CHUNKS)):
        body = BodyReader(Framing.CHUNKED)
        assert body.feed(CHUNKS[:size]) == size
        assert not body.done
        assert not body.end_of_stream()


def test_all_short_streams_end_the_same_however_cut() -> None:
    """Every string of up to five bytes of the alphabet of chunks, whole and byte by byte."""
    alphabet = b"0a;\r\nX"
    streams = [b""]
    for _ in range(5):
        streams = [begun + bytes([code]) for begun in streams for code in alphabet]
        for stream in streams:
            for prefix in (b"", b"1\r\n!", b"0\r\n"):
                fuzz_http_body.check(b"\0" + prefix + stream)


def test_bounds_of_what_is_not_content() -> None:
    """Extensions and trailers up to the bound pass; one byte more is refused."""
    line = b"1;" + b"e" * 255 + b"\r\nx\r\n"
    fits = EXTENSION_BYTES // 256
    body = BodyReader(Framing.CHUNKED)
    assert body.feed(line * fits) == len(line) * fits
    with pytest.raises(MessageError, match="extensions"):
        body.feed(b"1;\r\n")
    with pytest.raises(MessageError, match="chunk"):
        BodyReader(Framing.CHUNKED).feed(b"1;" + b"e" * 256 + b"\r\n")
    trailer = b"X: " + b"t" * (TRAILER_BYTES - 7) + b"\r\n"
    body = BodyReader(Framing.CHUNKED)
    assert body.feed(b"0\r\n" + trailer + b"\r\n") == len(trailer) + 5
    assert body.done
    with pytest.raises(MessageError, match="trailers"):
        BodyReader(Framing.CHUNKED).feed(b"0\r\nX" + trailer + b"\r\n")
    with pytest.raises(MessageError, match="trailers"):
        BodyReader(Framing.CHUNKED).feed(b"0\r\n" + b"x" * (TRAILER_BYTES + 1))


def test_an_error_has_the_status_of_its_side_and_stays() -> None:
    """400 for a client, 502 for a backend; nothing is read after it."""
    for status in (400, 502):
        for wrong in (b"x", b"5\r\nhelloX", b"0\r\nHost: b\r\n", b"0\r\nX:\n"):
            body = BodyReader(Framing.CHUNKED, status=status)
            for data in (wrong, b"\r\n", b"0\r\n\r\n"):
                with pytest.raises(MessageError) as caught:
                    body.feed(data)
                assert caught.value.status == status
            assert not body.done
            assert not body.end_of_stream()


def test_a_wrong_byte_is_known_when_it_comes() -> None:
    """What was fed before it is all that can have been sent on: no line end of another kind."""
    for begun, wrong in (
        (b"", b"\n"),
        (b"5", b"\n"),
        (b"5\r", b"x"),
        (b"5;a", b"\n"),
        (b"5;a", b"\0"),
        (b"5\r\nhello", b"\n"),
        (b"5\r\nhello\r", b"\r"),
        (b"0\r\n", b"\n"),
        (b"0\r\nX: y", b"\n"),
        (b"0\r\nX: y\r", b"z"),
    ):
        body = BodyReader(Framing.CHUNKED)
        assert body.feed(begun) == len(begun)
        with pytest.raises(MessageError):
            body.feed(wrong)


@settings(max_examples=200)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    st.lists(st.integers(0, 500), max_size=10),
    st.binary(max_size=10),
)
def test_what_is_chunked_is_unchunked(
    parts: list[bytes], places: list[int], follows: bytes
) -> None:
    """Any content in any chunks, cut at any places, comes out and ends where it was ended."""
    stream = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    cuts = tuple(sorted({at for at in places if 0 < at < len(stream + follows)}))
    body = BodyReader(Framing.CHUNKED, decode=True)
    assert feed_all(body, stream + follows, cuts) == (len(stream), b"".join(parts))
    assert body.done


PIECES = (
    b"0",
    b"5",
    b"a",
    b"\r\n",
    b"\r",
    b"\n",
    b";",
    b"hello",
    b"X: y",
    b":",
    b" ",
    b"\0",
    b"f" * 15,
)


@settings(max_examples=300)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=2)), max_size=16))
def test_the_end_does_not_depend_on_the_pieces(parts: list[bytes]) -> None:
    """The fuzz target's invariant over streams made of what chunks are made of."""
    for kind in range(4):
        fuzz_http_body.check(bytes([kind + 16]) + b"".join(parts))
