# SPDX-License-Identifier: Apache-2.0
"""Line numbers for the keys of a TOML document, which ``tomllib`` does not keep."""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]
"""Where a value is: keys, and indices into arrays, as ``("service", 0, "address")``."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[Path, int]:
    """First line, from 1, of each table, key and array element of a valid document.

    ``text`` must be one that ``tomllib`` accepts; for another one the result is unspecified.
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


class _Scanner:
    """Walks over a document and notes where things begin; it trusts the syntax."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}  # elements so far of each array of tables
        self._line = 1
        self._counted_to = 0

    def document(self) -> None:
        table: Path = ()
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                self.at += 2
                keys = self._keys()
                self.at = self.text.index("]]", self.at) + 2
                array = (*self._resolve((), keys[:-1]), keys[-1])
                count = self._counts.get(array, 0)
                self._counts[array] = count + 1
                self._note(array)
                table = (*array, count)
            elif self.text[self.at] == "[":
                self.at += 1
                keys = self._keys()
                self.at = self.text.index("]", self.at) + 1
                table = self._resolve((), keys)
            else:
                self._assignment(table)
                continue
            self._note(table)

    def _assignment(self, table: Path) -> None:
        path = table
        self._count_lines()
        line = self._line
        for key in self._keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at = self.text.index("=", self.at) + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_blank()
        char = self.text[self.at]
        if char == "[":
            self._items("]", path)
        elif char == "{":
            self._items("}", path)
        elif match := _STRING.match(self.text, self.at):
            self.at = match.end()
        else:
            match = _SCALAR.match(self.text, self.at)
            self.at = match.end() if match else self.at + 1

    def _items(self, close: str, path: Path) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and self.text[self.at] != close:
            if self.text[self.at] == ",":
                self.at += 1
            elif close == "}":
                self._assignment(path)
            else:
                self._note((*path, index))
                self._value((*path, index))
                index += 1
        self.at += 1

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip_blank()
            if match := _STRING.match(self.text, self.at):
                keys.append(str(tomllib.loads("key = " + match[0])["key"]))
            elif match := _BARE_KEY.match(self.text, self.at):
                keys.append(match[0])
            else:
                raise ValueError(f"no key at offset {self.at}: not a TOML document")
            self.at = match.end()
            self._skip_blank()
            if not self.text.startswith(".", self.at):
                return keys
            self.at += 1

    def _resolve(self, path: Path, keys: list[str]) -> Path:
        """A header names an array of tables to mean its newest element."""
        for key in keys:
            path = (*path, key)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        return path

    def _skip_blank(self) -> bool:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at < len(self.text)

    def _note(self, path: Path) -> None:
        self._count_lines()
        self.lines.setdefault(path, self._line)

    def _count_lines(self) -> None:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
