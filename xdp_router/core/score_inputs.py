# SPDX-License-Identifier: Apache-2.0
"""What others say of backends beside their round trips: told, kept, and forgotten by age.

Each value has the instant at which it was told. One that is older than its service's
``score_age`` says nothing any more: whoever told it may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .score import Measured

INPUTS = ("ttft_ns", "cache", "queue", "usage")
"""What can be told of a backend: names of fields of ``Measured``."""
PUSH = "push"
SCRAPE = "scrape"
"""Who tells: somebody by the control socket, or the backend itself when it is asked. Of one input
the newest value counts, whoever told it."""


@dataclass(frozen=True, slots=True)
class Told:
    """One value, when it was told, and by whom."""

    value: float
    told_ns: int
    source: str = PUSH


class ScoreInputs:
    """By backend id. Only those are in it of whom something was told."""

    def __init__(self) -> None:
        self._told: dict[int, dict[str, Told]] = {}

    def tell(
        self, backend: int, values: Mapping[str, float], now_ns: int, source: str = PUSH
    ) -> None:
        """Keep what is told of a backend; what is not named stays as it is.

        Raise ValueError for a name that is none of ``INPUTS``.
        """
        for name in values:
            if name not in INPUTS:
                raise ValueError(f"{name!r} is no input of a score: use {', '.join(INPUTS)}")
        known = self._told.setdefault(backend, {})
        for name, value in values.items():
            known[name] = Told(value, now_ns, source)

    def measured(self, backend: int, rtt_ns: int | None, age_ns: int, now_ns: int) -> Measured:
        """All that is known of a backend, without what is older than ``age_ns``."""
        known = self._told.get(backend)
        if known is None:
            return Measured(rtt_ns)
        fresh = {name: each.value for name, each in known.items() if now_ns - each.told_ns < age_ns}
        ttft = fresh.get("ttft_ns")
        return Measured(
            rtt_ns,
            None if ttft is None else int(ttft),
            fresh.get("cache"),
            fresh.get("queue"),
            fresh.get("usage"),
            tuple((name, known[name].source) for name in INPUTS if name in fresh),
        )

    def told(self, backend: int) -> Mapping[str, Told]:
        """Everything that was told of a backend, old or not."""
        return self._told.get(backend, {})

    def forget(self, backend: int) -> None:
        """The backend is no more."""
        self._told.pop(backend, None)
