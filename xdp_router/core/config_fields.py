# SPDX-License-Identifier: Apache-2.0
"""Typed reading of configuration tables, and the collecting of what is wrong with them.

A reader that meets a bad value notes the problem and returns the default, so that one pass
finds all problems. Nobody may use what was read while there are problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from .address import EXAMPLES, parse_endpoint, unusable
from .errors import ConfigError, ConfigProblem
from .model import Endpoint
from .toml_lines import Path, key_lines

T = TypeVar("T")

MS = 1_000_000
S = 1_000_000_000

_UNITS = {"ns": 1, "us": 1_000, "ms": MS, "s": S, "m": 60 * S, "h": 3600 * S}
_DURATION = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)(ns|us|ms|s|m|h)")
NAME_MAX = 64
"""Characters of a name; the longest endpoint with its protocol has 51."""
VLAN_MAX = 4094
"""4095 is reserved (IEEE 802.1Q)."""
_NAME = re.compile(rf"[A-Za-z0-9[][A-Za-z0-9_.:/@[\]-]{{0,{NAME_MAX - 1}}}")
_PORT_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SHOWN = 80
"""Characters of a wrong value that a message repeats."""
_FLAGS = {"service": "--service", "backend": "--backend", "mode": "--mode"}


def format_duration(value_ns: int) -> str:
    """Shortest exact form with one unit, as ``50ms``."""
    for unit in ("h", "m", "s", "ms", "us"):
        if value_ns and value_ns % _UNITS[unit] == 0:
            return f"{value_ns // _UNITS[unit]}{unit}"
    return f"{value_ns}ns" if value_ns else "0s"


class Problems:
    """What is wrong with one file, or with the command line if there is no ``text``."""

    def __init__(self, path: str, text: str | None, *, lines: bool = True) -> None:
        """``lines`` False: keys are those of a file, and nobody knows where in it they are."""
        self._path = path
        self._text = text
        self._has_lines = lines
        self._lines: dict[Path, int] | None = None
        self._found: list[ConfigProblem] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, where: Path, detail: str, expected: str) -> None:
        """Note a problem with the value at ``where``, which may be absent."""
        self.add_at(self._line(where), self._key(where), detail, expected)

    def add_at(self, line: int, key: str, detail: str, expected: str) -> None:
        """Note a problem at a line that is known."""
        self._found.append(ConfigProblem(self._path, line, key, detail, expected))

    def found(self, where: Path, found: str, expected: str) -> None:
        """Note that ``found`` is there, where ``expected`` should be."""
        self.add(where, f"found {found}, expected {expected}", expected)

    def error(self) -> ConfigError:
        """All problems as one error, in the order of the file, each once."""
        return ConfigError(sorted(dict.fromkeys(self._found), key=lambda problem: problem.line))

    def section(self, where: Path) -> str:
        """How the operator writes an element of the array of tables at ``where``."""
        keys = [part for part in where if isinstance(part, str)]
        if self._text is None:
            return f"{_FLAGS.get(keys[-1], keys[-1])} ADDR:PORT"
        return f"[[{'.'.join(keys)}]]"

    def _key(self, where: Path) -> str:
        keys = [part for part in where if isinstance(part, str)]
        if self._text is not None:
            # As a message shows any other wrong value: short, and nothing that a terminal obeys.
            return ".".join(key if _BARE_KEY.fullmatch(key) else repr(key)[:_SHOWN] for key in keys)
        return next((_FLAGS[key] for key in reversed(keys) if key in _FLAGS), "")

    def _line(self, where: Path) -> int:
        if self._text is None or not self._has_lines:
            return 0
        if self._lines is None:
            self._lines = key_lines(self._text)
        # A key that is missing is a problem of the table that should have it.
        while where and where not in self._lines:
            where = where[:-1]
        return self._lines.get(where, 1)


class Table:
    """One table of the document; remembers which keys were asked for."""

    def __init__(self, values: Mapping[str, Any], where: Path, problems: Problems) -> None:
        self._values = values
        self._where = where
        self._problems = problems
        self._known: list[str] = []

    def found(self, key: str, found: str, expected: str) -> None:
        """Note a problem with ``key``."""
        self._problems.found((*self._where, key), found, expected)

    def has(self, key: str) -> bool:
        """Whether there is a value, of whatever type."""
        return key in self._values

    def own_keys(self) -> list[str]:
        """The keys that it has, for tables whose keys are the operator's own words."""
        return list(self._values)

    def wrong(self, key: str, text: str, expected: str) -> None:
        """Note that ``key`` has the value ``text``, which will not do."""
        self.found(key, _quoted(text), expected)

    def text(self, key: str, expected: str) -> str | None:
        """Any string; None if there is none."""
        text: str | None = self._get(key, str, expected, None)
        return text

    def items(
        self, key: str, kinds: type | tuple[type, ...], expected: str
    ) -> list[tuple[int, Any]]:
        """The values of the array at ``key`` that are of these kinds, each with its place."""
        values = self._get(key, list, f"an array of {expected}", None)
        if values == []:
            self.found(key, "an empty array", expected)
        found = []
        for index, value in enumerate(values or ()):
            if isinstance(value, kinds) and not isinstance(value, bool):
                found.append((index, value))
            else:
                self.found_at(key, index, _describe(value), expected)
        return found

    def found_at(self, key: str, index: int, found: str, expected: str) -> None:
        """Note a problem with one value of an array."""
        self._problems.found((*self._where, key, index), found, expected)

    def problem_at(self, key: str, index: int, detail: str, expected: str) -> None:
        """The same, in words of its own."""
        self._problems.add((*self._where, key, index), detail, expected)

    def refuse_unknown(self) -> None:
        """Note every key that nobody asked for."""
        for key in self._values:
            if key not in self._known:
                known = ", ".join(sorted(self._known))
                self._problems.add(
                    (*self._where, key), f"unknown key, expected one of: {known}", known
                )

    def table(self, key: str) -> Table:
        """The table at ``key``; an empty one if there is none."""
        value = self._get(key, dict, f"a table, [{key}]", {})
        return Table(value, (*self._where, key), self._problems)

    def tables(self, key: str, at_least_one: bool) -> list[Table]:
        """The array of tables at ``key``."""
        where = (*self._where, key)
        section = self._problems.section(where)
        value = self._get(key, list, f"tables, {section}", None)
        if at_least_one and (value == [] or key not in self._values):
            self.found(key, "none", f"at least one {section}")
        entries = []
        for index, entry in enumerate(value or ()):
            if isinstance(entry, dict):
                entries.append(Table(entry, (*where, index), self._problems))
            else:
                self._problems.found((*where, index), _describe(entry), f"a table, {section}")
        return entries

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Whole number from ``low`` to ``high``."""
        expected = f"a whole number from {low} to {high}"
        value: int | None = self._get(key, int, expected, None)
        if value is None:
            return default  # which may be beyond both: what cannot be written
        if not low <= value <= high:
            self.found(key, _digits(value), expected)
            return default
        return value

    def number(self, key: str, default: float, low: int, high: int) -> float:
        """Number, whole or not, from ``low`` to ``high``."""
        expected = f"a number from {low} to {high}"
        value: float = self._get(key, (int, float), expected, default)
        if not low <= value <= high:  # neither is "nan"
            self.found(key, _digits(value), expected)
            return default
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """``true`` or ``false``."""
        value: bool = self._get(key, bool, "true or false", default)
        return value

    def vlan(self, key: str) -> int | None:
        """A VLAN id; 0 for ``"none"``, None if there is nothing."""
        expected = f'a VLAN id from 1 to {VLAN_MAX}, or "none" for frames without a tag'
        if self._values.get(key) == "none":
            self._known.append(key)
            return 0
        value: int | None = self._get(key, int, expected, None)
        if value is not None and not 1 <= value <= VLAN_MAX:
            self.found(key, _digits(value), expected)
            return None
        return value

    def duration(self, key: str, default_ns: int, low_ns: int, high_ns: int) -> int:
        """Nanoseconds of a duration such as ``"50ms"``."""
        expected = (
            f'a duration from "{format_duration(low_ns)}" to "{format_duration(high_ns)}", '
            'as "50ms", "2s" or "1h"'
        )
        text = self._get(key, str, expected, None)
        if text is None:
            return default_ns
        match = _DURATION.fullmatch(text)
        value = Fraction(match[1]) * _UNITS[match[2]] if match else Fraction(-1)
        if not low_ns <= value <= high_ns or value.denominator != 1:
            self.found(key, _quoted(text), expected)
            return default_ns
        return int(value)

    def name(self, key: str, default: str) -> str:
        """A name that commands, logs and metrics can show."""
        expected = (
            f"a name of 1 to {NAME_MAX} letters, digits and _ . : / @ - [ ], with a letter, a "
            "digit or [ first"
        )
        text: str | None = self._get(key, str, expected, None)
        if text is None:
            return default
        if not _NAME.fullmatch(text):
            self.found(key, _quoted(text), expected)
            return default
        return text

    def choice(
        self, key: str, default: str, choices: Mapping[str, T], later: Sequence[str] = ()
    ) -> T:
        """One of ``choices``; those of ``later`` are planned words of other versions."""
        expected = " or ".join(map(repr, choices))
        text: str = self._get(key, str, expected, default)
        if text in choices:
            return choices[text]
        if text in later:
            detail = f"{key} {text!r} is not available in this version: use {expected}"
            self._problems.add((*self._where, key), detail, expected)
        else:
            self.found(key, _quoted(text), expected)
        return choices[default]

    def endpoint(
        self,
        key: str,
        proto: int,
        parse: Callable[[str, int], Endpoint] = parse_endpoint,
        examples: str = EXAMPLES,
    ) -> Endpoint:
        """Unicast address and port; address 0 stands for one that was bad or missing."""
        expected = f"an address and port, as {examples}"
        bad = Endpoint(0, 0, proto)
        text = self._get(key, str, expected, None)
        if text is None:
            if key not in self._values:
                self.found(key, "nothing", expected)
            return bad
        try:
            endpoint = parse(text, proto)
        except ValueError as error:
            self._problems.add((*self._where, key), str(error), expected)
            return bad
        kind = unusable(endpoint.addr)
        if kind:
            self.found(key, f"{text!r}, {kind}", "a unicast address that packets can be sent to")
            return bad
        return endpoint

    def port_range(self, key: str, default: tuple[int, int]) -> tuple[int, int]:
        """First and last port of a range such as ``"61000-61999"``."""
        expected = 'a port range within 1024 to 65535, low end first, as "61000-61999"'
        text = self._get(key, str, expected, None)
        if text is None:
            return default
        match = _PORT_RANGE.fullmatch(text)
        low, high = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1024 <= low <= high <= 65535:
            self.found(key, _quoted(text), expected)
            return default
        return low, high

    def _get(self, key: str, kind: type | tuple[type, ...], expected: str, default: Any) -> Any:
        self._known.append(key)
        value = self._values.get(key)
        if value is None:
            return default
        # To Python a boolean is an int; to an operator it is a mistake.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.found(key, _describe(value), expected)
            return default
        return value


def _describe(value: object) -> str:
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {_digits(value)}"
    if isinstance(value, str):
        return f"the string {_quoted(value)}"
    if isinstance(value, list):
        return "an array"
    return "a table" if isinstance(value, dict) else f"a {type(value).__name__}"


def _quoted(text: str) -> str:
    """A string as a message can show it."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"


def _digits(value: float) -> str:
    try:
        text = str(value)
    except ValueError:  # hexadecimal digits have no limit, decimal ones have
        return "a number of more than 4000 digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} digits)"
