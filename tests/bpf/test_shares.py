# SPDX-License-Identifier: Apache-2.0
"""Where SYNs arrive is where events may be raised: the daemon's half, over real maps."""

from __future__ import annotations

import time

import pytest

from tests.support.small_router import small_router
from xdp_router.adapters.bpf_syscall import BpfMap, online_cpus, possible_cpus
from xdp_router.core import abi
from xdp_router.daemon.shares import SharesKeeper

S = 1_000_000_000
RATE = 50_000


def ask(tokens: BpfMap, cpu: int, number: int) -> None:
    """Let a CPU have asked for so many tokens."""
    buckets = [abi.pack_token_bucket(0, 0, number * (each == cpu)) for each in range(8192)]
    tokens.write(bytes(4), b"".join(buckets[: possible_cpus()]))


def test_shares_are_set_by_where_syns_arrive() -> None:
    """At first every CPU that runs has as much; then the one that asks has nearly all."""
    if len(online_cpus()) < 2:
        pytest.skip("one CPU has all of it anyway")
    hot = online_cpus()[-1]
    with small_router() as router:
        assert router.maps.event_shares.read() == [0] * possible_cpus()
        keeper = SharesKeeper(router.maps, RATE)
        even = router.maps.event_shares.read()
        assert len({even[cpu] for cpu in online_cpus()}) == 1
        tokens = BpfMap(router.plane.maps["tokens"])
        start_ns = time.monotonic_ns()
        for second in (1, 2):
            ask(tokens, hot, second * 10 * RATE)
            keeper.step(start_ns + second * S)
        after = router.maps.event_shares.read()
        assert abi.SHARE_ONE / after[hot] > 0.9
        assert all(after[cpu] > even[cpu] for cpu in online_cpus() if cpu != hot)


def test_a_successors_shares_are_left_alone() -> None:
    """A daemon that was frozen and replaced meanwhile writes nothing."""
    lost: list[bool] = []
    with small_router() as router:
        keeper = SharesKeeper(router.maps, RATE, lambda: bool(lost))
        before = router.maps.event_shares.read()
        lost.append(True)
        tokens = BpfMap(router.plane.maps["tokens"])
        ask(tokens, online_cpus()[-1], 10 * RATE)
        keeper.step(time.monotonic_ns() + S)
        assert router.maps.event_shares.read() == before
        lost.clear()
        ask(tokens, online_cpus()[-1], 20 * RATE)
        keeper.step(time.monotonic_ns() + 2 * S)
        assert len(online_cpus()) < 2 or router.maps.event_shares.read() != before
