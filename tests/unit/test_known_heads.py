# SPDX-License-Identifier: Apache-2.0
"""Heads that are known: the same as if they were read anew, whatever came before."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xdp_router.gateway import known_heads
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_head import HeadLimits, HeadReader, RequestHead, read_request
from xdp_router.gateway.known_heads import BYTES_IN_ALL, BYTES_MOST, MOST, KnownHeads
from xdp_router.gateway.traits import read_traits

LIMITS = HeadLimits()
TRAITS = partial(read_traits, wanted=frozenset((b"x-canary",)), proto=b"http")
LINES = (
    b"Host: a.example",
    b"Host: b.example",
    b"Content-Length: 5",
    b"Content-Length: 1",
    b"Content-Length: 0",
    b"Content-Length: 00",
    b"Content-Length: 0031",
    b"Content-Length: 5 ",
    b"Content-Length:  5",
    b"Content-Length: 5, 5",
    b"Content-Length: +5",
    b"Content-Length: 1234567890123456789",
    b"Content-Length: ",
    b"content-length: 7",
    b"Transfer-Encoding: chunked",
    b"Connection: upgrade",
    b"Connection: content-length",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"X-Canary: 1",
    b"X-Note: Content-Length: 9",
)


def new(**options: bool) -> KnownHeads:
    return KnownHeads(LIMITS, TRAITS, **options)


def raw_of(*lines: bytes, first: bytes = b"POST /a HTTP/1.1") -> bytes:
    return b"\r\n".join((first, *lines, b"", b""))


def outcome(read: object, raw: bytes) -> object:
    try:
        return read(raw)  # type: ignore[operator] # of either kind
    except MessageError as error:
        return error.status, error.reason


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((b"POST /a HTTP/1.1", b"GET /a HTTP/1.0", b"TRACE / HTTP/1.1")),
            st.lists(st.sampled_from(LINES), max_size=5),
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_as_if_it_were_read_anew(
    heads: list[tuple[bytes, list[bytes]]], of_any_length: bool
) -> None:
    """Whatever came before, a request means what it means alone."""
    known = new(of_any_length=of_any_length)
    for first, lines in heads:
        raw = raw_of(*lines, first=first)
        expected = outcome(lambda each: read_request(each, LIMITS), raw)
        for _ in range(2):
            found = outcome(known.request, raw)
            assert found == expected
            if isinstance(found, RequestHead):
                assert found.traits == TRAITS(found)


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same head again, or with another length, costs a look-up."""
    read: list[bytes] = []

    def count(raw: bytes, limits: HeadLimits) -> RequestHead:
        read.append(raw)
        return read_request(raw, limits)

    monkeypatch.setattr(known_heads, "read_request", count)
    known = new()
    for size in (5, 1, 5, 77):
        raw = raw_of(b"Host: a", b"Content-Length: %d" % size)
        assert (known.request(raw).length, known.request(raw).raw) == (size, raw)
    plain = raw_of(b"Host: a", first=b"GET / HTTP/1.1")
    assert known.request(plain) is known.request(plain)
    assert len(read) == 2
    none = raw_of(b"Host: a", b"Content-Length: 0")
    assert known.request(none).length == 0


def test_a_length_that_decides_is_looked_at() -> None:
    """Where a route looks at Content-Length, its number is no detail."""
    known = KnownHeads(
        LIMITS,
        partial(read_traits, wanted=frozenset((b"content-length",)), proto=b"http"),
        of_any_length=False,
    )
    for size in (b"5", b"6", b"5"):
        traits = known.request(raw_of(b"Host: a", b"Content-Length: " + size)).traits
        assert traits is not None
        assert traits.headers == {"content-length": size.decode()}


def test_what_is_refused_or_long_is_not_kept() -> None:
    """Neither takes memory."""
    known = new()
    for raw in (raw_of(), raw_of(b"Host: a", b"X-A: " + b"a" * BYTES_MOST)):
        outcome(known.request, raw)
    assert len(known) == 0


def test_few_are_kept_and_those_that_come_again_stay() -> None:
    """Floods of others push out only who does not come again."""
    known = new()
    mine = raw_of(b"Host: mine")
    head = known.request(mine)
    for number in range(3 * MOST):
        known.request(raw_of(b"Host: a%d" % number))
        if number % 100 == 0:
            assert known.request(mine) is head
        assert len(known) <= 2 * MOST
    assert known.request(mine) is head
    for number in range(2 * MOST):
        known.request(raw_of(b"Host: b%d" % number))
    assert known.request(mine) is not head


def test_long_heads_are_fewer() -> None:
    """Their bytes are bounded as well, so memory is filled by nobody."""
    known, pad = new(), b"X-A: " + b"a" * (BYTES_MOST - 100)
    for number in range(2 * MOST):
        known.request(raw_of(b"Host: a%d" % number, pad))
    assert 100 < len(known) <= 2 * (BYTES_IN_ALL // len(pad) + 1)


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_reader_takes_known_heads_off_its_buffer(cut: int) -> None:
    """In one piece or in two, with what follows left, and an empty line before them."""
    reader = HeadReader(LIMITS, new())
    raw = raw_of(b"Host: a", first=b"GET /a HTTP/1.1")
    read = []
    for _ in range(3):
        buffer = bytearray(b"\r\n" + raw + raw[:cut])
        read.append(reader.request(buffer))
        assert buffer == raw[:cut]
        assert reader.request(buffer) is None
        buffer += raw[cut:] + b"next"
        read.append(reader.request(buffer))
        assert buffer == b"next"
    assert read == [read_request(raw, LIMITS)] * 6
