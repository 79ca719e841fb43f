# SPDX-License-Identifier: Apache-2.0
"""The echo of WebSocket frames, with the examples of RFC 6455."""

from __future__ import annotations

import pytest

from xdp_router.lab.websocket import FRAME_MAX, Echo, accept, frame, masked

MASK = b"\x37\xfa\x21\x3d"
HELLO = bytes.fromhex("818537fa213d7f9f4d5158")


def test_examples_of_the_rfc() -> None:
    """Sections 1.3 and 5.7."""
    assert accept(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert frame(1, b"Hello") == bytes.fromhex("810548656c6c6f")
    assert frame(1, b"Hello", mask=MASK) == HELLO
    assert masked(masked(b"Hello", MASK), MASK) == b"Hello"
    assert masked(b"", MASK) == b""
    assert frame(2, bytes(256))[:4] == bytes.fromhex("827e0100")
    assert frame(2, bytes(65536))[:10] == bytes.fromhex("827f0000000000010000")


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_frames_come_back(size: int) -> None:
    """Of each form of length, whole and one byte at a time, several in one piece."""
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    sent = frame(2, payload, mask=MASK) + frame(0, b"x", end=False, mask=MASK)
    back = frame(2, payload) + frame(0, b"x", end=False)
    assert Echo().feed(sent) == back
    echo = Echo()
    if size < 1000:
        assert b"".join(echo.feed(sent[at : at + 1]) for at in range(len(sent))) == back


def test_control_frames() -> None:
    """A ping gets its pong, a pong nothing; a close comes back and ends it."""
    echo = Echo()
    assert echo.feed(frame(9, b"p", mask=MASK) + frame(10, b"p", mask=MASK)) == frame(10, b"p")
    assert echo.feed(frame(8, b"\x03\xe8", mask=MASK) + HELLO) == frame(8, b"\x03\xe8")
    assert echo.closed


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(1, b"no mask"), 1002),
        (frame(3, b"", mask=MASK), 1002),
        (b"\xc1" + HELLO[1:], 1002),
        (frame(9, bytes(126), mask=MASK), 1002),
        (frame(9, b"", end=False, mask=MASK), 1002),
        (b"\x82\xff" + (FRAME_MAX + 1).to_bytes(8, "big"), 1009),
    ],
)
def test_what_is_no_frame_ends_it(bad: bytes, code: int) -> None:
    """With the code of section 7.4.1, and nothing is taken after it."""
    echo = Echo()
    assert echo.feed(bad) == frame(8, code.to_bytes(2, "big"))
    assert echo.closed
    assert echo.feed(HELLO) == b""
