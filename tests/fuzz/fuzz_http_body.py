# SPDX-License-Identifier: Apache-2.0
"""A body of any bytes ends at the same one, with the same content or an error, whether they come
whole, one at a time or in pieces, and none of what stands behind its end is touched.

The first byte chooses the framing and the size of the pieces.
"""

from __future__ import annotations

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import Framing

SEEDS = (
    b"\0" + b"5\r\nhello\r\n0\r\n\r\n",
    b"\5" + b"A;x=y\r\n0123456789\r\n1\r\n!\r\n0\r\nT: u\r\n\r\nGET",
    b"\2" + b"x" * 30,
    b"\3" + b"anything",
    b"\0" + b"ffffffffffffffff\r\n",
    b"\0" + b"3\nabc\n0\n\n",
)
WORDS = (b"\r\n", b"0\r\n\r\n", b";a=b", b"Trailer: x\r\n", b"1\r\nx\r\n")

KINDS = ((Framing.CHUNKED, 0), (Framing.CHUNKED, 0), (Framing.LENGTH, 20), (Framing.CLOSE, 0))


def read(kind: tuple[Framing, int], data: bytes, size: int) -> tuple[object, ...]:
    """Return where the body ended, its content and whether it was whole; or the error."""
    body = BodyReader(kind[0], kind[1], decode=True)
    content = b""
    end = 0
    for at in range(0, len(data), size):
        try:
            used = body.feed(data[at : at + size])
        except MessageError as error:
            try:
                body.feed(b"0\r\n\r\n")
            except MessageError:
                return (error.status,)
            raise AssertionError("a broken body went on") from error
        content += b"".join(body.payload)
        end += used
        if body.done:
            break
        assert used == len(data[at : at + size])
    assert len(content) <= end
    return end, content, body.done, body.end_of_stream()


def check(data: bytes) -> None:
    """Check one input; any exception is a finding."""
    if not data:
        return
    kind = KINDS[data[0] & 3]
    stream = data[1:]
    whole = read(kind, stream, max(1, len(stream)))
    assert whole == read(kind, stream, 1)
    assert whole == read(kind, stream, 2 + (data[0] >> 2))
    if len(whole) > 1 and whole[2]:
        assert isinstance(whole[0], int)
        assert read(kind, stream[: whole[0]], max(1, len(stream)))[:3] == whole[:3]
