# SPDX-License-Identifier: Apache-2.0
"""Pick tables and loads of backends as bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from xdp_router.core import abi
from xdp_router.core.errors import AbiError


def test_a_pick_table_comes_back() -> None:
    """Every slot, in its order."""
    slots = tuple(range(abi.PICK_SLOTS))
    assert abi.unpack_pick_table(abi.pack_pick_table(slots)) == slots


@pytest.mark.parametrize("slots", [(), (0,) * (abi.PICK_SLOTS - 1), (0,) * (abi.PICK_SLOTS + 1)])
def test_a_pick_table_of_another_size_is_refused(slots: tuple[int, ...]) -> None:
    """A slot that nobody fills would be backend 0's."""
    with pytest.raises(ValueError, match="256 slots"):
        abi.pack_pick_table(slots)


def test_picks_and_loads_come_back() -> None:
    """In every field."""
    assert abi.unpack_picks(abi.pack_picks(1 << 60, 1)) == (1 << 60, 1)
    load = abi.LoadValue(1, 2, 3, 4, 5, 6)
    assert abi.unpack_backend_load(abi.pack_backend_load(load)) == load


@pytest.mark.parametrize(
    "unpack", [abi.unpack_pick_table, abi.unpack_picks, abi.unpack_backend_load]
)
def test_bytes_that_do_not_fit_are_refused(unpack: Callable[[bytes], object]) -> None:
    """By the error that every reader of bytes raises."""
    with pytest.raises(AbiError):
        unpack(bytes(7))
