# SPDX-License-Identifier: Apache-2.0
"""What counts as the first token, and what only looks like one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.first_token import (
    Verdict,
    first_token,
    read_delta,
    tokens_in,
    whole_answer,
)


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    """A chunk as engines send them."""
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": list(choices), **more}).encode()


def delta(finish: str | None = None, **content: Any) -> dict[str, Any]:
    """A choice of a chat."""
    return {"index": 0, "delta": content, "logprobs": None, "finish_reason": finish}


def text(said: str, finish: str | None = None) -> dict[str, Any]:
    """A choice of a plain completion."""
    return {"index": 0, "text": said, "logprobs": None, "finish_reason": finish}


CALL = {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}
ERROR = {"message": "out of memory", "type": "server_error", "code": 500}

CASES = {
    # Content of any kind.
    "content": (chunk(delta(content="Hi")), Verdict.TOKEN, 1),
    "a space": (chunk(delta(content=" ")), Verdict.TOKEN, 1),
    "content with a role": (chunk(delta(role="assistant", content="Hi")), Verdict.TOKEN, 1),
    "content in parts": (chunk(delta(content=[{"type": "text", "text": "a"}])), Verdict.TOKEN, 1),
    "text": (chunk(text("Hi")), Verdict.TOKEN, 1),
    "reasoning": (chunk(delta(reasoning="hm")), Verdict.TOKEN, 1),
    "reasoning_content": (
        chunk(delta(content=None, reasoning_content="hm")),
        Verdict.TOKEN,
        1,
    ),
    "tool_calls": (chunk(delta(tool_calls=[CALL])), Verdict.TOKEN, 1),
    "function_call": (chunk(delta(function_call={"name": "f"})), Verdict.TOKEN, 1),
    "refusal": (chunk(delta(refusal="I cannot")), Verdict.TOKEN, 1),
    "content with its finish": (chunk(delta("stop", content="Hi")), Verdict.TOKEN, 1),
    "unicode": (chunk(delta(content="é\u0800\U0001f600")), Verdict.TOKEN, 1),
    "raw unicode": ('{"choices":[{"delta":{"content":"你"}}]}'.encode(), Verdict.TOKEN, 1),
    "half a character": (b'{"choices":[{"delta":{"content":"\xe4\xbd"}}]}', Verdict.TOKEN, 1),
    "a lone surrogate": (b'{"choices":[{"delta":{"content":"\\ud83d"}}]}', Verdict.TOKEN, 1),
    "an escaped line end": (chunk(delta(content="\n")), Verdict.TOKEN, 1),
    "spaces around": (b'  {"choices" : [ {"text" : "a"} ] }\n ', Verdict.TOKEN, 1),
    "the second choice": (chunk(delta(role="assistant"), delta(content="b")), Verdict.TOKEN, 1),
    "two choices": (chunk(delta(content="a"), delta(content="b")), Verdict.TOKEN, 2),
    "a token beside a failed choice": (
        chunk(delta("error"), delta(content="b")),
        Verdict.TOKEN,
        1,
    ),
    "an error that is null": (chunk(text("a"), error=None), Verdict.TOKEN, 1),
    "usage beside it": (chunk(delta(content="a"), usage={"prompt_tokens": 3}), Verdict.TOKEN, 1),
    # Nothing yet.
    "a role alone": (chunk(delta(role="assistant")), Verdict.NOTHING, 0),
    "a role with empty content": (
        chunk(delta(role="assistant", content="")),
        Verdict.NOTHING,
        0,
    ),
    "content null": (chunk(delta(role="assistant", content=None)), Verdict.NOTHING, 0),
    "an empty delta": (chunk(delta()), Verdict.NOTHING, 0),
    "no tool calls": (chunk(delta(tool_calls=[])), Verdict.NOTHING, 0),
    "empty thoughts": (chunk(delta(reasoning="", reasoning_content="")), Verdict.NOTHING, 0),
    "empty text": (chunk(text("")), Verdict.NOTHING, 0),
    "a finish that is empty": (chunk(text("", "")), Verdict.NOTHING, 0),
    "usage alone": (chunk(usage={"prompt_tokens": 3}), Verdict.NOTHING, 0),
    "a filter's news": (chunk(prompt_filter_results=[]), Verdict.NOTHING, 0),
    "a ping": (b'{"type": "ping"}', Verdict.NOTHING, 0),
    "logprobs alone": (
        chunk({"delta": {}, "logprobs": {"content": [{"token": "a"}]}}),
        Verdict.NOTHING,
        0,
    ),
    "a token inside a string": (
        json.dumps({"note": '{"choices":[{"text":"a"}]}', "choices": []}).encode(),
        Verdict.NOTHING,
        0,
    ),
    "content at another place": (b'{"content":"a","text":"b"}', Verdict.NOTHING, 0),
    "content that is no text": (chunk(delta(content=7, refusal=True)), Verdict.NOTHING, 0),
    "choices that are none": (b'{"choices":{"0":{"text":"a"}}}', Verdict.NOTHING, 0),
    "a choice that is none": (b'{"choices":["a",null,7]}', Verdict.NOTHING, 0),
    "a delta that is none": (b'{"choices":[{"delta":"a"}]}', Verdict.NOTHING, 0),
    "a list": (b'[{"choices":[{"text":"a"}]}]', Verdict.NOTHING, 0),
    "no JSON": (b"hello", Verdict.NOTHING, 0),
    "half of it": (chunk(delta(content="Hi"))[:-1], Verdict.NOTHING, 0),
    "twice": (chunk(text("a")) * 2, Verdict.NOTHING, 0),
    "nothing": (b"", Verdict.NOTHING, 0),
    "null": (b"null", Verdict.NOTHING, 0),
    "UTF-16": ('{"choices":[{"text":"a"}]}'.encode("utf-16"), Verdict.NOTHING, 0),
    "nested too deeply": (b'{"choices":' + b"[" * 100_000, Verdict.NOTHING, 0),
    "a number too long": (b'{"created":' + b"9" * 5000 + b"}", Verdict.NOTHING, 0),
    # Errors in a 200.
    "an error object": (json.dumps({"error": ERROR}).encode(), Verdict.ERROR, 0),
    "an error text": (b'{"error":"overloaded","error_type":"overloaded"}', Verdict.ERROR, 0),
    "an error of its own kind": (
        b'{"object":"error","message":"boom","code":400}',
        Verdict.ERROR,
        0,
    ),
    "an error with choices": (chunk(text("a"), error=ERROR), Verdict.ERROR, 0),
    "a finish by an error": (chunk(delta("error")), Verdict.ERROR, 0),
    "a finish by an abort": (chunk(text("", "abort")), Verdict.ERROR, 0),
    "one of two failed": (chunk(delta("stop"), delta("error")), Verdict.ERROR, 0),
    "the other of two failed": (chunk(delta("error"), delta("stop")), Verdict.ERROR, 0),
    # Finished without any.
    "a finish": (chunk(delta("stop")), Verdict.FINISHED, 0),
    "a finish by length": (chunk(text("", "length")), Verdict.FINISHED, 0),
    "a finish by a filter": (chunk(delta("content_filter")), Verdict.FINISHED, 0),
    "one of two finished": (chunk(delta(role="assistant"), delta("stop")), Verdict.FINISHED, 0),
    # The end.
    "the end": (b"[DONE]", Verdict.DONE, 0),
    "the end with spaces": (b" [DONE] ", Verdict.DONE, 0),
    "no end": (b'["[DONE]"]', Verdict.NOTHING, 0),
}


@pytest.mark.parametrize(("data", "verdict", "tokens"), CASES.values(), ids=CASES)
def test_a_payload_says(data: bytes, verdict: Verdict, tokens: int) -> None:
    """Each kind of payload that engines send, and those that they should not."""
    assert read_delta(data) == (verdict, tokens)
    assert first_token(data) is verdict
    assert tokens_in(data) == tokens


def test_one_that_is_huge_is_read_all_the_same() -> None:
    """A megabyte of log-probabilities before the content."""
    logprobs = {"content": [{"token": "x" * 50, "logprob": -1.0}] * 10_000}
    data = chunk({"index": 0, "logprobs": logprobs, "delta": {"content": "a"}})
    assert len(data) > 700_000
    assert first_token(data) is Verdict.TOKEN


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever a backend sends has a verdict."""
    assert first_token(data) in Verdict


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "stop", "error"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "content", "text", "finish_reason", "error"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_json_raises(value: object) -> None:
    """The known names at any place, with any kind of value; tokens and TOKEN go together."""
    verdict, tokens = read_delta(json.dumps(value).encode())
    assert (verdict is Verdict.TOKEN) == (tokens > 0)


MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}

ANSWERS = {
    "an answer": (chunk(MESSAGE), Verdict.TOKEN),
    "an empty one": (chunk(text("", "length")), Verdict.TOKEN),
    "numbers": (b'{"object":"list","data":[{"embedding":[0.1]}]}', Verdict.TOKEN),
    "no JSON": (b"hello", Verdict.TOKEN),
    "nothing": (b"", Verdict.TOKEN),
    "an error": (json.dumps({"error": ERROR}).encode(), Verdict.ERROR),
    "a failed one": (chunk(text("", "abort")), Verdict.ERROR),
}


@pytest.mark.parametrize(("body", "verdict"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_in_one_piece_wins_unless_it_is_an_error(body: bytes, verdict: Verdict) -> None:
    """Its whole body is what counts, whatever it is."""
    assert whole_answer(body) is verdict
