# SPDX-License-Identifier: Apache-2.0
"""What clients ask: conversations, whose turns come by a Poisson process, the same for each arm.

A prompt begins with one of a few system prompts and has all of its conversation before it, so much
of it may be in an engine's prefix cache. Answers in a conversation are made up beforehand: nobody
waits for anybody (an open loop), and what an arm does changes nothing of what comes next.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass

_WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with")
_NS = 1_000_000_000
_GOES_ON = 0.7
"""How much of what comes goes on with a conversation, if there is one to go on with."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Bytes, turns and tokens are from-to, drawn evenly. ``think_s``: the shortest time between
    two turns of a conversation."""

    systems: int = 4
    system_bytes: tuple[int, int] = (1_500, 3_000)
    user_bytes: tuple[int, int] = (150, 900)
    answer_bytes: tuple[int, int] = (200, 600)
    turns: tuple[int, int] = (1, 6)
    tokens: tuple[int, int] = (12, 36)
    think_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: ``due_ns`` from the begin, the messages' texts (a system prompt, then user and
    assistant in turn), and how many tokens are wanted."""

    due_ns: int
    texts: tuple[str, ...]
    tokens: int

    def body(self) -> bytes:
        """As the API has it."""
        roles = ["system", *(("user", "assistant")[n % 2] for n in range(len(self.texts) - 1))]
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, self.texts, strict=True)
        ]
        # The mock's cache has blocks of the body: what differs in each comes last.
        asked = {"model": "mock", "messages": messages, "stream": True, "max_tokens": self.tokens}
        return json.dumps(asked).encode()

    def request(self) -> bytes:
        """All bytes of it."""
        body = self.body()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: engines.test\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        ) + body


@dataclass(slots=True)
class _Conversation:
    texts: list[str]
    left: int
    free_ns: int = 0


def schedule(
    rate: float, seconds: float, seed: int, nonce: str, shape: Shape | None = None
) -> list[Turn]:
    """All turns of one slice. ``nonce``: prompts with another one have no block in common with
    these, and the same lengths: what a cache has of earlier slices is of no use."""
    shape = shape or Shape()
    source = random.Random(seed)
    mark = hashlib.blake2s(f"{nonce} {seed}".encode()).hexdigest()[:16]
    systems = [f"{mark} {n} {_text(source, shape.system_bytes)}" for n in range(shape.systems)]
    open_: list[_Conversation] = []
    found: list[Turn] = []
    due_ns = round(source.expovariate(rate) * _NS)
    while due_ns < seconds * _NS:
        idle = [each for each in open_ if each.free_ns <= due_ns]
        if idle and source.random() < _GOES_ON:
            talk = source.choice(idle)
        else:
            talk = _Conversation([source.choice(systems)], source.randint(*shape.turns))
            open_.append(talk)
        talk.texts.append(_text(source, shape.user_bytes))
        found.append(Turn(due_ns, tuple(talk.texts), source.randint(*shape.tokens)))
        talk.texts.append(_text(source, shape.answer_bytes))
        talk.left -= 1
        talk.free_ns = due_ns + round(shape.think_s * _NS)
        if not talk.left:
            open_.remove(talk)
        due_ns += round(source.expovariate(rate) * _NS)
    return found


def _text(source: random.Random, size: tuple[int, int]) -> str:
    length = source.randint(*size)
    text = " ".join(source.choices(_WORDS, k=length // 3))
    return text[:length].ljust(length, ".")
