# SPDX-License-Identifier: Apache-2.0
"""The cycle collector never walks what is kept, and cycles do not pile up."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.support.cast import first, key, service
from xdp_router.core.flow import DecisionLog, Flow
from xdp_router.core.model import Decision, Mode, ProbeRecord, Reason
from xdp_router.core.strategy.base import Evidence
from xdp_router.daemon.garbage import PATIENCE, GarbageKeeper, postponed


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class _Node:
    """Something that can be part of a cycle and be watched."""

    def __init__(self) -> None:
        self.itself = self


def decide(log: DecisionLog, count: int) -> None:
    """Add decisions as a race between three backends leaves them."""
    for number in range(count):
        probes = [ProbeRecord(backend, number) for backend in range(3)]
        log.add(Decision(key(number), 0, 1, Mode.RACE, Reason.RACE_WON, number, probes=probes))


def test_no_pause_with_everything_full(record_property: Callable[[str, object], None]) -> None:
    """10,000 kept and 20,000 open decisions: no collection of everything; the worst is told."""
    pauses: list[tuple[float, int]] = []
    started = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            pauses.append((1000 * (time.perf_counter() - started), info["generation"]))

    async def main() -> None:
        work = asyncio.create_task(GarbageKeeper(lambda: not flows).run())
        await asyncio.sleep(0)  # the thresholds are set
        gc.callbacks.append(watch)
        decide(log, 10_000)
        for number in range(20_000):
            held = first(number)
            flows[number] = Flow(held, service(), Evidence())
        decide(log, 10_000)
        gc.callbacks.remove(watch)
        work.cancel()

    log = DecisionLog(10_000)
    flows: dict[int, Flow] = {}
    asyncio.run(main())
    worst_ms, _ = max(pauses)
    record_property("worst_collection_ms", worst_ms)
    print(f"{len(pauses)} collections, the worst {worst_ms:.2f} ms")
    assert {generation for _, generation in pauses} <= {0, 1}


def test_what_was_looked_at_once_is_set_aside(
    record_property: Callable[[str, object], None],
) -> None:
    """The second step costs next to nothing, however much is kept."""
    log = DecisionLog(10_000)
    keeper = GarbageKeeper(lambda: True)
    decide(log, 10_000)
    keeper.step()
    assert gc.get_freeze_count() > 60_000
    started = time.perf_counter()
    keeper.step()
    again_ms = 1000 * (time.perf_counter() - started)
    record_property("nothing_new_ms", again_ms)
    assert again_ms < 5


def test_what_is_set_aside_still_dies_by_its_reference_count() -> None:
    """A kept decision that is pushed out is freed at once."""
    log = DecisionLog(100)
    decide(log, 100)
    keeper = GarbageKeeper(lambda: True)
    keeper.step()
    before = gc.get_freeze_count()
    decide(log, 100)
    assert gc.get_freeze_count() <= before - 100 * 5


def test_a_cycle_is_collected_at_the_next_quiet_moment() -> None:
    """Not while it is busy; then with all that has come since."""
    quiet = False
    keeper = GarbageKeeper(lambda: quiet)
    gc.set_threshold(0)
    node = weakref.ref(_Node())
    keeper.step()
    assert node() is not None
    quiet = True
    keeper.step()
    assert node() is None


def test_it_does_not_wait_for_ever() -> None:
    """Where it never is quiet, a minute of waiting is enough."""
    keeper = GarbageKeeper(lambda: False)
    gc.set_threshold(0)
    node = weakref.ref(_Node())
    for _ in range(PATIENCE):
        keeper.step()
    assert node() is not None
    keeper.step()
    assert node() is None


def test_nothing_old_is_looked_at_while_a_configuration_is_read() -> None:
    """Only what is young dies within; the thresholds are as before afterwards."""
    before = gc.get_threshold()
    collections = gc.get_stats()[2]["collections"]
    with postponed():
        kept = [[number] for number in range(1_000_000)]
        node = _Node()
        gone = weakref.ref(node)
        del node
        kept += [[number] for number in range(200_000)]
        assert gone() is None
        assert gc.get_stats()[2]["collections"] == collections
    assert gc.get_threshold() == before
