# SPDX-License-Identifier: Apache-2.0
"""What is read of a request for a completion, and what is refused with the field's name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.prompt import Prompt, read_prompt

CHAT = b"/v1/chat/completions"
PLAIN = b"/v1/completions"


SAID = st.sampled_from(["", "a", "b", "text", "é", "\ud83d", "\x1e"])


def chat(*messages: Any, **more: Any) -> bytes:
    """The body of a chat."""
    return json.dumps({"model": "m", "messages": list(messages), **more}).encode()


def plain(prompt: Any, **more: Any) -> bytes:
    """The body of a plain completion."""
    return json.dumps({"model": "m", "prompt": prompt, **more}).encode()


def user(content: Any) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": content}


def test_a_chat_is_read() -> None:
    """Model, stream, and the messages in order after their roles; the rest is the engine's."""
    body = chat(
        {"role": "system", "content": "Be short."},
        user("Hi"),
        stream=True,
        max_tokens="nine",
    )
    assert read_prompt(CHAT, body) == Prompt("m", True, b"m\x1esystem\x1fBe short.\x1euser\x1fHi")


def test_a_plain_completion_is_read() -> None:
    """What is not said is not made up."""
    assert read_prompt(PLAIN, plain("Once")) == Prompt("m", False, b"m\x1eOnce")
    assert read_prompt(PLAIN, b'{"prompt": ""}') == Prompt("", False, b"\x1e")


@pytest.mark.parametrize("path", [CHAT, b"/openai/deployments/x/chat/completions"])
def test_the_end_of_a_path_tells_what_it_is(path: bytes) -> None:
    """Engines may lie below a prefix."""
    assert read_prompt(path, chat(user("Hi"))).text == b"m\x1euser\x1fHi"


def test_another_path_is_not_found() -> None:
    """Who asks for a path that has no prompt is told which ones have."""
    with pytest.raises(MessageError, match="/chat/completions") as raised:
        read_prompt(b"/v1/embeddings", b"{}")
    assert raised.value.status == 404


TEXTS: dict[str, tuple[bytes, bytes, bytes]] = {
    "tools come first": (
        CHAT,
        chat(user("Hi"), tools=[{"a": 1}]),
        b'tools\x1f[{"a":1}]\x1euser\x1fHi',
    ),
    "parts of text": (
        CHAT,
        chat(user([{"type": "text", "text": "a"}, "b", {"type": "image_url", "x": 1}])),
        b'user\x1fa\x1fb\x1f{"type":"image_url","x":1}',
    ),
    "calls": (
        CHAT,
        chat({"role": "assistant", "content": None, "tool_calls": [1]}),
        b"assistant\x1f\x1etool_calls\x1f[1]",
    ),
    "an answer of a tool": (
        CHAT,
        chat({"role": "tool", "tool_call_id": "x", "content": "7"}),
        b'tool\x1f7\x1etool_call_id\x1f"x"',
    ),
    "a lone surrogate": (CHAT, chat(user("\ud83d")), b"user\x1f\xed\xa0\xbd"),
    "tokens": (PLAIN, plain([1, 258]), b"\1\0\0\0\2\1\0\0"),
    "lists of tokens": (PLAIN, plain([[1], [2]]), b"\1\0\0\0\x1e\2\0\0\0"),
    "several": (PLAIN, plain(["a", "b"]), b"a\x1eb"),
    "embeddings": (PLAIN, plain(None, prompt_embeds="QQ=="), b'"QQ=="'),
    "a suffix": (PLAIN, plain("a", suffix="z"), b"a\x1ez"),
    "a salt": (PLAIN, plain("a", cache_salt="s"), b"salt\x1fs\x1ea"),
}


@pytest.mark.parametrize(("path", "body", "text"), TEXTS.values(), ids=TEXTS)
def test_the_text_is_what_an_engine_sees_first(path: bytes, body: bytes, text: bytes) -> None:
    """In the order of the prompt, whatever the order of the fields."""
    assert read_prompt(path, body).text == b"m\x1e" + text


def test_how_a_body_is_written_makes_no_difference() -> None:
    """Spaces, the order of fields, escapes."""
    other = b'{"messages" : [{"content":"\\u00e9","role":"user"}], "model":"m"}'
    assert read_prompt(CHAT, other) == read_prompt(CHAT, chat(user("é")))


@given(st.lists(SAID, min_size=1, max_size=4), SAID)
def test_a_conversation_that_goes_on_begins_alike(said: list[str], next_one: str) -> None:
    """What a prefix cache lives by."""
    before = read_prompt(CHAT, chat(*map(user, said))).text
    after = read_prompt(CHAT, chat(*map(user, said), user(next_one))).text
    assert after.startswith(before)


def test_another_model_or_salt_has_another_text() -> None:
    """Nobody hits what was computed by another model, or for somebody else."""
    texts = {
        read_prompt(PLAIN, plain("a", **more)).text
        for more in ({}, {"model": "n"}, {"cache_salt": "x"}, {"cache_salt": "y"})
    }
    assert len(texts) == 4


WRONG: dict[str, tuple[bytes, bytes, str]] = {
    "no UTF-8": (CHAT, b'{"model":"\xff"}', "not UTF-8, at byte 10"),
    "no JSON": (CHAT, b'{"model":}', "not JSON: Expecting value at character 9"),
    "nothing": (CHAT, b"", "not JSON"),
    "more than one": (CHAT, b"{} {}", "not JSON: Extra data"),
    "a list": (CHAT, b"[]", "the body: expected an object, found an empty list"),
    "too deep": (CHAT, b'{"messages":' + b"[" * 100_000, "nested too deeply"),
    "too many digits": (CHAT, b'{"max_tokens":' + b"9" * 5000 + b"}", "too many digits"),
    "a name twice": (CHAT, b'{"model":"a","n":1,"model":"b"}', 'has "model" twice'),
    "model": (CHAT, chat(user("a"), model=7), "model: expected a string, found a number"),
    "a long model": (CHAT, chat(user("a"), model="m" * 256), "model: expected at most 255"),
    "half a character": (CHAT, chat(user("a"), model="\ud800"), "model: expected at most 255 pr"),
    "a model to be shown": (CHAT, chat(user("a"), model="m\x1b[2J"), "printable characters"),
    "stream": (CHAT, chat(user("a"), stream=1), "stream: expected true or false, found a number"),
    "no messages": (CHAT, b"{}", "messages: expected a list of at least one message, found null"),
    "messages": (CHAT, b'{"messages":[]}', "found an empty list"),
    "a message": (CHAT, chat(user("a"), "b"), "messages[1]: expected an object, found a string"),
    "a role": (CHAT, chat({"content": "a"}), "messages[0].role: expected a string, found null"),
    "content": (CHAT, chat(user(7)), "messages[0].content: expected a string or a list of parts"),
    "a part": (CHAT, chat(user(["a", 7])), "messages[0].content[1]: expected an object"),
    "salt": (CHAT, chat(user("a"), cache_salt={}), "cache_salt: expected a string"),
    "no prompt": (PLAIN, b"{}", "prompt: expected a string, or a list of strings or of tokens"),
    "prompt": (PLAIN, plain({}), "prompt: expected"),
    "an empty prompt": (PLAIN, plain([]), "prompt: expected"),
    "a prompt in it": (PLAIN, plain(["a", None]), "prompt[1]: expected a string or a list of"),
    "a token": (PLAIN, plain([1, "a"]), "prompt[1]: expected a token"),
    "a negative token": (PLAIN, plain([[1, -1]]), "prompt[0][1]: expected a token"),
    "a token too large": (PLAIN, plain([1 << 40]), "prompt[0]: expected a token"),
    "suffix": (PLAIN, plain("a", suffix=7), "suffix: expected a string"),
}


@pytest.mark.parametrize(("path", "body", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_named(path: bytes, body: bytes, said: str) -> None:
    """400, with the field, what was expected, and what was found."""
    with pytest.raises(MessageError) as raised:
        read_prompt(path, body)
    assert raised.value.status == 400
    assert said in raised.value.reason


def test_a_name_twice_in_a_tool_is_the_engines_business() -> None:
    """Only what the router reads must have one meaning."""
    body = b'{"messages":[{"role":"user","content":"a"}],"tools":[{"a":1,"a":2}]}'
    assert read_prompt(CHAT, body).model == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(0.5) | SAID,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["model", "messages", "role", "content", "prompt", "type", "text", "tools"]
            ),
            inner,
        )
    ),
    max_leaves=15,
)


@given(JSON, st.sampled_from([CHAT, PLAIN]))
def test_every_body_is_read_or_refused(value: object, path: bytes) -> None:
    """No other error comes out, whatever is where."""
    with contextlib.suppress(MessageError):
        read_prompt(path, json.dumps(value).encode())


@given(st.binary(max_size=100))
def test_every_string_of_bytes_is_read_or_refused(body: bytes) -> None:
    """The same of what is no JSON."""
    with pytest.raises(MessageError):
        read_prompt(CHAT, body)


def test_a_body_that_is_cut_is_refused_at_every_length() -> None:
    """Nothing is decided by half of a request."""
    body = chat(user("Hi"), stream=True)
    for length in range(len(body)):
        with pytest.raises(MessageError, match="not JSON"):
            read_prompt(CHAT, body[:length])
