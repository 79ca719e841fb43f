# SPDX-License-Identifier: Apache-2.0
"""First-byte times of both arms, from the real tables, on a clock of the test's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.support.cast import T0, first, key
from tests.support.playbook import MS
from tests.support.small_router import SmallRouter, flow_entries, put_flow, small_router
from xdp_router.core.model import Decision, Forwarding, Mode, Reason, Service
from xdp_router.core.strategy.control_arm import Arm, arm_of
from xdp_router.daemon.latencies import LOOKS_MS, SAMPLE_PER_SECOND, Latencies


@pytest.fixture(scope="module")
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


class Stage:
    """Latencies of one service, and the time."""

    def __init__(self, router: SmallRouter, **change: object) -> None:
        self.router = router
        self.web: Service = dataclasses.replace(
            router.config.services[0],
            **{"control_arm": 50, **change},  # type: ignore[arg-type]  # fields of all types
        )
        self.now_ns = T0
        self.latencies = Latencies([self.web], router.maps.flows_of, lambda: self.now_ns)
        for batch in list(router.maps.flow_table.batches(1024)):
            for raw, _ in batch:
                router.maps.flow_table.delete(raw)

    def port(self, arm: Arm, number: int = 0) -> int:
        return [each for each in range(1, 2000) if arm_of(self.web, key(each)) is arm][number]

    def establish(self, port: int, first_data_us: int = 1500) -> Decision:
        """A decided flow is established; its reply entry has this."""
        decision = Decision(
            key(port), 0, 1, Mode.RACE, Reason.RACE_WON, T0, established_ns=T0, fppl_ns=300_000
        )
        entries = flow_entries(port, T0, seen_ns=T0)
        _, reply = entries
        entries[reply] = dataclasses.replace(entries[reply], first_data_us=first_data_us)
        put_flow(self.router.maps, entries)
        self.latencies.decided(decision)
        self.latencies.established(decision)
        return decision

    def after(self, ms: int) -> Stage:
        self.now_ns = T0 + ms * MS
        self.latencies.look()
        return self

    def arm(self, arm: Arm) -> tuple[int, ...]:
        each = self.latencies.by_service[0].arms[arm]
        return each.decided, each.established, each.sampled, each.first_byte.count, each.silent


def test_each_arm_has_its_own_figures(router: SmallRouter) -> None:
    """What is told of a flow: decided, established, sampled, its first byte and FPPL's share."""
    stage = Stage(router)
    stage.establish(stage.port(Arm.MODE))
    stage.establish(stage.port(Arm.CONTROL), first_data_us=30_000)
    assert stage.arm(Arm.MODE) == stage.arm(Arm.CONTROL) == (1, 1, 1, 0, 0)
    stage.after(LOOKS_MS[0])
    assert stage.arm(Arm.MODE) == stage.arm(Arm.CONTROL) == (1, 1, 1, 1, 0)
    figures = stage.latencies.by_service[0]
    assert (figures.fppl_ns, figures.first_byte_ns) == (300_000, 1_500_000)
    assert figures.fppl.count == 2
    gain = stage.latencies.gain(0, stage.now_ns)
    assert gain is not None
    assert gain.difference.estimate == pytest.approx(28_500_000, rel=0.02)
    assert stage.latencies.gain(1, stage.now_ns) is None


def test_a_first_byte_is_waited_for(router: SmallRouter) -> None:
    """Looked for again and again; after 30 s the backend is silent, and that is told."""
    stage = Stage(router)
    late, never = stage.port(Arm.MODE), stage.port(Arm.MODE, 1)
    stage.establish(late, first_data_us=0)
    stage.establish(never, first_data_us=0)
    assert stage.after(LOOKS_MS[0]).arm(Arm.MODE)[3:] == (0, 0)
    for raw in flow_entries(late, T0):
        router.maps.flow_table.delete(raw)
    entries = flow_entries(late, T0, seen_ns=T0)
    put_flow(router.maps, entries)
    for ms in LOOKS_MS[1:]:
        stage.after(ms)
    assert stage.arm(Arm.MODE)[3:] == (1, 1)


def test_a_later_flow_of_the_same_ports_is_not_taken_for_it(router: SmallRouter) -> None:
    """Nor is one that is gone; what is known of that from its end counts."""
    stage = Stage(router)
    port = stage.port(Arm.MODE)
    other = stage.establish(port)
    other.seen_ns -= 1
    gone = stage.establish(stage.port(Arm.MODE, 1))
    for raw in flow_entries(gone.key.client_port, T0):
        router.maps.flow_table.delete(raw)
    gone.first_data_us = 7_000
    stage.after(LOOKS_MS[-1])
    figures = stage.latencies.by_service[0].arms[Arm.MODE].first_byte
    assert (figures.count, figures.total) == (1, 7_000_000)


def test_the_sample_is_bounded(router: SmallRouter) -> None:
    """So many a second of each arm; all are counted as established."""
    stage = Stage(router, control_arm=0)
    decision = stage.establish(1)
    for _ in range(2 * SAMPLE_PER_SECOND):
        stage.latencies.established(decision)
    assert stage.arm(Arm.MODE)[1:3] == (2 * SAMPLE_PER_SECOND + 1, SAMPLE_PER_SECOND)
    assert Arm.CONTROL not in stage.latencies.by_service[0].arms


def test_where_replies_do_not_pass_there_is_no_sample(router: SmallRouter) -> None:
    """FPPL is known there all the same."""
    stage = Stage(router, control_arm=0, forwarding=Forwarding.DSR)
    stage.establish(1)
    assert stage.arm(Arm.MODE) == (1, 1, 0, 0, 0)
    assert stage.latencies.by_service[0].fppl.count == 1


def test_a_service_that_is_gone_is_passed_over(router: SmallRouter) -> None:
    """Its last flows' decisions may still come."""
    stage = Stage(router)
    stage.latencies.decided(Decision(key(1), 9, 1, Mode.RACE, Reason.RACE_WON, first(1).seen_ns))
    assert stage.latencies.by_service == {}


def test_a_service_that_is_another_one_now_begins_anew(router: SmallRouter) -> None:
    """As does one with another control arm; one that stays keeps its figures."""
    stage = Stage(router)
    stage.establish(stage.port(Arm.MODE))
    stage.latencies.change([dataclasses.replace(stage.web, name="other name")])
    assert stage.arm(Arm.MODE)[:2] == (1, 1)
    stage.latencies.change([dataclasses.replace(stage.web, control_arm=10)])
    assert stage.latencies.by_service == {}
    stage.latencies.change([])
    stage.after(LOOKS_MS[-1])
    assert stage.latencies.by_service == {}
