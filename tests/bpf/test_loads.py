# SPDX-License-Identifier: Apache-2.0
"""Loads of backends, read as they are now."""

from __future__ import annotations

from tests.support.small_router import small_router
from xdp_router.core import abi
from xdp_router.core.strategy.probing import Load
from xdp_router.daemon.loads import load_reader


def test_a_load_is_read_each_time() -> None:
    """Of a backend that XDP knows nothing of, nothing; past the table's end, too."""
    with small_router() as small:
        load_of = load_reader(small.maps)
        assert load_of(1) == Load(0, 0)
        small.maps.backend_loads.write(1, abi.LoadValue(ewma_ns=90_000, opened=7, closed=2))
        assert load_of(1) == Load(90_000, 5)
        assert load_of(10_000_000) == Load(0, 0)
