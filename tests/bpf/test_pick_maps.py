# SPDX-License-Identifier: Apache-2.0
"""The maps that XDP picks by, over real ones."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.adapters.pick_maps import PickTables
from xdp_router.core import abi

SLOTS = tuple(slot % 3 for slot in range(abi.PICK_SLOTS))
OTHER = (7,) * abi.PICK_SLOTS


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def halves(router: SmallRouter) -> list[tuple[int, ...]]:
    """Both tables of the first service."""
    table = BpfMap(router.plane.maps["pick_tables"])
    raws = [table.read(half.to_bytes(4, "little")) for half in (0, 1)]
    return [abi.unpack_pick_table(raw) for raw in raws if raw is not None]


def test_a_table_is_published_beside_the_one_that_is_read(router: SmallRouter) -> None:
    """Whoever reads the old one meanwhile reads all of it."""
    tables = router.maps.pick_tables
    assert tables.read(0) is None
    tables.publish(0, SLOTS, 5)
    assert tables.read(0) == (5, SLOTS)
    tables.publish(0, OTHER, 6)
    assert tables.read(0) == (6, OTHER)
    assert sorted(halves(router)) == sorted([SLOTS, OTHER])


def test_a_successor_goes_on_with_the_other_half(router: SmallRouter) -> None:
    """It never writes into the table that is read, of which nobody has told it."""
    router.maps.pick_tables.publish(0, SLOTS, 5)
    maps = router.plane.maps
    successor = PickTables(maps["pick_tables"], maps["picks"])
    successor.publish(0, OTHER, 6)
    assert successor.read(0) == (6, OTHER)
    assert sorted(halves(router)) == sorted([SLOTS, OTHER])


def test_a_number_that_is_another_services_has_no_table(router: SmallRouter) -> None:
    """Until one is published for it; tables of other services stay."""
    tables = router.maps.pick_tables
    tables.publish(0, SLOTS, 5)
    tables.publish(1, SLOTS, 5)
    tables.reset(0)
    assert tables.read(0) is None
    assert tables.read(1) == (5, SLOTS)
    tables.publish(0, OTHER, 7)
    assert tables.read(0) == (7, OTHER)


def test_a_service_past_the_end_is_refused(router: SmallRouter) -> None:
    """By the kernel's error."""
    with pytest.raises(BpfError) as caught:
        router.maps.pick_tables.publish(1 << 20, SLOTS, 5)
    assert caught.value.errno == errno.E2BIG


def test_open_flows_are_what_came_less_what_went(router: SmallRouter) -> None:
    """By either side; never fewer than none, whatever was corrected."""
    loads = router.maps.backend_loads
    assert loads.open(1) == 0
    loads.write(1, abi.LoadValue(opened=10, closed=3))
    loads.age(1, 2)
    assert loads.open(1) == 5
    assert loads.totals() == {1: (10, 5)}
    loads.age(1, -4)
    assert loads.open(1) == 9
    loads.age(1, 50)
    assert loads.open(1) == 0


def test_a_backend_past_the_end_is_nobodys(router: SmallRouter) -> None:
    """What a table of an earlier size has no place for is not counted."""
    loads = router.maps.backend_loads
    loads.age(1 << 20)
    assert loads.read(1 << 20) == abi.LoadValue()
    assert loads.open(1 << 20) == 0


def test_a_number_that_is_another_backends_begins_anew(router: SmallRouter) -> None:
    """Nothing of what was learned is left."""
    loads = router.maps.backend_loads
    loads.write(1, abi.LoadValue(1, 2, 3, 4, 5, 6))
    loads.age(1)
    loads.reset(1)
    assert loads.read(1) == abi.LoadValue()
    assert loads.totals() == {}
