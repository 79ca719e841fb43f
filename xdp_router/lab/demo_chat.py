# SPDX-License-Identifier: Apache-2.0
"""A client of the gateway's demo: asks for tokens as OpenAI's clients do, and notes what comes."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .namespace import Namespace

PATH = "/v1/chat/completions"
_PATIENCE_S = 20.0


@dataclass(slots=True)
class Chat:
    """One request. ``ttft_ns``: from before the connection to the first token, 0: none came.
    ``end``: empty if the stream was whole, else how it ended. ``lines``: of the stream, those
    with content, as they came."""

    status: int = 0
    engine: str = ""
    request_id: str = ""
    ttft_ns: int = 0
    tokens: int = 0
    lines: list[str] = field(default_factory=list)
    end: str = ""


def ask(
    namespace: Namespace,
    address: tuple[str, int],
    *,
    tokens: int = 3,
    headers: Mapping[str, str] | None = None,
    on_token: Callable[[Chat], None] = lambda chat: None,
) -> Chat:
    """Stream so many tokens. ``on_token`` is called for each. Whatever fails is told in ``end``."""
    body = {
        "model": "mock",
        "stream": True,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": "Say something."}],
    }
    chat = Chat()
    started_ns = time.monotonic_ns()
    connection = http.client.HTTPConnection(*address)
    try:
        connection.sock = namespace.connect(address, timeout=_PATIENCE_S)
        given = {"Content-Type": "application/json", **(headers or {})}
        connection.request("POST", PATH, json.dumps(body), given)
        response = connection.getresponse()
        chat.status = response.status
        chat.engine = response.getheader("X-Engine", "")
        chat.request_id = response.getheader("X-Request-ID", "")
        for line in response:
            if text := line.decode().strip():
                chat.lines.append(text)
                _take(chat, text, started_ns, on_token)
        if not chat.lines or chat.lines[-1] != "data: [DONE]":
            chat.end = "no [DONE]"
    except (OSError, http.client.HTTPException) as error:
        chat.end = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return chat


def _take(chat: Chat, line: str, started_ns: int, on_token: Callable[[Chat], None]) -> None:
    if not line.startswith("data: {"):
        return
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    if choices[0].get("delta", {}).get("content"):
        chat.ttft_ns = chat.ttft_ns or time.monotonic_ns() - started_ns
        chat.tokens += 1
        on_token(chat)


def ask_many(
    namespace: Namespace, address: tuple[str, int], count: int, at_once: int
) -> Sequence[Chat]:
    """So many requests of three tokens, ``at_once`` at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda _: ask(namespace, address), range(count)))
