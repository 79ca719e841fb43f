# SPDX-License-Identifier: Apache-2.0
"""What modes share: servers' ports and budgets, and drawing some of many backends."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS
from xdp_router.core.model import Backend, Endpoint
from xdp_router.core.strategy.base import ProbeSettings
from xdp_router.core.strategy.probing import (
    PROBE_COUNTERS,
    Load,
    Servers,
    no_draw,
    no_load,
    some_of,
)

AT = Endpoint(0xC6130001, 8080)
MANY = tuple(Backend(number, f"b{number}", AT, 0) for number in range(20))


def counters() -> dict[str, int]:
    """None has counted yet."""
    return dict.fromkeys(PROBE_COUNTERS, 0)


def test_budget_and_ports_are_a_servers() -> None:
    """Whoever asks: what is beyond either is refused, and counted by its reason."""
    servers = Servers(
        ProbeSettings(probe_rate=1, probe_burst=3, probe_port_min=61_000, probe_port_max=61_001)
    )
    counted = counters()
    first, second = servers.take(AT, 0, counted), servers.take(AT, 0, counted)
    assert first is not None
    assert second is not None
    assert first.port != second.port
    assert servers.take(AT, 0, counted) is None
    assert counted["probes_without_port"] == 1
    assert servers.take(AT, 0, counted) is None
    assert counted["probes_over_budget"] == 1
    servers.release(AT, first.port)
    assert servers.take(AT, 10**9, counted) is not None
    assert servers.find(Endpoint(1, 1)) is None


def test_bad_limits_are_told_at_once() -> None:
    """Not when the first server is asked."""
    with pytest.raises(ValueError, match="probe port range"):
        Servers(ProbeSettings(probe_port_min=9, probe_port_max=8))
    with pytest.raises(ValueError, match="token bucket"):
        Servers(ProbeSettings(probe_burst=0))


def test_all_take_part_where_there_are_few() -> None:
    """In their order; so it is without a limit."""
    assert some_of(BACKENDS, 3, no_draw) == list(BACKENDS)
    assert some_of(BACKENDS, 0, no_draw) == list(BACKENDS)


@pytest.mark.parametrize("weight", [1, 7])
def test_equals_take_part_equally_often(weight: int) -> None:
    """Each once at most, each in its share of draws."""
    draw = random.Random(5).randrange
    found: Counter[int] = Counter()
    members = [replace(each, weight=weight) for each in MANY]
    for _ in range(4_000):
        some = some_of(members, 4, draw)
        assert len({each.id for each in some}) == 4
        found.update(each.id for each in some)
    assert len(found) == 20
    assert all(640 < count < 960 for count in found.values()), found


def test_heavier_ones_take_part_more_often() -> None:
    """By their weight; each once at most."""
    draw = random.Random(5).randrange
    found: Counter[int] = Counter()
    members = [replace(each, weight=5 if each.id < 2 else 1) for each in MANY]
    for _ in range(4_000):
        some = some_of(members, 2, draw)
        assert len({each.id for each in some}) == 2
        found.update(each.id for each in some)
    heavy = (found[0] + found[1]) / 2
    light = sum(found[number] for number in range(2, 20)) / 18
    assert 3.5 < heavy / light < 5.5


def test_nothing_is_known_of_a_load_that_nobody_reads() -> None:
    """No sample, no flow."""
    assert no_load(3) == Load(0, 0)
