# SPDX-License-Identifier: Apache-2.0
"""Where the body of an HTTP/1.1 message ends (RFC 9112 sections 6 and 7).

Bodies pass as they come; this only says how far they go. Chunks are read strictly: what is
forwarded must end at the same byte for whoever reads it next.
"""

from __future__ import annotations

import re

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_fields import read_trailer
from xdp_router.gateway.http_head import Framing

# 15 hexadecimal digits stay below 2**63.
_DIGITS = rb"([0-9A-Fa-f]{1,15})"
# An extension has no use here; one line of it may not be long, and all of them may not cost more
# than a head does.
_EXTENSION = rb"(;[\t\x20-\x7e]{0,255})?"
EXTENSION_BYTES = 4096
TRAILER_BYTES = 8192

_FIRST_LINE = re.compile(_DIGITS + _EXTENSION + rb"\r\n")
_NEXT_LINE = re.compile(rb"\r\n" + _DIGITS + _EXTENSION + rb"\r\n")
_LINE_BEGUN = re.compile(rb"(?:[0-9A-Fa-f]{1,15}(?:;[\t\x20-\x7e]{0,255})?\r?)?")
_LINE_AFTER_DATA_BEGUN = re.compile(rb"\r?|\r\n(?:[0-9A-Fa-f]{1,15}(?:;[\t\x20-\x7e]{0,255})?\r?)?")

# States of a chunked body.
_SIZE = 0  # the line with the first chunk's size
_DATA = 1  # content of a chunk
_NEXT = 2  # the CRLF after a chunk and the line with the next one's size
_TRAILER = 3  # lines after the last chunk, up to the empty one
_BROKEN = 4


class BodyReader:
    """Says how far the bytes that come belong to one message's body.

    ``done`` becomes true with the body's last byte. With ``decode`` the content of what was fed
    last is in ``payload``, without the framing of chunks. ``status`` is that of a MessageError:
    400 for a client's body, 502 for a backend's.
    """

    __slots__ = (
        "done",
        "payload",
        "_framing",
        "_left",
        "_decode",
        "_status",
        "_state",
        "_line",
        "_extensions",
        "_trailers",
    )  # fmt: skip - one line each would say less

    def __init__(
        self, framing: Framing, length: int = 0, *, decode: bool = False, status: int = 400
    ) -> None:
        self.payload: list[bytes] = []
        self.done = framing is Framing.NONE or (framing is Framing.LENGTH and length <= 0)
        self._framing = framing
        self._left = length
        self._decode = decode
        self._status = status
        self._state = _SIZE
        self._line = b""
        self._extensions = 0
        self._trailers = 0

    def feed(self, data: bytes | bytearray | memoryview, start: int = 0) -> int:
        """Return the index in ``data`` up to which it belongs to the body, from ``start``.

        Raises MessageError when chunks are not as they have to be; nothing of ``data`` may be
        forwarded then, and each later call raises it again.
        """
        if self._decode:
            self.payload.clear()
        if self.done:
            return start
        framing = self._framing
        size = len(data)
        if framing is Framing.CHUNKED:
            return self._chunks(data if type(data) is bytes else bytes(data), start, size)
        if framing is Framing.LENGTH:
            have = size - start
            if have >= self._left:
                size = start + self._left
                self._left = 0
                self.done = True
            else:
                self._left -= have
        if self._decode and size > start:
            self.payload.append(bytes(data[start:size]))
        return size

    @property
    def between_chunks(self) -> bool:
        """Return whether a chunk could be added to the body here."""
        return (
            self._framing is Framing.CHUNKED
            and not self.done
            and (
                (not self._line and self._state == _SIZE)
                or (self._state == _NEXT and self._line == b"\r\n")
            )
        )

    def end_of_stream(self) -> bool:
        """Return whether the body is whole now that the peer sends nothing more."""
        if self._framing is Framing.CLOSE or self._framing is Framing.TUNNEL:
            self.done = True
        return self.done

    def _chunks(self, data: bytes, at: int, size: int) -> int:
        while at < size:
            state = self._state
            if state == _DATA:
                left = self._left
                end = at + left
                if end > size:
                    self._left = end - size
                    end = size
                else:
                    self._left = 0
                    self._state = _NEXT
                if self._decode:
                    self.payload.append(data[at:end])
                at = end
            elif state == _NEXT and not self._line:
                at = self._whole_chunks(data, at, size)
            elif state != _TRAILER and state != _BROKEN:
                at = self._size_line(data, at, size)
            elif state == _TRAILER:
                at = self._trailer_line(data, at, size)
                if self.done:
                    return at
            else:
                raise self._broken("a body that was given up")
        return at

    def _whole_chunks(self, data: bytes, at: int, size: int) -> int:
        """Pass the chunks that are there from begin to end, then one line of another kind.

        Tokens of a stream come as many small chunks: this costs half of the way by states.
        """
        decode = self._decode
        next_line = _NEXT_LINE.match
        while True:
            match = next_line(data, at)
            if match is None or match[2] is not None:
                break
            begin = match.end()
            end = begin + int(match[1], 16)
            if end == begin or end > size:
                break
            if decode:
                self.payload.append(data[begin:end])
            at = end
        return self._size_line(data, at, size) if at < size else at

    def _size_line(self, data: bytes, at: int, size: int) -> int:
        """Read the line with a chunk's size, and the CRLF of the chunk before it."""
        after_data = self._state == _NEXT
        pattern = _NEXT_LINE if after_data else _FIRST_LINE
        line = self._line
        if not line:
            match = pattern.match(data, at)
            used = at
        else:
            # Few bytes: a begun line is bounded by what a line may be.
            joined = line + data[at : at + 512]
            match = pattern.match(joined)
            used = at - len(line)
        if match is None:
            begun = line + data[at : at + 512]
            if (_LINE_AFTER_DATA_BEGUN if after_data else _LINE_BEGUN).fullmatch(begun) is None:
                raise self._broken("a chunk that does not begin with its size or end with CRLF")
            self._line = begun
            return size
        used = match.end() if not line else used + match.end()
        self._line = b""
        extension = match[2]
        if extension is not None:
            self._extensions += len(extension)
            if self._extensions > EXTENSION_BYTES:
                raise self._broken("chunk extensions that are too long")
        self._left = int(match[1], 16)
        self._state = _DATA if self._left else _TRAILER
        return used

    def _trailer_line(self, data: bytes, at: int, size: int) -> int:
        end = data.find(b"\n", at)
        stop = size if end < 0 else end + 1
        self._trailers += stop - at
        if self._trailers > TRAILER_BYTES:
            raise self._broken("trailers that are too long")
        line = self._line + data[at:stop]
        cr = line.find(b"\r")
        if (0 <= cr < len(line) - 1 and line[cr:] != b"\r\n") or (cr < 0 <= end):
            raise self._broken("a CR or LF alone in a trailer")
        if end < 0:
            self._line = line
            return size
        self._line = b""
        if line == b"\r\n":
            self.done = True
        else:
            try:
                read_trailer(line[:-2], self._status)
            except MessageError:
                self._state = _BROKEN
                raise
        return stop

    def _broken(self, reason: str) -> MessageError:
        self._state = _BROKEN
        return MessageError(self._status, reason)
