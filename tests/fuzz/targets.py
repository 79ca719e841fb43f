# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets: every ``fuzz_*.py`` in this folder.

Such a module states what must hold in the first sentence of its docstring, and has

- ``check(data: bytes) -> None``, which raises when it does not hold for these bytes;
- ``SEEDS``, whole messages to begin with, and all bytes that once were a finding;
- if it helps, ``WORDS``: short strings that the protocol is made of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Target:
    """One fuzz target."""

    name: str
    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    words: Sequence[bytes]


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(path.stem.removeprefix("fuzz_") for path in FOLDER.glob("fuzz_*.py"))


def load(name: str) -> Target:
    """Import a target."""
    module = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    return Target(name, module.check, module.SEEDS, getattr(module, "WORDS", ()))
