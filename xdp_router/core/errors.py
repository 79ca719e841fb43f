# SPDX-License-Identifier: Apache-2.0
"""Errors that a caller can act on. Layers add subclasses in their own modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class XdpRouterError(Exception):
    """Base of every error whose message is meant for the operator."""


class AbiError(XdpRouterError, ValueError):
    """Bytes from the kernel do not have the layout or the values of ``ebpf/abi.h``."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong with a configuration.

    ``line`` counts from 1; 0 means that there is no line to point at. ``key`` is dotted, or
    the command line flag. ``detail`` says what was found and what was expected, ``expected``
    the latter alone.
    """

    path: str
    line: int
    key: str
    detail: str
    expected: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.key}: {self.detail}" if self.key else f"{where}: {self.detail}"


class ConfigError(XdpRouterError):
    """A configuration that cannot be used.

    The message has one ``file:line: key: what was found, what was expected`` line for each
    problem. ``path``, ``line``, ``key`` and ``expected`` are those of the first one.
    """

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        if not problems:
            raise ValueError("ConfigError needs at least one problem")
        self.problems = tuple(problems)
        first = self.problems[0]
        self.path = first.path
        self.line = first.line
        self.key = first.key
        self.expected = first.expected
        super().__init__("\n".join(str(problem) for problem in self.problems))
