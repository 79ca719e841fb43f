# SPDX-License-Identifier: Apache-2.0
"""What counts as the first token of an answer.

Not a head, not a delta with a role alone, not a comment or a ping, not an error object in a 200:
an engine sends each of these long before it has generated anything, or instead of it. What counts
is content of any kind, or that an answer without any is finished. Only parsed JSON decides: bytes
that look like a token can stand inside a string.
"""

from __future__ import annotations

import enum
import json

# Of a choice's delta (or its message, in an answer in one piece). Engines differ in what they
# call the thoughts of a model; function_call is what tool_calls were before.
_CONTENT = (
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "refusal",
    "function_call",
)
# Reasons to finish that say the engine has failed: engines abort what they have no room for.
_FAILED = frozenset({"error", "abort"})

_DONE = b"[DONE]"
_parse = json.JSONDecoder().decode


class Verdict(enum.Enum):
    """What one payload of a stream says."""

    TOKEN = "token"
    """Content: text, thoughts, calls of tools, a refusal."""
    NOTHING = "nothing"
    """Nothing yet: a role, an empty delta, usage, what is no JSON or somebody else's."""
    ERROR = "error"
    """An error object, or a finish by one."""
    FINISHED = "finished"
    """A choice is finished, and not by an error; no content comes with it."""
    DONE = "done"
    """The end mark of the stream."""


def first_token(data: bytes) -> Verdict:
    """What one payload of an event stream says, or an answer in one piece.

    For chunks of chat and of plain completions. Never raises: what cannot be read is NOTHING.
    """
    if data == _DONE:
        return Verdict.DONE
    try:
        chunk = _parse(str(data, "utf-8", "replace"))
    except (ValueError, RecursionError):
        return Verdict.DONE if data.strip() == _DONE else Verdict.NOTHING
    if not isinstance(chunk, dict):
        return Verdict.NOTHING
    if chunk.get("error") or chunk.get("object") == "error":
        return Verdict.ERROR
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return Verdict.NOTHING
    verdict = Verdict.NOTHING
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        if _has_content(choice):
            return Verdict.TOKEN
        reason = choice.get("finish_reason")
        if not reason or not isinstance(reason, str):
            continue
        if reason in _FAILED:
            verdict = Verdict.ERROR
        elif verdict is Verdict.NOTHING:
            verdict = Verdict.FINISHED
    return verdict


def whole_answer(body: bytes) -> Verdict:
    """What the complete body of an answer that is not streamed says: ERROR or TOKEN.

    Whatever is no error object is an answer, JSON or not.
    """
    return Verdict.ERROR if first_token(body) is Verdict.ERROR else Verdict.TOKEN


def _has_content(choice: dict[str, object]) -> bool:
    delta = choice.get("delta") or choice.get("message")
    if isinstance(delta, dict):
        for name in _CONTENT:
            value = delta.get(name)
            if value and isinstance(value, (str, list, dict)):
                return True
    text = choice.get("text")
    return bool(text) and isinstance(text, str)
