# SPDX-License-Identifier: Apache-2.0
"""A client of HTTP/1.1 for tests: says exactly what it is given, and tells what comes and when.

It blocks, each wait with a limit, and does nothing on its own: no header, no retry.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

Address = tuple[str, int]
PATIENCE_S = 20.0
_RESET = struct.pack("ii", 1, 0)
CHAT = "/v1/chat/completions"


class CutOff(Exception):
    """The stream ended before what was waited for. ``reset``: by RST, else by FIN."""

    def __init__(self, reset: bool, rest: bytes) -> None:
        super().__init__(f"{'RST' if reset else 'FIN'} after {rest!r}")
        self.reset, self.rest = reset, rest


@dataclass(frozen=True, slots=True)
class Head:
    """A response's head. Names in lower case; ``raw`` as it came, with the empty line."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    raw: bytes
    at_ns: int

    def get(self, name: str) -> str | None:
        """The first value of a header, by its name in lower case."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response. ``trailers``: what came after the last chunk."""

    head: Head
    body: bytes
    trailers: bytes = b""

    @property
    def status(self) -> int:
        """Of its head."""
        return self.head.status


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event, or a comment (``data`` is ""); ``at_ns`` by CLOCK_MONOTONIC."""

    at_ns: int
    raw: bytes
    data: str
    name: str = ""

    @property
    def sent_ns(self) -> int:
        """When the mock engine sent this token; 0: it is none."""
        return int(json.loads(self.data).get("mock_ns", 0)) if self.data[:1] == "{" else 0


def request(
    method: str,
    target: str,
    body: bytes = b"",
    *,
    host: str = "gateway.test",
    headers: Iterable[tuple[str, str]] = (),
    chunks: Sequence[bytes] | None = None,
) -> bytes:
    """A request's bytes; with ``chunks`` instead of ``body`` in chunked coding."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if chunks is not None:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (*chunks, b""))
    elif body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chat(
    mock: str = "",
    *,
    stream: bool = True,
    prompt: str = "say something",
    model: str = "mock",
    headers: Iterable[tuple[str, str]] = (),
    target: str = CHAT,
    **more: object,
) -> bytes:
    """A request for tokens; ``mock`` goes to the mock engine as ``x-mock``."""
    asked: dict[str, object] = {"model": model, "stream": stream, **more}
    if target == CHAT:
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt
    lines = [("Content-Type", "application/json"), *headers]
    if mock:
        lines.append(("x-mock", mock))
    return request("POST", target, json.dumps(asked).encode(), headers=lines)


@dataclass(slots=True)
class RawClient:
    """One connection; whatever socket it is, of TCP, TLS or a pair."""

    sock: socket.socket
    patience_s: float = PATIENCE_S
    buffer: bytearray = field(default_factory=bytearray)
    arrived_ns: int = 0
    _left: int | None = None
    _chunked: bool = False

    @classmethod
    def connect(cls, address: Address, *, source: str | None = None) -> RawClient:
        """In the calling thread's network namespace. Raises OSError."""
        peer = socket.create_connection(
            address, PATIENCE_S, source_address=(source, 0) if source else None
        )
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(peer)

    def __post_init__(self) -> None:
        self.sock.settimeout(self.patience_s)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What is said

    def send(self, data: bytes) -> RawClient:
        """All of it."""
        self.sock.sendall(data)
        return self

    def send_slowly(self, data: bytes, *, size: int = 1, pause_s: float = 0.0) -> RawClient:
        """In pieces, with pauses between."""
        for at in range(0, len(data), size):
            self.sock.sendall(data[at : at + size])
            if pause_s:
                time.sleep(pause_s)
        return self

    def half_close(self) -> None:
        """FIN; what comes can still be read."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """FIN, or RST if something was not read."""
        self.sock.close()

    def reset(self) -> int:
        """RST at once; when, by CLOCK_MONOTONIC."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        at_ns = time.monotonic_ns()
        self.sock.close()
        return at_ns

    # What comes

    def _more(self) -> None:
        """Raises CutOff at the end, TimeoutError after ``patience_s``."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            raise CutOff(True, bytes(self.buffer)) from None
        self.arrived_ns = time.monotonic_ns()
        if not data:
            raise CutOff(False, bytes(self.buffer))
        self.buffer += data

    def _until(self, mark: bytes) -> bytes:
        """Up to the mark, with it."""
        while (at := self.buffer.find(mark)) < 0:
            self._more()
        taken = bytes(self.buffer[: at + len(mark)])
        del self.buffer[: at + len(mark)]
        return taken

    def take(self, size: int) -> bytes:
        """Exactly so many bytes, whatever they are: after an upgrade. Raises CutOff."""
        while len(self.buffer) < size:
            self._more()
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    def head(self, *, interim: bool = False) -> Head:
        """The next response's head; 1xx but 101 are left out unless they are asked for.

        Raises CutOff, TimeoutError, and ValueError for what is no head.
        """
        raw = self._until(b"\r\n\r\n")
        at_ns = self.arrived_ns
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        version, status, reason = [*first.split(" ", 2), ""][:3]
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise ValueError(f"no HTTP/1: {raw!r}")
        headers = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(f"no header: {line!r}")
            headers.append((name.lower(), value.strip()))
        found = Head(int(status), reason, headers, raw, at_ns)
        if found.status < 200 and found.status != 101 and not interim:
            return self.head()
        self._chunked = found.get("transfer-encoding") == "chunked"
        length = found.get("content-length")
        self._left = None if self._chunked or length is None else int(length)
        if found.status in (101, 204, 304) or found.status < 200:
            self._left, self._chunked = 0, False
        return found

    def pieces(self) -> Iterator[bytes]:
        """The body's content as it comes, chunk by chunk where there are chunks."""
        if self._chunked:
            while size := int(self._until(b"\r\n").split(b";")[0], 16):
                yield self.take(size + 2)[:-2]
            return
        while self._left is None or self._left:
            if not self.buffer:
                try:
                    self._more()
                except CutOff as end:
                    if self._left is None and not end.reset:
                        return
                    raise
            taken = bytes(self.buffer[: self._left])
            del self.buffer[: len(taken)]
            if self._left is not None:
                self._left -= len(taken)
            yield taken

    def answer(self, *, method: str = "GET") -> Answer:
        """The next whole response; ``method`` HEAD has no body. Raises as ``head``."""
        head = self.head()
        if method == "HEAD":
            return Answer(head, b"")
        body = b"".join(self.pieces())
        return Answer(head, body, self._trailers())

    def _trailers(self) -> bytes:
        if not self._chunked:
            return b""
        lines = b""
        while (line := self._until(b"\r\n")) != b"\r\n":
            lines += line
        return lines

    def ask(self, data: bytes, *, method: str = "GET") -> Answer:
        """Send, and wait for the answer."""
        return self.send(data).answer(method=method)

    def events(self) -> Iterator[Event]:
        """The events and comments of a body, after its head. Ends with the body; raises CutOff."""
        text = bytearray()
        for piece in self.pieces():
            text += piece
            while (end := text.find(b"\n\n")) >= 0:
                raw = bytes(text[: end + 2])
                del text[: end + 2]
                yield _event(self.arrived_ns, raw)
        self._trailers()
        if text:
            raise ValueError(f"an event without an end: {bytes(text)!r}")

    def end(self) -> bool:
        """Wait for the connection's end; whether it came by RST. AssertionError for bytes."""
        assert not self.buffer, f"more than was waited for: {bytes(self.buffer)!r}"
        try:
            self._more()
        except CutOff as cut:
            return cut.reset
        raise AssertionError(f"instead of an end: {bytes(self.buffer)!r}")


def _event(at_ns: int, raw: bytes) -> Event:
    data, name = [], ""
    for line in raw.decode().splitlines():
        key, _, value = line.partition(":")
        if key == "data":
            data.append(value.removeprefix(" "))
        elif key == "event":
            name = value.removeprefix(" ")
    return Event(at_ns, raw, "\n".join(data), name)
