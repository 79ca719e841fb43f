# SPDX-License-Identifier: Apache-2.0
"""A request's body on its way: where it ends, and what is kept of it to be sent once more."""

from __future__ import annotations

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import Framing, HeadLimits, RequestHead, read_request

REPLAY_MOST = 64 << 10
"""Bytes that are kept of a body that nobody has to read whole."""


class RequestBody:
    """``most``: bytes that it may have, 0: any number. ``keep_all``: it is read whole first."""

    __slots__ = ("kept", "is_kept", "size", "_framing", "_keep_all", "_most", "_reader")

    def __init__(self, head: RequestHead, most: int, *, keep_all: bool) -> None:
        """Raise MessageError (413) if its length is more, or (415) if it cannot be read."""
        self.kept = bytearray()
        """As it came, from its beginning on, if ``is_kept``; else nothing."""
        self.is_kept = True
        self.size = 0
        self._framing = head.framing
        self._keep_all = keep_all
        self._most = most
        self._reader = BodyReader(head.framing, head.length)
        if most and head.framing is Framing.LENGTH and head.length > most:
            raise self._too_long()
        coding = head.get(b"content-encoding") if keep_all else None
        if coding is not None and coding.lower() != b"identity":
            raise MessageError(415, "a prompt with a Content-Encoding: it has to be read here")

    @staticmethod
    def of(head: RequestHead, most: int, *, keep_all: bool) -> RequestBody:
        """A request's, with the arguments of the class; that of most requests is none, and always
        the same one."""
        if head.framing is Framing.NONE and not keep_all:
            return _NONE
        return RequestBody(head, most, keep_all=keep_all)

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._reader.done

    @property
    def is_much(self) -> bool:
        """Whether more has come than is kept for somebody who can take it."""
        return not self._keep_all and len(self.kept) > REPLAY_MOST

    def feed(self, data: bytes, start: int) -> bytes:
        """What of ``data``, from ``start`` on, belongs to it. Raises MessageError."""
        end = self._reader.feed(data, start)
        piece = data[start:end]
        self.size += len(piece)
        # The framing of chunks may cost an eighth, beside what a few of them cost.
        if self._most and self.size > self._most + (self._most >> 3) + 64:
            raise self._too_long()
        if self.is_kept:
            self.kept += piece
        return piece

    def forget(self) -> None:
        """It cannot be sent again from here on."""
        self.is_kept = False
        self.kept.clear()

    def content(self) -> bytes:
        """All of it, without the framing of chunks."""
        if self._framing is not Framing.CHUNKED:
            return bytes(self.kept)
        reader = BodyReader(Framing.CHUNKED, decode=True)
        reader.feed(bytes(self.kept))
        return b"".join(reader.payload)

    def _too_long(self) -> MessageError:
        return MessageError(413, f"a body of more than {self._most} bytes (max_body)")


_NONE = RequestBody(read_request(b"GET / HTTP/1.0\r\n\r\n", HeadLimits()), 0, keep_all=False)
"""Nothing is ever fed to one that is whole."""
