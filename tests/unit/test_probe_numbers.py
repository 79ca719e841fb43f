# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers that are there before they are needed."""

from __future__ import annotations

import asyncio

import pytest

from xdp_router.core.model import Backend, Endpoint
from xdp_router.core.probe_sequence import probe_hash, probe_seq
from xdp_router.daemon import probe_numbers
from xdp_router.daemon.probe_numbers import ProbeNumbers

KEY = (0x01020304, 0x05060708)
BACKEND = Backend(3, "b3", Endpoint(0xC6130102, 8080), 0)
SOURCE = 0xC6130101


def test_number_is_the_keyed_hash_of_the_probe_with_its_nonce() -> None:
    """The number is what XDP will compute from the answer, for the address that is current."""
    sources = {3: SOURCE}
    numbers = ProbeNumbers(KEY, sources.__getitem__)
    hashed = probe_hash(KEY, BACKEND.endpoint.addr, 8080, 61_005, SOURCE)
    assert numbers.sequence(BACKEND, 61_005, 7) == probe_seq(hashed, 7)
    sources[3] = SOURCE + 1
    moved = probe_hash(KEY, BACKEND.endpoint.addr, 8080, 61_005, SOURCE + 1)
    assert numbers.sequence(BACKEND, 61_005, 7) == probe_seq(moved, 7)


def test_warming_computes_each_port_once_and_lets_others_run() -> None:
    """All ports are known afterwards, and the loop was free in between."""
    numbers = ProbeNumbers(KEY, lambda _backend: SOURCE)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(others())
        await numbers.warm([BACKEND], range(61_000, 61_100))
        task.cancel()

    asyncio.run(main())
    assert len(numbers._hashes) == 100
    assert turns >= 4


def test_warming_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of backends do not fill the memory: the rest comes when it is needed."""
    monkeypatch.setattr(probe_numbers, "WARM_LIMIT", 40)
    numbers = ProbeNumbers(KEY, lambda _backend: SOURCE)
    asyncio.run(numbers.warm([BACKEND], range(61_000, 61_100)))
    assert len(numbers._hashes) == 40
