# SPDX-License-Identifier: Apache-2.0
"""An event as a line: for programs, and for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_FIRST = ("number", "time", "event", "level")


def event_line(event: Mapping[str, Any]) -> str:
    """JSON."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def event_text(event: Mapping[str, Any]) -> str:
    """Time of day, name, and keys with their values."""
    time = str(event.get("time", ""))[11:23]
    rest = " ".join(
        f"{key}={_word(value)}"
        for key, value in event.items()
        if key not in _FIRST and value not in (None, "", [], {})
    )
    return f"{time:12} {event.get('event', '')}  {rest}".rstrip()


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return _several(f"{_plain(key)}:{_word(each)}" for key, each in value.items())
    if isinstance(value, list):
        return _several(map(_word, value))
    text = _plain(value)
    return f'"{text}"' if " " in text else text


def _several(words: Iterable[str]) -> str:
    """Words without blanks stand close; whole sentences, each in quotes, with a blank between."""
    found = list(words)
    return (", " if any(" " in each for each in found) else ",").join(found)


def _plain(value: object) -> str:
    text = str(value) if isinstance(value, str | int | float) else json.dumps(value)
    # What comes from outside must not move the cursor.
    return "".join(each if each.isprintable() else "?" for each in text)
