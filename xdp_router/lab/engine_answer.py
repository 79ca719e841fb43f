# SPDX-License-Identifier: Apache-2.0
"""What the mock engine says: requests as it reads them, and the bytes of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .engine_behaviour import Behaviour

CHAT, COMPLETION, EVENTS = "chat", "completion", "events"
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    426: "Upgrade Required",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_WORDS = b"tok "
PAGE = b"""<!doctype html>
<title>wait</title>
<p id=events></p>
<p id=socket></p>
<script>
const events = document.getElementById("events"), socket = document.getElementById("socket");
const done = () => {
  if (events.dataset.done && socket.dataset.done) document.title = "done";
};
const source = new EventSource("/sse");
let count = 0;
source.onmessage = () => { count += 1; };
source.addEventListener("end", () => {
  source.close();
  events.textContent = `events: ${count}`;
  events.dataset.done = 1;
  done();
});
const scheme = location.protocol === "https:" ? "wss" : "ws";
const peer = new WebSocket(`${scheme}://${location.host}/ws`);
const sent = "x".repeat(70000);
peer.onopen = () => peer.send(sent);
peer.onmessage = (message) => {
  socket.textContent = `socket: ${message.data === sent ? "same" : "other"}`;
  peer.close();
};
peer.onclose = () => { socket.dataset.done = 1; done(); };
</script>
"""
"""What a browser makes of it: ``events: N`` and ``socket: same``, then the title is ``done``."""


class NotAsked(Exception):
    """What was asked for can't be had; ``status`` is for the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for tokens, as far as the mock cares."""

    kind: str
    model: str
    stream: bool
    usage: bool = False
    max_tokens: int | None = None


def wish(kind: str, body: bytes) -> Wish:
    """What a body of the OpenAI API asks for. Raises NotAsked for what is none."""
    if kind == EVENTS:
        return Wish(kind, "", True)
    try:
        asked: Any = json.loads(body)
    except ValueError as error:
        raise NotAsked(400, f"the body is no JSON: {error}") from error
    needed = "messages" if kind == CHAT else "prompt"
    if not isinstance(asked, dict) or needed not in asked:
        raise NotAsked(400, f"the body has no {needed!r}")
    limit = asked.get("max_completion_tokens", asked.get("max_tokens"))
    options = asked.get("stream_options")
    return Wish(
        kind,
        str(asked.get("model", "")),
        asked.get("stream") is True,
        isinstance(options, dict) and options.get("include_usage") is True,
        limit if isinstance(limit, int) else None,
    )


def head(status: int, headers: Mapping[str, str], *, keep: bool) -> bytes:
    """A response's head."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not keep:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a body (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def error_body(status: int, text: str) -> bytes:
    """An error object as of the OpenAI API."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json.dumps({"error": {"message": text, "type": kind, "code": status}}).encode()


class Voice:
    """The events of one answer, made once: only tokens are made while it runs."""

    def __init__(self, name: str, number: int, asked: Wish, how: Behaviour) -> None:
        self._asked, self._how = asked, how
        object_ = "chat.completion.chunk" if asked.kind == CHAT else "text_completion"
        prefix = "chatcmpl" if asked.kind == CHAT else "cmpl"
        self._same: dict[str, Any] = {
            "id": f"{prefix}-{name}-{number}",
            "object": object_,
            "created": 0,
            "model": asked.model,
            "system_fingerprint": name,
        }
        self._text = (_WORDS * (how.token_bytes // len(_WORDS) + 1))[: how.token_bytes].decode()
        before, _, after = self._event(self._part(self._text), "@@").partition(b'"@@"')
        self._before, self._after = before, after
        first = self._part(self._text, first=True)
        before, _, after = self._event(first, "@@").partition(b'"@@"')
        self._first = before, after

    def _part(self, text: str, *, first: bool = False) -> dict[str, Any]:
        """A choice with a token."""
        if self._asked.kind != CHAT:
            return {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        delta: dict[str, Any] = {"content": text}
        if first and self._how.reasoning:
            delta = {"reasoning_content": text}
        if first and self._how.tool:
            call = {"name": "look", "arguments": "{}"}
            delta = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": call}]}
        return {"index": 0, "delta": delta, "finish_reason": None}

    def _event(self, part: dict[str, Any] | None, at: object = 0, **more: Any) -> bytes:
        choices = [] if part is None else [part]
        text = json.dumps({**self._same, "choices": choices, **more, "mock_ns": at})
        return b"data: " + text.encode() + b"\n\n"

    def token(self, number: int, now_ns: int) -> bytes:
        """A token's event, counted from 0. ``mock_ns`` in it is when it was sent, by
        CLOCK_MONOTONIC: on one machine, whoever gets it knows how long it was on its way."""
        if self._asked.kind == EVENTS:
            return b"id: %d\ndata: %b %d\n\n" % (number, self._text.encode(), now_ns)
        before, after = self._first if number == 0 else (self._before, self._after)
        return b"%b%d%b" % (before, now_ns, after)

    def role(self) -> bytes:
        """What says only who speaks."""
        delta = {"role": "assistant", "content": ""}
        if self._asked.kind == CHAT:
            return self._event({"index": 0, "delta": delta, "finish_reason": None})
        return self._event(self._part(""))

    def error(self) -> bytes:
        """An error in a stream that began with 200."""
        return b"data: " + error_body(500, "the mock was told to fail") + b"\n\n"

    def end(self, tokens: int) -> bytes:
        """What comes after the last token."""
        if self._asked.kind == EVENTS:
            return b"event: end\ndata: end\n\n"
        part = {"index": 0, "delta": {}, "finish_reason": "stop"}
        if self._asked.kind != CHAT:
            part = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
        usage = self._event(None, usage=_usage(tokens)) if self._asked.usage else b""
        return self._event(part) + usage + DONE

    def whole(self, tokens: int) -> bytes:
        """The body of an answer that is not a stream."""
        part: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
        if self._asked.kind == CHAT:
            part["message"] = {"role": "assistant", "content": self._text * tokens}
        else:
            part["text"] = self._text * tokens
        object_ = "chat.completion" if self._asked.kind == CHAT else "text_completion"
        body = {**self._same, "object": object_, "choices": [part], "usage": _usage(tokens)}
        return json.dumps(body).encode()


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
