# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: bytes of a ``text/event-stream`` in, the data of whole events out.

Source: WHATWG HTML, "Server-sent events", parsing an event stream. What a router has no use for
(``event``, ``id``, ``retry``) is read over. Nothing here is sent on: the stream passes byte by
byte, this only looks at it.
"""

from __future__ import annotations

from .errors import MessageError

# A delta with log-probabilities has some ten kilobytes, an answer in one event some hundred.
MAX_EVENT_BYTES = 1 << 20

_BOM = b"\xef\xbb\xbf"


class SseReader:
    """Splits one stream, however it comes in pieces.

    A line ends by LF, CR or CR LF; a line that ends by CR is whole at once, and an LF that comes
    next is its own. What an unfinished event and an unfinished line keep is bounded by
    ``max_bytes`` each.
    """

    __slots__ = ("_after_cr", "_data", "_fault", "_first", "_line", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._data: bytes | bytearray | None = None
        self._after_cr = False
        self._first = True
        self._fault: MessageError | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that ``data`` completes, in order.

        An event without data is none. Lines of data are joined by LF. Raise MessageError(502)
        for a line or an event beyond the bound: events that were whole before it are given out
        first, then every call raises.
        """
        if self._fault is not None:
            raise self._fault
        if b"\r" in data or self._after_cr:
            if not data:
                return []
            start = 1 if self._after_cr and data[:1] == b"\n" else 0
            self._after_cr = data[-1:] == b"\r"
            data = data[start:].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        events: list[bytes] = []
        if lines:
            if self._line:
                lines[0] = bytes(self._line) + lines[0]
                self._line.clear()
            if self._first:
                self._first = False
                if len(lines[0]) <= self._max_bytes:
                    lines[0] = lines[0].removeprefix(_BOM)
            try:
                self._take(lines, events)
            except MessageError:
                if not events:
                    raise
                return events
        if rest:
            self._line += rest
            if len(self._line) > self._max_bytes:
                fault = self._too_long("line")
                if not events:
                    raise fault
        return events

    def _take(self, lines: list[bytes], events: list[bytes]) -> None:
        held = self._data
        limit = self._max_bytes
        for line in lines:
            if not line:
                if held is not None:
                    events.append(bytes(held))
                    held = None
                continue
            if len(line) > limit:
                raise self._too_long("line")
            if line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
            elif line == b"data":
                value = b""
            else:
                continue
            if held is None:
                held = value
                continue
            if isinstance(held, bytes):
                held = bytearray(held)
            held += b"\n"
            held += value
            if len(held) > limit:
                raise self._too_long("event")
        self._data = held

    def _too_long(self, what: str) -> MessageError:
        self._line.clear()
        self._data = None
        self._fault = MessageError(
            502, f"an event stream has a longer {what} than {self._max_bytes} bytes"
        )
        return self._fault
