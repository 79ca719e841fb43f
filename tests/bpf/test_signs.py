# SPDX-License-Identifier: Apache-2.0
"""How flows fare, as the daemon reads it: what has come since it last looked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.signs import BackendSigns
from xdp_router.core import abi
from xdp_router.core.model import Signs

SEEN = Signs(5, 4, 3, 2, 1, 6, 99, 2)


@pytest.fixture(scope="module")
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def xdp_sees(router: SmallRouter, backend: int, value: Signs) -> None:
    table = bpf.BpfMap(router.plane.maps["backend_signs"])
    table.write(backend.to_bytes(4, sys.byteorder), abi.pack_backend_signs(value))


def news(found: BackendSigns) -> dict[int, Signs]:
    return {backend: value for batch in found.news() for backend, value in batch}


def test_only_what_has_come(router: SmallRouter) -> None:
    """What was there when the daemon began is of before; then, of each, how much more."""
    xdp_sees(router, 1, SEEN)
    signs = BackendSigns(router.plane.maps["backend_signs"])
    assert news(signs) == {}
    assert news(signs) == {}
    xdp_sees(router, 1, replace(SEEN, answered=7, source=7, sources=3))
    xdp_sees(router, 2, Signs(served=1))
    assert news(signs) == {1: Signs(answered=2, sources=1), 2: Signs(served=1)}
    assert news(signs) == {}
    assert signs.read(1) == replace(SEEN, answered=7, source=7, sources=3)


def test_a_number_that_is_another_backends_now(router: SmallRouter) -> None:
    """Begins at nothing; one that there is no room for is none."""
    signs = BackendSigns(router.plane.maps["backend_signs"])
    xdp_sees(router, 1, SEEN)
    news(signs)
    signs.reset(1)
    signs.reset(1_000_000)
    assert signs.read(1) == Signs()
    assert signs.read(1_000_000) == Signs()
    xdp_sees(router, 1, Signs(answered=1))
    assert news(signs) == {1: Signs(answered=1)}
