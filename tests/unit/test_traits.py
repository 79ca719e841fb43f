# SPDX-License-Identifier: Apache-2.0
"""What a listener makes of a head."""

from __future__ import annotations

import dataclasses

import pytest

from xdp_router.gateway.http_forward import request_frame
from xdp_router.gateway.http_head import HeadLimits, RequestHead, read_request
from xdp_router.gateway.traits import HeadTraits, read_traits

WANTED = frozenset((b"x-tenant-id", b"x-canary"))


def head_of(text: str) -> RequestHead:
    return read_request(text.replace("\n", "\r\n").encode() + b"\r\n", HeadLimits())


def traits_of(text: str) -> HeadTraits:
    return read_traits(head_of(text), WANTED, b"https")


def test_what_is_shown_and_what_decides() -> None:
    """In the form in which routes and logs have it."""
    found = traits_of(
        "PUT /a?b=1 HTTP/1.1\nHost: API.Example.com:80\nx-canary: 1\nX-Canary: 2\nX-Other: 3\n"
    )
    assert (found.method, found.path, found.host) == ("PUT", "/a", "api.example.com")
    assert found.headers == {"x-canary": "1"}
    assert found.is_idempotent
    assert not found.may_race


@pytest.mark.parametrize(
    ("text", "may_race"),
    [
        ("GET / HTTP/1.1\nHost: a\n", True),
        ("GET / HTTP/1.1\nHost: a\nContent-Length: 3\n", False),
        ("GET / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n", False),
        ("GET / HTTP/1.1\nHost: a\nConnection: upgrade\nUpgrade: websocket\n", False),
        ("POST / HTTP/1.1\nHost: a\n", False),
    ],
)
def test_only_what_is_safe_and_whole_may_race(text: str, may_race: bool) -> None:
    """Nothing that does something is done twice."""
    assert traits_of(text).may_race is may_race


@pytest.mark.parametrize("digits", [b"1", b"7", b"0012", b"123456789012345678"])
def test_another_length(digits: bytes) -> None:
    """Only the number is another one, wherever else the same bytes stand."""
    text = (
        "POST http://a/b HTTP/1.1\nHost: a\nX-Note: Content-Length: 1\nContent-Length: 1\n"
        "Expect: 100-continue\nX-Forwarded-For: 192.0.2.9\nConnection: x-note, close\n"
    )
    other = head_of(text.replace("\nContent-Length: 1\n", f"\nContent-Length: {digits.decode()}\n"))
    expected = request_frame(other, host=None, proto=b"https", drop=(b"expect",))
    found = traits_of(text).of_length(b"1", digits)
    assert found.frame == expected
    assert found == read_traits(other, WANTED, b"https")
    fields = [each.name for each in dataclasses.fields(HeadTraits) if each.name != "frame"]
    assert all(getattr(found, name) == getattr(traits_of(text), name) for name in fields)
