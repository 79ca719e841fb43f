# SPDX-License-Identifier: Apache-2.0
"""Logging is set up here and nowhere else; code emits an event name and keys."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import structlog

FORMATS = ("console", "json")

_log = structlog.get_logger()


def configure(log_format: str, stream: Any = None) -> Callable[[int], str]:
    """Send log lines to ``stream`` (default: stderr) as ``console`` or ``json``.

    Returns what makes the line that tells how many lines were lost.
    """
    out = stream if stream is not None else sys.stderr
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty())
    )
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        renderer,
    ]

    def lost_line(count: int) -> str:
        line: Any = {
            "event": "log_lines_lost",
            "count": count,
            "reason": "nobody has read the log for a while",
        }
        for process in processors:
            line = process(None, "warning", line)
        return f"{line}\n"

    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    return lost_line


def listen(hear: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
    """Have every line heard as it is written, before it is put into its form. Returns the undo."""

    def tap(_logger: Any, _name: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        hear(line)
        return line

    def undo() -> None:
        processors = structlog.get_config()["processors"]
        structlog.configure(processors=[each for each in processors if each is not tap])

    processors = list(structlog.get_config()["processors"])
    structlog.configure(processors=[*processors[:-1], tap, processors[-1]])
    return undo


class Sampler:
    """Lets so many lines a second through and counts the rest.

    ``take`` answers whether this line may be written; ``skipped`` says how many were not
    since the last one that was, and is reset by it.
    """

    __slots__ = ("_left", "_per_second", "_second", "_skipped")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._second = -1
        self._left = 0
        self._skipped = 0

    def take(self, now_ns: int) -> bool:
        """Whether a line may be written at ``now_ns``."""
        second = now_ns // 1_000_000_000
        if second > self._second:  # one that is told late begins no second anew
            self._second = second
            self._left = self._per_second
        if self._left <= 0:
            self._skipped += 1
            return False
        self._left -= 1
        return True

    def skipped(self) -> int:
        """Lines kept back since the last call."""
        count, self._skipped = self._skipped, 0
        return count


def log_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception that nobody caught, in a callback or a task: the loop goes on."""
    error = context.get("exception")
    _log.error("fault", message=context["message"], error=repr(error) if error else None)
