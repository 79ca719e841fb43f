# SPDX-License-Identifier: Apache-2.0
"""The file that a router is configured by: read at the start and for each reload, and written
when an edit is to be kept.

It is written beside itself and renamed into place, and never if it says anything else than what
was read last: somebody has edited it, and would lose that.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from xdp_router.core.config import RouterConfig, parse_config
from xdp_router.core.config_edit import Edit, EditError, apply_edit
from xdp_router.core.errors import ConfigError, ConfigProblem, XdpRouterError

from . import garbage
from .config_layout import laid_out

_BYTE_ORDER_MARK = "\ufeff"


class NotSaved(XdpRouterError):
    """The file was not written, and why."""


class ConfigFile:
    """``max_flows`` goes before that of the file, if it is not None."""

    def __init__(self, path: Path, max_flows: int | None = None) -> None:
        # Whoever reads it again may be asked to from another directory.
        self.path = path.absolute()
        self.shown = str(path)
        """As messages call it."""
        self.max_flows = max_flows
        self.text = ""
        """What it said when it was read, or written, last, for good."""

    def read(self) -> str:
        """What it says now. Raises ConfigError."""
        try:
            with self.path.open(encoding="utf-8", newline="") as file:  # its line ends are its own
                return file.read()
        except OSError as error:
            raise self._bad(f"cannot be read: {error.strerror}", "a readable file") from error
        except UnicodeDecodeError as error:
            raise self._bad("not UTF-8 text: expected TOML", "TOML") from error

    def _bad(self, detail: str, expected: str) -> ConfigError:
        return ConfigError([ConfigProblem(self.shown, 0, "", detail, expected)])

    def parse(self, text: str) -> RouterConfig:
        """What ``text`` means, as this file's. Raises ConfigError, with every problem."""
        with garbage.postponed():
            return parse_config(text, self.shown, self.max_flows)

    def load(self) -> RouterConfig:
        """Read it, for good. Raises ConfigError."""
        text = self.read()
        config = self.parse(text)
        self.text = text
        return config

    # Written

    def edited(self, edit: Edit) -> str:
        """Its text with an edit, all else as it is. Raises NotSaved, EditError or ConfigError."""
        text = self._unchanged()
        wanted = document_of(text)
        config = self.parse(text)
        try:
            apply_edit(wanted, config, edit)
        except EditError as error:
            raise NotSaved(
                f"{self.shown}: {error}: what was changed without --save is not in the file"
            ) from error
        try:
            bare = text.removeprefix(_BYTE_ORDER_MARK)
            if not bare.endswith("\n"):  # or what is put in would go on with its last line
                bare += "\r\n" if "\r\n" in bare else "\n"
            document = tomlkit.parse(bare)
            apply_edit(document, config, edit)
            mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
            edited = tomlkit.dumps(document)
            new = mark + laid_out(bare, edited)
            if not _says(new, wanted):  # a text in several lines may look like tables
                new = mark + edited
            kept = document_of(new) == wanted
        except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError) as error:
            raise self._beyond_us(str(error)) from error
        if not kept:
            raise self._beyond_us("it would say something else")
        self.parse(new)
        return new

    def _beyond_us(self, why: str) -> NotSaved:
        return NotSaved(
            f"{self.shown}: the change cannot be written as this file is laid out ({why}): edit "
            "it by hand, then reload"
        )

    def _unchanged(self) -> str:
        text = self.read()
        if text != self.text:
            raise NotSaved(
                f"{self.shown}: was edited since it was read, and is not overwritten: reload it "
                "first, or leave out --save"
            )
        return text

    @contextlib.contextmanager
    def written(self, text: str) -> Iterator[None]:
        """Have it say ``text`` when the block has ended without an exception. Raises NotSaved."""
        real = self.path.resolve()  # a link stays one
        with contextlib.ExitStack() as undo:
            with self._telling():
                aside = _write_aside(real, text, undo)
            yield
            self._unchanged()
            with self._telling():
                os.rename(aside, real)
            undo.pop_all()
            self.text = text

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise NotSaved(f"{self.shown}: cannot be written: {error.strerror}") from error


def _write_aside(real: Path, text: str, undo: contextlib.ExitStack) -> str:
    """A file beside ``real``, of its mode and owner; ``undo`` removes it. Raises OSError."""
    fd, aside = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    undo.callback(Path(aside).unlink, missing_ok=True)
    with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
        like = real.stat()
        os.fchmod(fd, like.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.fchown(fd, like.st_uid, like.st_gid)
        file.write(text)
        file.flush()
        os.fsync(fd)
    return aside


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return document_of(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def document_of(text: str) -> dict[str, Any]:
    """A text that was read for good, as TOML has it."""
    return tomllib.loads(text.removeprefix(_BYTE_ORDER_MARK))
