# SPDX-License-Identifier: Apache-2.0
"""Heads of answers that are known: the same as if they were read anew, whatever came before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xdp_router.gateway import known_answers
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_forward import response_to_client
from xdp_router.gateway.http_head import HeadLimits, ResponseHead, read_response
from xdp_router.gateway.known_answers import BYTES_MOST, MOST, KnownAnswers, read_answer_traits

LIMITS = HeadLimits()
FIRST = (b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 101 Go", b"HTTP/1.1 304 No", b"HTTP/2")
LINES = (
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: upgrade",
    b"Upgrade: websocket",
    b"Content-Type: Text/Event-Stream; charset=utf-8",
    b"Content-Encoding: gzip",
    b"Content-Encoding: Identity",
    b"X-Request-ID: 7",
    b"Keep-Alive: timeout=5",
)


def raw_of(*lines: bytes, first: bytes = FIRST[0]) -> bytes:
    return b"\r\n".join((first, *lines, b"", b""))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FIRST),
            st.lists(st.sampled_from(LINES), max_size=4),
            st.sampled_from((b"GET", b"POST", b"HEAD")),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
    st.sampled_from((10, 11)),
)
def test_as_if_it_were_read_anew(
    answers: list[tuple[bytes, list[bytes], bytes, bool]], close: bool, version: int
) -> None:
    """Whatever came before, an answer means what it means alone."""
    known = KnownAnswers(LIMITS)
    for first, lines, method, upgrade in answers * 2:
        raw = raw_of(*lines, first=first)
        expected: ResponseHead | None = None
        try:
            expected = read_response(raw, method, LIMITS, upgrade=upgrade)
        except MessageError as error:
            refused = error.reason
        if expected is None:
            with pytest.raises(MessageError, match=refused):
                known.response(raw, method, upgrade=upgrade)
            continue
        head = known.response(raw, method, upgrade=upgrade)
        assert head == expected
        assert head.traits == read_answer_traits(expected)
        sent = [
            response_to_client(each, close=close, extra=[(b"A", b"b")], client_version=version)
            for each in (head, expected)
        ]
        assert sent[0] == sent[1]


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same head again costs a look-up."""
    read: list[bytes] = []

    def count(raw: bytes, method: bytes, limits: HeadLimits, *, upgrade: bool) -> ResponseHead:
        read.append(method)
        return read_response(raw, method, limits, upgrade=upgrade)

    monkeypatch.setattr(known_answers, "read_response", count)
    known = KnownAnswers(LIMITS)
    raw = raw_of(b"Content-Length: 5")
    for method in (b"GET", b"POST", b"HEAD", b"GET", b"HEAD"):
        assert known.response(raw, method, upgrade=False).length == (method != b"HEAD") * 5
    assert read == [b"GET", b"HEAD", b"HEAD"]


def test_few_are_kept_and_no_long_ones() -> None:
    """Memory is bounded, whatever backends say."""
    known = KnownAnswers(LIMITS)
    known.response(raw_of(b"A: " + b"a" * BYTES_MOST), b"GET", upgrade=False)
    assert len(known) == 0
    for number in range(3 * MOST):
        known.response(raw_of(b"Date: %d" % number), b"GET", upgrade=False)
        assert len(known) <= 2 * MOST
