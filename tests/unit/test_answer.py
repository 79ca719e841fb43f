# SPDX-License-Identifier: Apache-2.0
"""What a leg has answered while nobody has won."""

from __future__ import annotations

import json

import pytest

from xdp_router.daemon.gateway import answer as answer_module
from xdp_router.daemon.gateway.answer import Answer
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.first_token import Verdict
from xdp_router.gateway.http_head import HeadLimits, HeadReader

STREAM = "Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"


def answer(lines: str, status: int = 200) -> Answer:
    """With these header lines."""
    buffer = bytearray(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode())
    head = HeadReader(HeadLimits()).response(buffer, b"POST")
    assert head is not None
    return Answer(head)


def event(**choice: object) -> bytes:
    """A chunk with one event in it."""
    text = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def test_a_role_is_nothing_and_content_is_a_token() -> None:
    """However the bytes are cut up; what was kept is what came."""
    role, token = event(delta={"role": "assistant"}), event(delta={"content": "a"})
    found = answer(STREAM)
    verdicts = [found.take(bytes([each])) for each in role + token]
    assert verdicts.count(Verdict.TOKEN) == 1
    assert set(verdicts) == {Verdict.NOTHING, Verdict.TOKEN}
    assert b"".join(found.kept) == role + token
    assert found.size == len(role + token)


def test_the_first_of_several_decides() -> None:
    """An error behind a token is no error of an answer that has begun."""
    error = b'data: {"error": {"message": "x"}}\n\n'
    found = answer(STREAM)
    assert found.take(event(text="x") + b"%x\r\n%b\r\n" % (len(error), error)) is Verdict.TOKEN
    found = answer(STREAM)
    assert found.take(b"%x\r\n%b\r\n" % (len(error), error) + event(text="x")) is Verdict.ERROR


@pytest.mark.parametrize(
    ("lines", "status"),
    [("Content-Type: application/json\r\nContent-Length: 9\r\n", 200), (STREAM, 400)],
)
def test_only_a_good_event_stream_is_looked_into(lines: str, status: int) -> None:
    """Others are kept, and judged when they are whole."""
    found = answer(lines, status)
    assert not found.is_stream
    assert found.take(b"3\r\nabc\r\n") is Verdict.NOTHING
    assert found.tokens() == 0


def test_content_is_without_chunks() -> None:
    """As whoever reads the answer sees it."""
    found = answer("Transfer-Encoding: chunked\r\n")
    for piece in (b"3\r\nab", b"c\r\n1\r\nd\r\n", b"0\r\n\r\n"):
        found.take(piece)
    assert found.content() == b"abcd"


def test_tokens_are_events_with_an_object() -> None:
    """Neither comments nor the end mark."""
    found = answer(STREAM)
    found.take(event(text="a") + event(text="b") + b"e\r\ndata: [DONE]\n\n\r\n")
    assert found.tokens() == 2


def test_too_much_without_a_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, whatever a backend sends."""
    monkeypatch.setattr(answer_module, "ANSWER_MOST", 1000)
    found = answer("Content-Length: 5000\r\n")
    found.take(b"x" * 1000)
    with pytest.raises(MessageError) as error:
        found.take(b"x")
    assert error.value.status == 502
