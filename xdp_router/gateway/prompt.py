# SPDX-License-Identifier: Apache-2.0
"""What a router reads of a request for a completion: the model, and how its prompt begins.

The body itself is sent on as it came. What is wrong with it beyond what is read here, the engine
says.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import MessageError

# Between parts, and between a part's name and its text: no tokenizer's text has them.
_PART = b"\x1e"
_NAME = b"\x1f"
MODEL_MOST = 255
"""Characters of a model's name, as in the configuration."""
_MAX_TOKEN = (1 << 32) - 1

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request for a completion.

    ``model``: as asked for, "" if the request names none. ``text``: model, tools and messages (or
    the prompt) in the order in which an engine sees them, each after its role. Two requests whose
    texts begin alike have prompts that begin alike; it is for comparing, not for reading.
    """

    model: str
    stream: bool
    text: bytes


def read_prompt(path: bytes, body: bytes) -> Prompt:
    """The prompt of a request for ``path`` (without its query).

    Raise MessageError: 404 for another path than .../completions or .../chat/completions, 400
    naming the field that cannot be read.
    """
    if not path.endswith(b"/completions"):
        raise MessageError(404, "expected a path that ends in /completions or /chat/completions")
    request = _parse(body)
    model = check_model(_text(request, "model"))
    parts = [model.encode("utf-8", "surrogatepass")]
    salt = _text(request, "cache_salt")
    if salt:
        parts.append(b"salt" + _NAME + salt.encode("utf-8", "surrogatepass"))
    if path.endswith(b"/chat/completions"):
        parts.extend(_conversation(request))
    else:
        parts.extend(_completion(request))
    return Prompt(
        model,
        _flag(request, "stream"),
        _PART.join(parts),
    )


def check_model(name: str) -> str:
    """``name``, if it can be one of a model: it is kept, and shown by commands and metrics.

    Raise MessageError (400) for another one.
    """
    if len(name) > MODEL_MOST or not name.isprintable():
        raise MessageError(400, f"model: expected at most {MODEL_MOST} printable characters")
    return name


class _Repeated(dict[str, Any]):
    """An object that has a name twice: readers differ in which one they take."""

    __slots__ = ("name",)

    name: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = _Repeated(found)
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            repeated.name = name
            break
        seen.add(name)
    return repeated


_decode = json.JSONDecoder(object_pairs_hook=_object).decode


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = _decode(body.decode())
    except UnicodeDecodeError as error:
        raise MessageError(400, f"the body is not UTF-8, at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise MessageError(
            400, f"the body is not JSON: {error.msg} at character {error.pos}"
        ) from None
    except ValueError:
        raise MessageError(400, "the body has a number of too many digits") from None
    except RecursionError:
        raise MessageError(400, "the body is nested too deeply") from None
    if not isinstance(request, dict):
        raise _wrong("the body", "an object", request)
    if isinstance(request, _Repeated):
        raise MessageError(400, f"the body has {_shown(request.name)} twice")
    return request


def _conversation(request: dict[str, Any]) -> Iterator[bytes]:
    for field in ("tools", "functions"):
        if request.get(field):
            yield field.encode() + _NAME + _canonical(request[field])
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "a list of at least one message", messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong(f"messages[{index}]", "an object", message)
        role = message.get("role")
        if not isinstance(role, str):
            raise _wrong(f"messages[{index}].role", "a string", role)
        yield role.encode("utf-8", "surrogatepass") + _NAME + _content(message, index)
        for field in ("name", "tool_call_id", "tool_calls", "function_call"):
            if message.get(field):
                yield field.encode() + _NAME + _canonical(message[field])


def _content(message: dict[str, Any], index: int) -> bytes:
    content = message.get("content")
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if content is None:
        return b""
    if not isinstance(content, list):
        raise _wrong(f"messages[{index}].content", "a string or a list of parts", content)
    parts = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            parts.append(part.encode("utf-8", "surrogatepass"))
        elif not isinstance(part, dict):
            raise _wrong(f"messages[{index}].content[{number}]", "an object", part)
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            parts.append(part["text"].encode("utf-8", "surrogatepass"))
        else:
            parts.append(_canonical(part))
    return _NAME.join(parts)


def _completion(request: dict[str, Any]) -> Iterator[bytes]:
    prompt = request.get("prompt")
    if isinstance(prompt, str):
        yield prompt.encode("utf-8", "surrogatepass")
    elif isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            yield _tokens(prompt, "prompt")
        else:
            for index, each in enumerate(prompt):
                if isinstance(each, str):
                    yield each.encode("utf-8", "surrogatepass")
                elif isinstance(each, list):
                    yield _tokens(each, f"prompt[{index}]")
                else:
                    raise _wrong(f"prompt[{index}]", "a string or a list of tokens", each)
    elif prompt is None and request.get("prompt_embeds"):
        yield _canonical(request["prompt_embeds"])
    else:
        raise _wrong("prompt", "a string, or a list of strings or of tokens", prompt)
    if request.get("suffix"):
        yield _text(request, "suffix").encode("utf-8", "surrogatepass")


def _tokens(tokens: list[Any], field: str) -> bytes:
    # Four bytes each, about what a token of text has: a block is as many tokens either way.
    try:
        return array("I", tokens).tobytes()
    except (TypeError, OverflowError):
        for index, token in enumerate(tokens):
            if type(token) is not int or not 0 <= token <= _MAX_TOKEN:
                raise _wrong(f"{field}[{index}]", "a token (0 to 4294967295)", token) from None
        raise


def _text(request: dict[str, Any], field: str) -> str:
    value = request.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(field, "a string", value)
    return value


def _flag(request: dict[str, Any], field: str) -> bool:
    value = request.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong(field, "true or false", value)
    return value


def _canonical(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
    except RecursionError:
        raise MessageError(400, "the body is nested too deeply") from None


def _wrong(field: str, expected: str, found: object) -> MessageError:
    return MessageError(400, f"{field}: expected {expected}, found {_found(found)}")


def _found(value: object) -> str:
    if isinstance(value, list) and not value:
        return "an empty list"
    if isinstance(value, dict):
        return "an object"
    return _KINDS.get(type(value), "something else")


def _shown(name: str) -> str:
    return json.dumps(name[:40])
