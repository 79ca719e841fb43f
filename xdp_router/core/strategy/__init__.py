# SPDX-License-Identifier: Apache-2.0
"""The modes: how a first packet's backend is chosen. See ``base`` for what a mode is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from ..model import Mode, Service
from .base import ProbeSettings, Sequencer, Strategy
from .inline import InlineStrategy
from .probing import Servers, Shared
from .race import RaceStrategy
from .snapshot import SnapshotStrategy

Factory = Callable[
    [Iterable[Service], AbstractSet[int], ProbeSettings, Sequencer, Shared], Strategy
]

STRATEGIES: dict[str, Factory] = {
    "race": RaceStrategy,
    "snapshot": SnapshotStrategy,
    "inline": InlineStrategy,
}
"""Every mode that can be configured, by its name in the configuration."""


def create(
    mode: Mode,
    services: Iterable[Service],
    up: AbstractSet[int],
    settings: ProbeSettings,
    sequence: Sequencer,
    shared: Shared | None = None,
) -> Strategy:
    """The strategy of a mode, for the services that use it.

    ``up`` is the caller's set of usable backend ids, which the strategy goes on looking at;
    ``shared``: what it has in common with the caller's other ones, if there are any.
    Raise ValueError if there is no such strategy.
    """
    require_mode(mode)
    shared = shared if shared is not None else Shared(Servers(settings))
    return STRATEGIES[mode.name.lower()](services, up, settings, sequence, shared)


def require_mode(mode: Mode) -> None:
    """Raise ValueError if there is no strategy of a mode."""
    name = mode.name.lower()
    if name not in STRATEGIES:
        raise ValueError(f"mode {name!r} is not available; choose one of {', '.join(STRATEGIES)}")
