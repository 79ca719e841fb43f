# SPDX-License-Identifier: Apache-2.0
"""The modes: how a first packet's backend is chosen. See ``base`` for what a mode is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from ..model import Mode, Service
from .base import ProbeSettings, Sequencer, Strategy
from .race import RaceStrategy

Factory = Callable[[Iterable[Service], AbstractSet[int], ProbeSettings, Sequencer], Strategy]

STRATEGIES: dict[str, Factory] = {"race": RaceStrategy}
"""Every mode that can be configured, by its name in the configuration."""


def create(
    mode: Mode,
    services: Iterable[Service],
    up: AbstractSet[int],
    settings: ProbeSettings,
    sequence: Sequencer,
) -> Strategy:
    """The strategy of a mode, for the services that use it.

    ``up`` is the caller's set of usable backend ids, which the strategy goes on looking at.
    Raise ValueError if there is no such strategy.
    """
    name = mode.name.lower()
    factory = STRATEGIES.get(name)
    if factory is None:
        raise ValueError(f"mode {name!r} is not available; choose one of {', '.join(STRATEGIES)}")
    return factory(services, up, settings, sequence)
