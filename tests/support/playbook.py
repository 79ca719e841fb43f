# SPDX-License-Identifier: Apache-2.0
"""Conversations with the engine: what it is told and when, and what it must answer.

    play(
        engine,
        (1 * MS, first_packet(), [SendProbe(1, 61_000, 7)]),
        (2 * MS, BindingWritten(KEY), [...]),
        (51 * MS, EXPIRE, []),
    )

A row is (instant, event, all commands that must come out, in order). The first row that is
answered otherwise fails the test with the difference between the two conversations.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Sequence
from typing import Final

from xdp_router.core.commands import Command
from xdp_router.core.engine import Engine
from xdp_router.core.events import Event
from xdp_router.core.model import FlowKey

US = 1_000
MS = 1_000_000


class Call(enum.Enum):
    """What the engine can be told beside events."""

    EXPIRE = "expire"
    START = "start"


EXPIRE: Final = Call.EXPIRE
START: Final = Call.START

Row = tuple[int, Event | Call, Sequence[Command]]


def tell(engine: Engine, said: Event | Call, now_ns: int) -> list[Command]:
    """One step of a conversation."""
    if said is Call.EXPIRE:
        return engine.expire(now_ns)
    if said is Call.START:
        return list(engine.start())
    assert not isinstance(said, Call)
    return engine.handle(said, now_ns)


def play(engine: Engine, *rows: Row) -> None:
    """Hold the conversation; raise AssertionError at the first wrong answer."""
    expected: list[str] = []
    heard: list[str] = []
    for now_ns, said, commands in rows:
        line = f"{now_ns / MS:12.3f} ms  >> {show(said)}"
        answer = tell(engine, said, now_ns)
        # Rendered at once: a decision that was logged goes on changing.
        expected += [line, *(f"{'':15} << {show(command)}" for command in commands)]
        heard += [line, *(f"{'':15} << {show(command)}" for command in answer)]
        if answer != list(commands):
            difference = difflib.ndiff(expected, heard)
            raise AssertionError("- expected, + heard:\n" + "\n".join(difference))


def show(value: object) -> str:
    """Short and readable: fields at their default and frames are left out."""
    if isinstance(value, FlowKey):
        return f"{value.client_addr:#x}:{value.client_port}"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, tuple) and len(value) > 8:
        return f"({len(value)} of {sorted(set(value))})"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(show, value)) + "]"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    shown = [
        f"{field.name}={show(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if field.default is dataclasses.MISSING or getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(shown)})"
