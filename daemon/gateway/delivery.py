# SPDX-License-Identifier: Apache-2.0
"""The winner's answer on its way to the client, byte for byte as it comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_forward import response_to_client
from xdp_router.gateway.http_head import Framing

from .answer import Answer
from .leg import Leg

# An event's end has either kind of line end: sse-starlette, for one, writes CRLF.
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_TAIL = 64
_SHORT_CHUNK = re.compile(rb"(?:^|\r\n)0*[12][\t ]*(?:;[^\r\n]*)?\r\n\r?\n\Z")
"""A chunk whose size line could be taken for half of an event's end."""
_LOST = (
    b"event: error\n"
    b'data: {"error": {"message": "the backend broke off", "type": "server_error", '
    b'"param": null, "code": "backend_lost"}}\n\n'
)


class Delivery:
    """Of one answer. ``write`` takes bytes for the client."""

    __slots__ = (
        "leg",
        "is_stream",
        "tokens",
        "sent",
        "newest_ns",
        "keeps_client",
        "_write",
        "_unchunk",
        "_tail",
        "_is_coded",
    )

    def __init__(self, leg: Leg, answer: Answer, version: int, write: Callable[[bytes], None]):
        self.leg = leg
        self.is_stream = answer.is_stream
        self._is_coded = answer.is_coded
        self.tokens = 0
        self.sent = 0
        """Bytes of content, with the framing of chunks."""
        self.newest_ns = 0
        self.keeps_client = False
        """Whether the client was told that its connection goes on."""
        self._write = write
        self._unchunk: BodyReader | None = None
        self._tail = b""
        """The last bytes that were written, chunks and all."""
        if version == 10 and answer.head.framing is Framing.CHUNKED:
            self._unchunk = BodyReader(Framing.CHUNKED, decode=True, status=502)

    def begin(
        self,
        answer: Answer,
        *,
        first: bytes = b"",
        close: bool,
        extra: Sequence[tuple[bytes, bytes]],
        version: int,
        drop: Sequence[bytes] = (),
    ) -> None:
        """The head, and what has come behind it so far, ``first`` at last, in one piece.

        ``extra``, ``drop``: as for ``response_to_client``. Raises MessageError if the content is
        not as it has to be.
        """
        self.keeps_client = not close and self._unchunk is None
        answer.kept.append(first)
        kept = b"".join(answer.kept)
        if self._unchunk is not None:
            kept = self._unchunked(kept)
        answer.kept.clear()
        head = response_to_client(
            answer.head, close=close, extra=extra, client_version=version, drop=drop
        )
        self._write(head + kept)
        self._note(kept)

    def more(self, data: bytes) -> None:
        """More of it. Raises MessageError if its chunks are not as they have to be."""
        if self._unchunk is not None:
            data = self._unchunked(data)
        self._write(data)
        self._note(data)

    def break_off(self) -> None:
        """Tell a client that reads events, if it stands between two of them.

        Anywhere else an event of ours would become part of one of the backend's.
        """
        body, head = self.leg.body, self.leg.head
        if not self.is_stream or self._is_coded or body is None or head is None:
            return
        if self._unchunk is not None or head.framing is Framing.CLOSE:
            if not self._tail or self._tail.endswith(_EVENT_ENDS):
                self._write(_LOST)
        elif body.between_chunks:
            content = self._tail[:-2]
            is_end = content.endswith(_EVENT_ENDS) and _SHORT_CHUNK.search(content) is None
            if is_end or not content:
                self._write(b"%x\r\n%b\r\n" % (len(_LOST), _LOST))

    def _unchunked(self, data: bytes) -> bytes:
        assert self._unchunk is not None
        self._unchunk.feed(data)
        return b"".join(self._unchunk.payload)

    def _note(self, data: bytes) -> None:
        """It has gone on: nothing waits for this."""
        self.sent += len(data)
        if self.is_stream and data:
            self.tokens += data.count(b"data: {")
            self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
