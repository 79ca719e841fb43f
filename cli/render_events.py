# SPDX-License-Identifier: Apache-2.0
"""An event as a line: for programs, and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        return ",".join(f"{key}:{each}" for key, each in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value) if isinstance(value, str | int | float) else json.dumps(value)
    # What comes from outside must not move the cursor.
    text = "".join(each if each.isprintable() else "?" for each in text)
    return f'"{text}"' if " " in text else text
