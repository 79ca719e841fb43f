# SPDX-License-Identifier: Apache-2.0
"""A request's body on its way."""

from __future__ import annotations

import pytest

from xdp_router.daemon.gateway.request_body import REPLAY_MOST, RequestBody
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_head import HeadLimits, HeadReader, RequestHead


def head(lines: str = "") -> RequestHead:
    """Of a POST with these header lines."""
    buffer = bytearray(f"POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())
    found = HeadReader(HeadLimits()).request(buffer)
    assert found is not None
    return found


def test_it_ends_where_it_says() -> None:
    """What follows belongs to the next request; all of it is kept."""
    body = RequestBody(head("Content-Length: 5\r\n"), 0, keep_all=False)
    assert body.feed(b"xxabc", 2) == b"abc"
    wholes = [body.is_whole]
    assert body.feed(b"deGET", 0) == b"de"
    wholes.append(body.is_whole)
    assert wholes == [False, True]
    assert (bytes(body.kept), body.size, body.content()) == (b"abcde", 5, b"abcde")


def test_without_a_body_it_is_whole_at_once() -> None:
    """As of a GET."""
    body = RequestBody(head(), 0, keep_all=True)
    assert body.is_whole
    assert body.feed(b"GET", 0) == b""


def test_chunks_are_kept_as_they_came_and_read_without() -> None:
    """What is sent on is what came; what is looked into is the content."""
    body = RequestBody(head("Transfer-Encoding: chunked\r\n"), 100, keep_all=True)
    raw = b"3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n"
    for at in range(len(raw)):
        body.feed(raw[at : at + 1], 0)
    assert body.is_whole
    assert bytes(body.kept) == raw
    assert body.content() == b"abcde"


@pytest.mark.parametrize("lines", ["Content-Length: 101\r\n", "Content-Length: 99999999\r\n"])
def test_a_length_beyond_the_limit_is_refused_at_once(lines: str) -> None:
    """Before any of it is read."""
    with pytest.raises(MessageError, match="100 bytes") as error:
        RequestBody(head(lines), 100, keep_all=True)
    assert error.value.status == 413


def test_chunks_beyond_the_limit_are_refused_as_they_come() -> None:
    """With room for their framing."""
    body = RequestBody(head("Transfer-Encoding: chunked\r\n"), 100, keep_all=True)
    body.feed(b"64\r\n" + b"x" * 100 + b"\r\n", 0)
    with pytest.raises(MessageError) as error:
        body.feed(b"64\r\n" + b"x" * 100 + b"\r\n", 0)
    assert error.value.status == 413


def test_a_large_one_is_not_kept_for_long() -> None:
    """Beyond a bound it can be forgotten, and is then neither kept nor sent again."""
    body = RequestBody(head("Content-Length: 999999\r\n"), 0, keep_all=False)
    body.feed(b"x" * REPLAY_MOST, 0)
    much = [body.is_much]
    body.feed(b"x", 0)
    much.append(body.is_much)
    assert much == [False, True]
    body.forget()
    assert (body.is_kept, bytes(body.kept), body.is_much) == (False, b"", False)
    body.feed(b"y", 0)
    assert bytes(body.kept) == b""
    assert body.size == REPLAY_MOST + 2


def test_one_that_is_read_whole_is_never_much() -> None:
    """Its own limit bounds it."""
    body = RequestBody(head("Content-Length: 999999\r\n"), 0, keep_all=True)
    body.feed(b"x" * (REPLAY_MOST + 9), 0)
    assert not body.is_much


def test_of_no_body_there_is_one() -> None:
    """It is whole, and nothing is ever put into it; a body has one of its own."""
    none = head()
    found = RequestBody.of(none, 10, keep_all=False)
    assert found is RequestBody.of(none, 20, keep_all=False)
    assert (found.is_whole, found.is_much, bytes(found.kept), found.size) == (True, False, b"", 0)
    some = head("Content-Length: 3\r\n")
    assert RequestBody.of(some, 10, keep_all=False) is not RequestBody.of(some, 10, keep_all=False)
