# SPDX-License-Identifier: Apache-2.0
"""Enumerations whose members are keys of tables on a hot path."""

from __future__ import annotations

import enum


class PlainEnum(enum.Enum):
    """An ``enum.Enum`` whose members hash by what they are: each is there once.

    ``enum.Enum`` hashes the name, in Python, at each look-up: 0.2 µs, of which a race has a dozen.
    """

    __hash__ = object.__hash__
