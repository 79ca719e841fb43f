# SPDX-License-Identifier: Apache-2.0
"""What the load client got, judged when all is over: only the time of each piece is taken before.

A call's pieces are what ``recv`` returned, each with when it did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Piece = tuple[int, bytes]
_MARK = b'"mock_ns": '
_TOKEN_KEYS = ("content", "text", "reasoning", "reasoning_content", "tool_calls", "refusal")


@dataclass(slots=True)
class Call:
    """One request. Times in ns from when it was due; -1: did not happen. ``transit_ns``: how long
    each token was on its way from the mock engine, where the proxy left that mark in it."""

    error: str = ""
    status: int = 0
    engine: str = ""
    late_ns: int = -1
    head_ns: int = -1
    first_ns: int = -1
    end_ns: int = -1
    tokens: int = 0
    gaps_ns: list[int] = field(default_factory=list)
    transit_ns: list[int] = field(default_factory=list)

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))


def parsed(text: str) -> list[Call]:
    """Lines of JSON. Raises ValueError, TypeError or KeyError for anything else."""
    return [Call(**json.loads(line)) for line in text.splitlines()]


def fields_of(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """A response head's status, and its headers by names in lower case."""
    first, *lines = head.split(b"\r\n")
    status = first.split(b" ", 2)[1:2]
    pairs = (line.partition(b":") for line in lines)
    return int(status[0]) if status else 0, {k.lower(): v.strip() for k, _, v in pairs}


def judge(call: Call, pieces: Sequence[Piece], due_ns: int) -> Call:
    """Fill in what the pieces say."""
    if not pieces:
        return call
    call.end_ns = pieces[-1][0] - due_ns
    head, body = _split(pieces)
    if head is None:
        call.error = call.error or "no whole head"
        return call
    at_ns, text = head
    call.head_ns = at_ns - due_ns
    call.status, headers = fields_of(text)
    call.engine = headers.get(b"x-engine", b"").decode("latin-1")
    content: Iterable[Piece] = body
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        content = _dechunked(body)
    if b"text/event-stream" in headers.get(b"content-type", b""):
        _tokens(call, content, due_ns)
    elif call.status == 200:
        call.first_ns, call.tokens = call.end_ns, 1
    if not call.error and call.status != 200:
        call.error = f"status {call.status}"
    if not call.error and not call.tokens:
        call.error = "no token"
    return call


def _split(pieces: Sequence[Piece]) -> tuple[Piece | None, list[Piece]]:
    joined = b""
    for number, (at_ns, data) in enumerate(pieces):
        joined += data
        end = joined.find(b"\r\n\r\n")
        if end >= 0:
            return (at_ns, joined[:end]), [(at_ns, joined[end + 4 :]), *pieces[number + 1 :]]
    return None, []


def _dechunked(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The content of chunks, as far as it has come, with each piece's time."""
    buffer, left = b"", 0
    for at_ns, data in pieces:
        buffer += data
        content = b""
        while buffer:
            if left > 0:
                content += buffer[:left]
                taken = min(left, len(buffer))
                buffer, left = buffer[taken:], left - taken
                continue
            line, mark, rest = buffer.partition(b"\r\n")
            if not mark:
                break
            if line:  # else the end of the chunk before
                left = int(line.split(b";")[0], 16)
            buffer = rest
        yield at_ns, content


def _tokens(call: Call, content: Iterable[Piece], due_ns: int) -> None:
    buffer, last_ns = b"", -1
    for at_ns, data in content:
        buffer += data.replace(b"\r\n", b"\n")
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            if not _is_token(event):
                continue
            call.tokens += 1
            if last_ns < 0:
                call.first_ns = at_ns - due_ns
            else:
                call.gaps_ns.append(at_ns - last_ns)
            last_ns = at_ns
            mark = event.find(_MARK)
            if mark >= 0:
                number = event[mark + len(_MARK) :].partition(b"}")[0]
                call.transit_ns.append(at_ns - int(number))


def _is_token(event: bytes) -> bool:
    if not event.startswith(b"data: {"):
        return False
    try:
        said: Any = json.loads(event[6:])
    except ValueError:
        return False
    choices = said.get("choices") or [{}]
    part = choices[0].get("delta") or choices[0]
    return any(part.get(key) for key in _TOKEN_KEYS)
