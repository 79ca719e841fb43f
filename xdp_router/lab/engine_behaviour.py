# SPDX-License-Identifier: Apache-2.0
"""How the mock engine answers a request: values, with their form as ``key=value,...``.

The same keys are options of the command line, and of the ``x-mock`` header of one request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import LabError

HEADER = "x-mock"
_MS = 1_000_000
_TRUE = {"1": True, "true": True, "yes": True, "": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What happens to one request to an engine's API.

    ``ttft_ms``: until the first token, and ``prompt_us`` more for each KiB of its body;
    ``gap_ms``: between tokens; ``tokens``: how many; ``token_bytes``: of each. ``reasoning`` and
    ``tool``: the first token is one of these instead of content.

    ``early_headers``: the head goes out at once, not with the first token; ``role_first``,
    ``comment_first``, ``error_first``: what comes at once before (or, for an error, instead of)
    tokens. ``ping_ms``: a comment each so many ms until the first token.

    ``status``: that instead of an answer, after ``ttft_ms``; ``retry_after``: its header, in s.
    ``crash_after``: RST after so many tokens (with 0, before the head unless it is early);
    ``close_after``: as that, by FIN. ``stall_after``: nothing more after so many tokens, for
    ``stall_ms`` (0: for ever). ``bad_head``: an answer that is no HTTP.

    ``to_end``: without chunks, the body goes up to the end of the connection; ``close``: the
    connection is closed after the answer; ``split``: every byte of the answer is a segment of its
    own; ``read_after_ms``: the request's body is left in the socket for so long.
    """

    ttft_ms: float = 0.0
    prompt_us: float = 0.0
    gap_ms: float = 0.0
    tokens: int = 8
    token_bytes: int = 4
    reasoning: bool = False
    tool: bool = False
    early_headers: bool = False
    role_first: bool = False
    comment_first: bool = False
    error_first: bool = False
    ping_ms: float = 0.0
    status: int = 200
    retry_after: str = ""
    crash_after: int = -1
    close_after: int = -1
    stall_after: int = -1
    stall_ms: float = 0.0
    bad_head: bool = False
    to_end: bool = False
    close: bool = False
    split: bool = False
    read_after_ms: float = 0.0

    @property
    def gap_ns(self) -> int:
        """From one token to the next."""
        return round(self.gap_ms * _MS)

    @property
    def last(self) -> int:
        """The number of tokens after which the connection breaks; -1: it does not."""
        return self.crash_after if self.crash_after >= 0 else self.close_after

    def first_ns(self, prompt_bytes: int) -> int:
        """Until the first token, for a prompt that is in no cache."""
        return round(self.ttft_ms * _MS + self.prompt_us * prompt_bytes * 1000 / 1024)

    def changed(self, text: str) -> Behaviour:
        """With what ``key=value,...`` says; a key without a value is switched on.

        Raises LabError, with the key, for what is no behaviour.
        """
        changes: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, _, value = part.partition("=")
            name = key.strip().replace("-", "_")
            if name not in KINDS:
                raise LabError(f"{key.strip()!r} is no behaviour: {', '.join(map(option, KINDS))}")
            changes[name] = _value(name, value.strip())
        return dataclasses.replace(self, **changes)


def _kinds() -> Mapping[str, type]:
    default = Behaviour()
    return {
        field.name: type(getattr(default, field.name)) for field in dataclasses.fields(Behaviour)
    }


KINDS = _kinds()
"""The fields, each with the type of its value."""


def option(name: str) -> str:
    """A field's name as it is on the command line and in the header."""
    return name.replace("_", "-")


def _value(name: str, text: str) -> object:
    kind = KINDS[name]
    try:
        value = _TRUE[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "1 or 0", int: "a number", float: "a number"}[kind]
        raise LabError(f"{option(name)}={text}: expected {wanted}") from None
    if kind is float and not 0 <= value < 1e9:  # neither is NaN
        raise LabError(f"{option(name)}={text}: expected 0 or more")
    return value
