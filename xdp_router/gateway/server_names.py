# SPDX-License-Identifier: Apache-2.0
"""Which of the configured host names a name belongs to: itself, a wildcard, or the default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

from xdp_router.core.errors import XdpRouterError

T = TypeVar("T")

_MAX_NAME = 253
_MAX_LABEL = 63
# Underscores are in no host name by RFC 1123, and in many that are in use.
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?", re.ASCII)


class NamePatternError(XdpRouterError, ValueError):
    """A configured name that no client's name could ever equal. ``name`` is what was written."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r}: {reason}")
        self.name = name


def name_pattern(text: str) -> str:
    """Return a configured name in the form in which names are compared.

    A host name, or ``*.`` and a host name, in lower case and without the dot at its end.
    Raises NamePatternError.
    """
    name = text.lower().removesuffix(".")
    host = name.removeprefix("*.")
    if not host or host == "*":
        raise NamePatternError(
            text, "expected a host name, or '*.' and one; the default is for all other names"
        )
    if not host.isascii():
        raise NamePatternError(text, "expected ASCII: write the name as clients send it, xn--...")
    if "*" in host:
        raise NamePatternError(text, "expected '*' as the whole first label only: *.example.com")
    if len(host) > _MAX_NAME:
        raise NamePatternError(text, f"{len(host)} characters; expected at most {_MAX_NAME}")
    for label in host.split("."):
        if len(label) > _MAX_LABEL or not _LABEL.fullmatch(label):
            raise NamePatternError(
                text,
                f"label {label!r}; expected 1 to {_MAX_LABEL} letters, digits, '-' or '_', "
                "no '-' at the ends",
            )
    return name


class NameTable(Generic[T]):
    """Values by host name, as nginx and HAProxy are used to: the most specific name wins.

    First the very name, then the longest wildcard, then the default. ``*.example.com`` stands for
    one or more labels before ``.example.com``, and not for ``example.com`` itself.
    """

    __slots__ = ("_default", "_exact", "_wildcards")

    def __init__(self, names: Mapping[str, T], default: T | None = None) -> None:
        """Take names as ``name_pattern`` does. Raises NamePatternError, also for a name that
        stands there twice in different spellings."""
        self._default = default
        self._exact: dict[str, T] = {}
        # By what follows the star, dot and all.
        self._wildcards: dict[str, T] = {}
        for text, value in names.items():
            name = name_pattern(text)
            table = self._wildcards if name[0] == "*" else self._exact
            key = name.removeprefix("*")
            if key in table:
                raise NamePatternError(text, "is there twice; expected each name once")
            table[key] = value

    def look_up(self, name: str | None) -> T | None:
        """Return the value for a client's name, the default if it gave none or none of ours."""
        if name is None:
            return self._default
        name = name.lower().removesuffix(".")
        value = self._exact.get(name)
        if value is not None or name in self._exact:
            return value
        if self._wildcards:
            # From the second character on: a label stands before the dot.
            dot = name.find(".", 1)
            while dot >= 0:
                suffix = name[dot:]
                if suffix in self._wildcards:
                    return self._wildcards[suffix]
                dot = name.find(".", dot + 1)
        return self._default
