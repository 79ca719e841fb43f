# SPDX-License-Identifier: Apache-2.0
"""What one leg has answered so far, while nobody has won: kept, and looked at for a first token."""

from __future__ import annotations

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.first_token import Verdict, first_token
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import ResponseHead
from xdp_router.gateway.known_answers import read_answer_traits
from xdp_router.gateway.sse import SseReader

ANSWER_MOST = 8 << 20
"""Bytes of one answer that are kept: what is longer cannot be judged whole."""


_NO_EVENTS = SseReader()
"""Of whom nothing was read yet; it stays empty."""


class Answer:
    """``head`` and the bytes behind it. ``is_coded``: compressed, so that nobody can look inside.

    A stream of that kind is judged by its first bytes.
    """

    __slots__ = ("head", "kept", "is_stream", "is_coded", "size", "_body", "_events")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.kept: list[bytes] = []
        self.size = 0
        traits = head.traits or read_answer_traits(head)
        self.is_stream, self.is_coded = traits.is_stream, traits.is_coded
        self._body: BodyReader | None = None  # most answers are passed on unread
        self._events = _NO_EVENTS

    def take(self, data: bytes) -> Verdict:
        """Keep more of it. Raises MessageError if it is no such stream, or too long to keep."""
        self.kept.append(data)
        self.size += len(data)
        if self.size > ANSWER_MOST:
            raise MessageError(502, "an answer without a token that is too long")
        if not self.is_stream:
            return Verdict.NOTHING
        if self._body is None:
            head = self.head
            self._body = BodyReader(head.framing, head.length, decode=True, status=502)
            self._events = SseReader()
        self._body.feed(data)
        if self.is_coded:
            return Verdict.TOKEN if any(self._body.payload) else Verdict.NOTHING
        found = Verdict.NOTHING
        for piece in self._body.payload:
            for event in self._events.feed(piece):
                verdict = first_token(event)
                if verdict is not Verdict.NOTHING and found is Verdict.NOTHING:
                    found = verdict
        return found

    def content(self) -> bytes:
        """All that was kept, without the framing of chunks."""
        reader = BodyReader(self.head.framing, self.head.length, decode=True, status=502)
        out = []
        for each in self.kept:
            reader.feed(each)
            out += reader.payload
        return b"".join(out)

    def tokens(self) -> int:
        """About how many tokens are in what was kept: events of a stream that have an object."""
        return sum(each.count(b"data: {") for each in self.kept) if self.is_stream else 0
