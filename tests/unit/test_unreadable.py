# SPDX-License-Identifier: Apache-2.0
"""Requests that cannot be read: what is told of them."""

from __future__ import annotations

import pytest

from xdp_router.gateway.unreadable import PATH_MOST, method_and_path


@pytest.mark.parametrize(
    ("begun", "told"),
    [
        (b"GET /a?b=c HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", ("GET", "/a")),
        (b"\r\nHEAD /x HTTP/1.1\nA: b\n\n", ("HEAD", "/x")),
        (b"OPTIONS * HTTP/3.0\r\n\r\n", ("OPTIONS", "*")),
        (b"HEAD /not-yet-who", ("HEAD", "/not-yet-who")),
        (b"GET\r\n", ("", "")),
        (b"GET /a\x1b[31m HTTP/1.1\r\n", ("GET", "")),
        (b"GET http://a/b HTTP/1.1\r\n", ("GET", "")),
        (b"get / HTTP/1.1\r\n", ("", "")),
        (b"G" * 33 + b" / HTTP/1.1\r\n", ("", "")),
        (b"\x16\x03\x01\x02\x00\x01 /", ("", "")),
        (b" / HTTP/1.1", ("", "")),
        (b"", ("", "")),
    ],
)
def test_plain_text_is_told(begun: bytes, told: tuple[str, str]) -> None:
    """And nothing that a terminal could take for a command."""
    assert method_and_path(begun) == told
    assert method_and_path(bytearray(begun)) == told


def test_a_long_path_is_cut() -> None:
    """Whoever sends one fills no log with it."""
    method, path = method_and_path(b"PUT /" + b"a" * 100_000)
    assert (method, path[:3]) == ("PUT", "/aa")
    assert PATH_MOST - 40 < len(path) <= PATH_MOST + 40
