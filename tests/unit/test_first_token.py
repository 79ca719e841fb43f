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
    "content": (chunk(delta(content="Hi")), Verdict.TOKEN),
    "a space": (chunk(delta(content=" ")), Verdict.TOKEN),
    "content with a role": (chunk(delta(role="assistant", content="Hi")), Verdict.TOKEN),
    "content in parts": (chunk(delta(content=[{"type": "text", "text": "a"}])), Verdict.TOKEN),
    "text": (chunk(text("Hi")), Verdict.TOKEN),
    "reasoning": (chunk(delta(reasoning="hm")), Verdict.TOKEN),
    "reasoning_content": (
        chunk(delta(content=None, reasoning_content="hm")),
        Verdict.TOKEN,
    ),
    "tool_calls": (chunk(delta(tool_calls=[CALL])), Verdict.TOKEN),
    "function_call": (chunk(delta(function_call={"name": "f"})), Verdict.TOKEN),
    "refusal": (chunk(delta(refusal="I cannot")), Verdict.TOKEN),
    "content with its finish": (chunk(delta("stop", content="Hi")), Verdict.TOKEN),
    "unicode": (chunk(delta(content="é\u0800\U0001f600")), Verdict.TOKEN),
    "raw unicode": ('{"choices":[{"delta":{"content":"你"}}]}'.encode(), Verdict.TOKEN),
    "half a character": (b'{"choices":[{"delta":{"content":"\xe4\xbd"}}]}', Verdict.TOKEN),
    "a lone surrogate": (b'{"choices":[{"delta":{"content":"\\ud83d"}}]}', Verdict.TOKEN),
    "an escaped line end": (chunk(delta(content="\n")), Verdict.TOKEN),
    "spaces around": (b'  {"choices" : [ {"text" : "a"} ] }\n ', Verdict.TOKEN),
    "the second choice": (chunk(delta(role="assistant"), delta(content="b")), Verdict.TOKEN),
    "two choices": (chunk(delta(content="a"), delta(content="b")), Verdict.TOKEN),
    "a token beside a failed choice": (
        chunk(delta("error"), delta(content="b")),
        Verdict.TOKEN,
    ),
    "an error that is null": (chunk(text("a"), error=None), Verdict.TOKEN),
    "usage beside it": (chunk(delta(content="a"), usage={"prompt_tokens": 3}), Verdict.TOKEN),
    # Nothing yet.
    "a role alone": (chunk(delta(role="assistant")), Verdict.NOTHING),
    "a role with empty content": (
        chunk(delta(role="assistant", content="")),
        Verdict.NOTHING,
    ),
    "content null": (chunk(delta(role="assistant", content=None)), Verdict.NOTHING),
    "an empty delta": (chunk(delta()), Verdict.NOTHING),
    "no tool calls": (chunk(delta(tool_calls=[])), Verdict.NOTHING),
    "empty thoughts": (chunk(delta(reasoning="", reasoning_content="")), Verdict.NOTHING),
    "empty text": (chunk(text("")), Verdict.NOTHING),
    "a finish that is empty": (chunk(text("", "")), Verdict.NOTHING),
    "usage alone": (chunk(usage={"prompt_tokens": 3}), Verdict.NOTHING),
    "a filter's news": (chunk(prompt_filter_results=[]), Verdict.NOTHING),
    "a ping": (b'{"type": "ping"}', Verdict.NOTHING),
    "logprobs alone": (
        chunk({"delta": {}, "logprobs": {"content": [{"token": "a"}]}}),
        Verdict.NOTHING,
    ),
    "a token inside a string": (
        json.dumps({"note": '{"choices":[{"text":"a"}]}', "choices": []}).encode(),
        Verdict.NOTHING,
    ),
    "content at another place": (b'{"content":"a","text":"b"}', Verdict.NOTHING),
    "content that is no text": (chunk(delta(content=7, refusal=True)), Verdict.NOTHING),
    "choices that are none": (b'{"choices":{"0":{"text":"a"}}}', Verdict.NOTHING),
    "a choice that is none": (b'{"choices":["a",null,7]}', Verdict.NOTHING),
    "a delta that is none": (b'{"choices":[{"delta":"a"}]}', Verdict.NOTHING),
    "a list": (b'[{"choices":[{"text":"a"}]}]', Verdict.NOTHING),
    "no JSON": (b"hello", Verdict.NOTHING),
    "half of it": (chunk(delta(content="Hi"))[:-1], Verdict.NOTHING),
    "twice": (chunk(text("a")) * 2, Verdict.NOTHING),
    "nothing": (b"", Verdict.NOTHING),
    "null": (b"null", Verdict.NOTHING),
    "UTF-16": ('{"choices":[{"text":"a"}]}'.encode("utf-16"), Verdict.NOTHING),
    "nested too deeply": (b'{"choices":' + b"[" * 100_000, Verdict.NOTHING),
    "a number too long": (b'{"created":' + b"9" * 5000 + b"}", Verdict.NOTHING),
    # Errors in a 200.
    "an error object": (json.dumps({"error": ERROR}).encode(), Verdict.ERROR),
    "an error text": (b'{"error":"overloaded","error_type":"overloaded"}', Verdict.ERROR),
    "an error of its own kind": (
        b'{"object":"error","message":"boom","code":400}',
        Verdict.ERROR,
    ),
    "an error with choices": (chunk(text("a"), error=ERROR), Verdict.ERROR),
    "a finish by an error": (chunk(delta("error")), Verdict.ERROR),
    "a finish by an abort": (chunk(text("", "abort")), Verdict.ERROR),
    "one of two failed": (chunk(delta("stop"), delta("error")), Verdict.ERROR),
    "the other of two failed": (chunk(delta("error"), delta("stop")), Verdict.ERROR),
    # Finished without any.
    "a finish": (chunk(delta("stop")), Verdict.FINISHED),
    "a finish by length": (chunk(text("", "length")), Verdict.FINISHED),
    "a finish by a filter": (chunk(delta("content_filter")), Verdict.FINISHED),
    "one of two finished": (chunk(delta(role="assistant"), delta("stop")), Verdict.FINISHED),
    # The end.
    "the end": (b"[DONE]", Verdict.DONE),
    "the end with spaces": (b" [DONE] ", Verdict.DONE),
    "no end": (b'["[DONE]"]', Verdict.NOTHING),
}


@pytest.mark.parametrize(("data", "verdict"), CASES.values(), ids=CASES)
def test_a_payload_says(data: bytes, verdict: Verdict) -> None:
    """Each kind of payload that engines send, and those that they should not."""
    assert first_token(data) is verdict


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
    """The known names at any place, with any kind of value."""
    assert first_token(json.dumps(value).encode()) in Verdict


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
