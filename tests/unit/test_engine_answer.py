# SPDX-License-Identifier: Apache-2.0
"""What the mock engine reads and says, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xdp_router.lab.engine_answer import (
    CHAT,
    COMPLETION,
    DONE,
    EVENTS,
    NotAsked,
    Voice,
    Wish,
    chunk,
    error_body,
    head,
    wish,
)
from xdp_router.lab.engine_behaviour import Behaviour


def data(event: bytes) -> Any:
    """The object in an event."""
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    return json.loads(event[6:])


def test_wishes() -> None:
    """What counts of a body; what is none is told with its status."""
    body = {"model": "m", "messages": [], "stream": True, "max_tokens": 3}
    assert wish(CHAT, json.dumps(body).encode()) == Wish(CHAT, "m", True, False, 3)
    body |= {"max_completion_tokens": 2, "stream_options": {"include_usage": True}}
    assert wish(CHAT, json.dumps(body).encode()) == Wish(CHAT, "m", True, True, 2)
    assert wish(COMPLETION, b'{"prompt": "x"}') == Wish(COMPLETION, "", False)
    assert wish(EVENTS, b"") == Wish(EVENTS, "", True)
    for bad in (b"", b"[]", b'{"prompt": ""}', b"\xff"):
        with pytest.raises(NotAsked) as caught:
            wish(CHAT, bad)
        assert caught.value.status == 400


def test_the_events_of_a_chat() -> None:
    """Tokens say when they are sent; the end has a reason, and the use where it was asked for."""
    voice = Voice("e", 7, Wish(CHAT, "m", True, True), Behaviour(token_bytes=6))
    token = data(voice.token(1, 123))
    assert token["choices"] == [{"index": 0, "delta": {"content": "tok to"}, "finish_reason": None}]
    assert (token["id"], token["mock_ns"]) == ("chatcmpl-e-7", 123)
    assert data(voice.role())["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    finish, usage, done, rest = voice.end(4).split(b"\n\n")
    assert data(finish + b"\n\n")["choices"][0]["finish_reason"] == "stop"
    assert data(usage + b"\n\n")["usage"]["completion_tokens"] == 4
    assert (done + b"\n\n", rest) == (DONE, b"")
    assert data(voice.error())["error"]["code"] == 500
    assert json.loads(voice.whole(2))["choices"][0]["message"]["content"] == "tok to" * 2


def test_the_first_token_may_be_another() -> None:
    """Reasoning or a call of a tool; those after it are content."""
    for how, key in (
        (Behaviour(reasoning=True), "reasoning_content"),
        (Behaviour(tool=True), "tool_calls"),
    ):
        voice = Voice("e", 1, Wish(CHAT, "m", True), how)
        assert [*data(voice.token(0, 1))["choices"][0]["delta"]] == [key]
        assert [*data(voice.token(1, 1))["choices"][0]["delta"]] == ["content"]


def test_the_events_of_a_completion() -> None:
    """Text instead of deltas; plain events have numbers."""
    voice = Voice("e", 7, Wish(COMPLETION, "m", True), Behaviour())
    assert data(voice.token(0, 5))["choices"][0]["text"] == "tok "
    assert data(voice.role())["choices"][0]["text"] == ""
    assert json.loads(voice.whole(2))["choices"][0]["text"] == "tok tok "
    plain = Voice("e", 7, Wish(EVENTS, "", True), Behaviour())
    assert plain.token(3, 9) == b"id: 3\ndata: tok  9\n\n"
    assert plain.end(3) == b"event: end\ndata: end\n\n"


def test_heads_and_chunks() -> None:
    """As RFC 9112 has them."""
    assert head(429, {"A": "b"}, keep=False) == (
        b"HTTP/1.1 429 Too Many Requests\r\nA: b\r\nConnection: close\r\n\r\n"
    )
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
    assert json.loads(error_body(400, "no"))["error"]["type"] == "invalid_request_error"
