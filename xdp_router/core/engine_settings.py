# SPDX-License-Identifier: Apache-2.0
"""Limits of the engine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .config import Settings
from .strategy.base import ProbeSettings


@dataclass(frozen=True, slots=True)
class EngineSettings(ProbeSettings):
    """Limits of the engine, beside those of probing."""

    decisions_kept: int = 10_000
    max_open_decisions: int = 20_000

    @classmethod
    def of(cls, settings: Settings) -> EngineSettings:
        """Those of a router that are the engine's."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
