# SPDX-License-Identifier: Apache-2.0
"""Aging, on the real tables and a clock of the test's own."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS, first, key
from tests.support.privileges import require_root
from tests.support.small_router import SETTINGS, SmallRouter, flow_entries, put_flow, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_maps import FlowTable, PendingFlows
from xdp_router.core import abi
from xdp_router.core.events import FlowClosed
from xdp_router.core.model import Endpoint, Mode, Reason
from xdp_router.daemon.aging import BATCH, NAT_REST_NS, REMOVALS, STEP_NS, Ager
from xdp_router.daemon.retirement import AT_ONCE, SWEEPS, Retirement

S = 1_000_000_000
NOW = 10_000 * S
IDLE = NOW - SETTINGS.flow_idle_ns - 1
LINGERED = NOW - SETTINGS.closed_linger_ns - 1
PENDED = NOW - SETTINGS.pending_idle_ns - 1
CLOSING = abi.TcpState.CLOSING


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def sweep(
    router: SmallRouter,
    on_closed: Callable[[FlowClosed], None] | None = None,
    pauses: Mapping[int, int] | None = None,
    is_lost: bool = False,
) -> Ager:
    """One sweep at the instant NOW."""
    ager = Ager(
        router.maps.flow_table,
        router.maps.pending_flows,
        SETTINGS,
        on_closed or (lambda _event: None),
        lambda: NOW,
        lambda _now_ns: pauses or {},
        is_lost=lambda: is_lost,
    )
    asyncio.run(ager.sweep())
    return ager


def left(router: SmallRouter) -> set[bytes]:
    """Keys that ``flow_table`` still has."""
    return {k for batch in router.maps.flow_table.batches(64) for k, _ in batch}


def test_an_idle_flow_goes_and_is_told(router: SmallRouter) -> None:
    """Both entries are removed at once; the event has the client's key and the reply's figure."""
    put_flow(router.maps, flow_entries(1, IDLE))
    closed: list[FlowClosed] = []
    ager = sweep(router, closed.append)
    assert left(router) == set()
    assert closed == [FlowClosed(key(1), 1_500, NOW)]
    assert (ager.entries, ager.removed) == (2, 1)


@pytest.mark.parametrize(
    ("forward_ns", "reply_ns"), [(NOW, NOW), (IDLE, NOW), (NOW, IDLE), (IDLE + 1, IDLE + 1)]
)
def test_a_flow_is_idle_only_if_both_entries_are(
    router: SmallRouter, forward_ns: int, reply_ns: int
) -> None:
    """Traffic in one direction, or within the time in both, keeps the whole flow."""
    put_flow(router.maps, flow_entries(1, forward_ns, reply_seen_ns=reply_ns))
    ager = sweep(router)
    assert len(left(router)) == 2
    assert (ager.entries, ager.removed) == (2, 0)


@pytest.mark.parametrize(("seen_ns", "entries"), [(LINGERED, 0), (LINGERED + 1, 2)])
def test_a_closing_flow_goes_after_its_linger(
    router: SmallRouter, seen_ns: int, entries: int
) -> None:
    """FIN or RST was a hint: the entries go once there was no traffic for a while."""
    put_flow(router.maps, flow_entries(1, seen_ns, state=CLOSING))
    sweep(router)
    assert len(left(router)) == entries


@pytest.mark.parametrize(
    ("before_ns", "end_ns", "entries"),
    [
        (IDLE, IDLE + 1, 2),  # it may have had traffic until within its time
        (IDLE, IDLE, 0),  # even so it has been silent since
        (IDLE + 1, NOW, 0),  # silent before the pause already, so all through it
    ],
)
def test_a_pause_of_the_heartbeat_is_no_silence(
    router: SmallRouter, before_ns: int, end_ns: int, entries: int
) -> None:
    """A flow that is marked with the last beat before a pause lives as if used until its end."""
    put_flow(router.maps, flow_entries(1, IDLE))
    sweep(router, pauses={before_ns: end_ns})
    assert len(left(router)) == entries


def test_traffic_since_the_batch_was_read_keeps_a_flow(router: SmallRouter) -> None:
    """What counts is the entry as it is when it would be removed, not as it was read."""
    keys = {port: put_flow(router.maps, flow_entries(port, IDLE)) for port in (1, 2)}

    def packet_for_the_other(event: FlowClosed) -> None:
        other = 3 - event.key.client_port
        fresh = flow_entries(other, NOW)
        forward = keys[other][0]
        table = bpf.BpfMap(router.plane.maps["flow_table"])
        table.write(forward, abi.pack_flow_entry(fresh[forward]))

    ager = sweep(router, packet_for_the_other)
    assert ager.removed == 1
    assert len(left(router)) == 2


def test_half_a_flow_goes_alone(router: SmallRouter) -> None:
    """The forward entry of a flow whose reply tuple another flow has by now: that one stays."""
    forward, _ = flow_entries(1, IDLE).items()
    router.maps.flow_table.insert_noexist(forward[0], abi.pack_flow_entry(forward[1]))
    other = {
        raw: replace(value, new_saddr=0xC6126402)
        for raw, value in flow_entries(1, IDLE + 5 * S).items()
        if value.direction is abi.Direction.REPLY
    }
    ((reply, value),) = other.items()
    router.maps.flow_table.insert_noexist(reply, abi.pack_flow_entry(value))
    closed: list[FlowClosed] = []
    sweep(router, closed.append)
    assert left(router) == {reply}
    assert closed == [FlowClosed(key(1), 0, NOW)]


def test_a_reply_entry_without_a_forward_one_goes(router: SmallRouter) -> None:
    """What a promotion left that was cut short is removed like a flow."""
    _, reply = flow_entries(1, IDLE).items()
    router.maps.flow_table.insert_noexist(reply[0], abi.pack_flow_entry(reply[1]))
    closed: list[FlowClosed] = []
    sweep(router, closed.append)
    assert left(router) == set()
    assert closed == [FlowClosed(key(1), 1_500, NOW)]


def test_pending_entries_go_each_by_itself(router: SmallRouter) -> None:
    """An entry without traffic for ``pending_idle`` only takes place; the others stay."""
    pending = router.maps.pending_flows
    kept = []
    for port, seen_ns in ((1, PENDED), (2, PENDED + 1), (3, NOW)):
        entry = abi.pack_reply_pending(
            replace(first(port, seen_ns), frame=bytes(14)), BACKENDS[0], Mode.RACE, Reason.NONE
        )
        assert pending.insert_noexist(*entry) == 0
        kept.append(entry[0])
    sweep(router)
    assert [raw for raw in kept if pending.read(raw) is not None] == kept[1:]


RESTED = NOW - NAT_REST_NS - 1
SOURCE = Endpoint(0xC6120101, 20_000)


def test_a_closed_flow_of_fullnat_keeps_its_port_for_a_minute(router: SmallRouter) -> None:
    """Its entries stay for longer than another flow's; a live one's end as any."""
    kept: list[bytes] = []
    gone: list[bytes] = []
    for port, seen_ns, state, flags in (
        (1, LINGERED, CLOSING, abi.FLOW_FULLNAT),
        (2, RESTED + 1, CLOSING, abi.FLOW_FULLNAT | abi.FLOW_FIN),
        (3, IDLE + 1, abi.TcpState.ESTABLISHED, abi.FLOW_FULLNAT),
        (4, RESTED, CLOSING, abi.FLOW_FULLNAT),
        (5, IDLE, abi.TcpState.ESTABLISHED, abi.FLOW_FULLNAT),
        (6, LINGERED, CLOSING, 0),
    ):
        entries = flow_entries(port, seen_ns, state=state)
        put_flow(router.maps, {key: replace(v, flags=flags) for key, v in entries.items()})
        (kept if port <= 3 else gone).extend(entries)
    sweep(router)
    assert left(router) == set(kept)


def test_a_pending_port_of_fullnat_rests(router: SmallRouter) -> None:
    """For a minute; but one that an established flow has needs no pending entries."""
    pending = router.maps.pending_flows
    backend = BACKENDS[0]
    keys: dict[int, list[bytes]] = {}
    for port, seen_ns in ((1, PENDED), (2, RESTED + 1), (3, RESTED), (4, PENDED)):
        packet = replace(first(port, seen_ns), frame=bytes(14))
        source = replace(SOURCE, port=20_000 + port)
        for entry in (
            abi.pack_reply_pending(packet, backend, Mode.RACE, Reason.NONE, source),
            abi.pack_forward_pending(packet, backend, Mode.RACE, Reason.NONE, 0, source),
        ):
            assert pending.insert_noexist(*entry) == 0
            keys.setdefault(port, []).append(entry[0])
    reply_4, forward_4 = keys[4]
    value = next(iter(flow_entries(4, NOW).values()))
    for key_4 in (reply_4, forward_4):
        raw = abi.pack_flow_entry(value)
        assert router.maps.flow_table.insert_noexist(abi.without_kind(key_4), raw) == 0
    sweep(router)
    there = {port for port, both in keys.items() if any(pending.read(each) for each in both)}
    assert there == {1, 2}
    assert all(pending.read(each) for port in (1, 2) for each in keys[port])


def test_a_successors_tables_are_left_alone(router: SmallRouter) -> None:
    """Frozen meanwhile: what is over by our settings need not be by the successor's."""
    put_flow(router.maps, flow_entries(1, IDLE))
    pending = router.maps.pending_flows
    entry = abi.pack_reply_pending(
        replace(first(2, PENDED), frame=bytes(14)), BACKENDS[0], Mode.RACE, Reason.NONE
    )
    assert pending.insert_noexist(*entry) == 0
    assert sweep(router, is_lost=True).removed == 0
    assert len(left(router)) == 2
    assert pending.read(entry[0]) is not None


def test_a_proven_flow_without_a_place_lives_as_long_as_an_established_one(
    router: SmallRouter,
) -> None:
    """Its pending entries are all that it has; they are counted, and go after ``flow_idle``."""
    pending = router.maps.pending_flows
    kept = []
    for port, seen_ns in ((1, PENDED), (2, IDLE + 1), (3, IDLE)):
        held = replace(first(port, seen_ns), frame=bytes(14))
        for key_, value in (
            abi.pack_forward_pending(held, BACKENDS[0], Mode.RACE, Reason.NONE, 0),
            abi.pack_reply_pending(held, BACKENDS[0], Mode.RACE, Reason.NONE),
        ):
            entry = replace(abi.unpack_pending(value), flags=abi.PENDING_PROVEN)
            assert pending.insert_noexist(key_, abi.pack_pending(entry)) == 0
            kept.append(key_)
    ager = sweep(router)
    assert [raw for raw in kept if pending.read(raw) is not None] == kept[:4]
    assert ager.stateless == 3
    assert sweep(router).stateless == 2


def test_many_at_once_leave_the_loop_its_turns(router: SmallRouter) -> None:
    """A thousand flows end together: all go, and others have their turn in between."""
    for port in range(1, 901):
        put_flow(router.maps, flow_entries(port, IDLE))
    turns = 0
    at_turn: list[int] = []

    async def main() -> None:
        nonlocal turns
        ager = Ager(
            router.maps.flow_table,
            router.maps.pending_flows,
            SETTINGS,
            lambda _event: at_turn.append(turns),
            lambda: NOW,
        )
        work = asyncio.create_task(ager.sweep())
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        await work

    asyncio.run(main())
    assert len(at_turn) == 900
    assert left(router) == set()
    assert max(at_turn.count(turn) for turn in set(at_turn)) <= REMOVALS


def test_a_cancelled_sweep_has_let_go_of_the_map(router: SmallRouter) -> None:
    """After cancelling no call is under way: the map can be closed."""

    async def main() -> None:
        ager = Ager(
            router.maps.flow_table, router.maps.pending_flows, SETTINGS, lambda _event: None
        )
        for delay_s in (0, 0.001, 0.01):
            work = asyncio.create_task(ager.run())
            await asyncio.sleep(delay_s)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    asyncio.run(main())


def test_a_map_that_cannot_be_read_ends_one_sweep_only(router: SmallRouter) -> None:
    """The fault is logged, and aging goes on."""
    fd = os.dup(router.plane.maps["flow_table"])
    table = FlowTable(fd)
    os.close(fd)
    ager = Ager(table, router.maps.pending_flows, SETTINGS, lambda _event: None)

    async def main() -> None:
        work = asyncio.create_task(ager.run())
        await asyncio.sleep(0.05)
        assert not work.done()
        work.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("filled", [0, 10, 200_000])
def test_a_sweep_of_a_large_table_does_not_hold_the_loop(
    filled: int, record_property: Callable[[str, object], None]
) -> None:
    """Others are served while a table for 500,000 flows is looked at; the worst wait is told."""
    require_root()
    fds = [
        bpf.map_create(bpf.MapType.HASH, "flows", 16, abi.FLOW_ENTRY_SIZE, 1_000_000),
        bpf.map_create(bpf.MapType.LRU_HASH, "pending", 16, abi.PENDING_FLOW_SIZE, 65_536),
    ]
    (value, _) = flow_entries(1, time.monotonic_ns()).values()
    raw = abi.pack_flow_entry(value)
    flows = FlowTable(fds[0])
    for number in range(filled):
        flows.insert_noexist(struct.pack("=QQ", number, 0), raw)
    gaps_ns: list[int] = []

    async def main() -> None:
        ager = Ager(flows, PendingFlows(fds[1]), SETTINGS, lambda _event: None)
        work = asyncio.create_task(ager.sweep())
        last_ns = time.perf_counter_ns()
        while not work.done():
            await asyncio.sleep(0.0005)
            now_ns = time.perf_counter_ns()
            gaps_ns.append(now_ns - last_ns)
            last_ns = now_ns
        assert (ager.entries, ager.removed) == (filled, 0)

    started = time.perf_counter()
    asyncio.run(main())
    gaps_ns.sort()
    worst_ms, median_ms = gaps_ns[-1] / 1e6, gaps_ns[len(gaps_ns) // 2] / 1e6
    record_property("worst_gap_ms", worst_ms)
    print(
        f"{filled} entries: {time.perf_counter() - started:.2f} s, {len(gaps_ns)} turns, "
        f"gap p50 {median_ms:.2f} ms, worst {worst_ms:.2f} ms"
    )
    for fd in fds:
        os.close(fd)
    # The machine may take the processor away for longer; the daemon itself must not.
    assert median_ms < 5
    assert worst_ms < 100


def test_looking_at_entries_is_quick(record_property: Callable[[str, object], None]) -> None:
    """A batch in which nothing is over costs a tenth of a millisecond; the bound is loose."""
    (value, _) = flow_entries(1, NOW).values()
    raw = abi.pack_flow_entry(value) * BATCH
    limits = tuple(IDLE for _ in abi.TcpState)
    started = time.perf_counter_ns()
    over = [
        index
        for index, (last_seen_ns, state, _flags, _direction) in enumerate(abi.iter_flow_aging(raw))
        if last_seen_ns < limits[state]
    ]
    per_batch_us = (time.perf_counter_ns() - started) / 1000
    record_property("us_per_batch", per_batch_us)
    print(f"{BATCH} entries: {per_batch_us:.0f} us")
    assert not over
    assert per_batch_us < 20_000


def test_a_slow_step_ends_early(router: SmallRouter) -> None:
    """When removing takes long, the loop has its turn before REMOVALS were made."""
    for port in range(1, 101):
        put_flow(router.maps, flow_entries(port, IDLE))
    turns = 0
    at_turn: list[int] = []
    clock_ns = 0

    def closed(_event: FlowClosed) -> None:
        nonlocal clock_ns
        clock_ns += STEP_NS // 4 + 1  # a fourth of a step each
        at_turn.append(turns)

    async def main() -> None:
        nonlocal turns
        ager = Ager(
            router.maps.flow_table,
            router.maps.pending_flows,
            SETTINGS,
            closed,
            lambda: NOW,
            stopwatch=lambda: clock_ns,
        )
        work = asyncio.create_task(ager.sweep())
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        await work

    asyncio.run(main())
    assert len(at_turn) == 100
    assert max(at_turn.count(turn) for turn in set(at_turn)) == 4


@pytest.mark.parametrize(("resumed_ns", "entries"), [(NOW - 1, 2), (IDLE, 0)])
def test_a_former_daemons_pauses_are_given_the_benefit_of_doubt(
    router: SmallRouter, resumed_ns: int, entries: int
) -> None:
    """What was silent since before a former daemon came back may have been used meanwhile."""
    put_flow(router.maps, flow_entries(1, IDLE))
    ager = Ager(
        router.maps.flow_table,
        router.maps.pending_flows,
        SETTINGS,
        lambda _event: None,
        lambda: NOW,
        former_resumed_ns=resumed_ns,
    )
    asyncio.run(ager.sweep())
    assert len(left(router)) == entries


def test_a_sweep_tells_which_retired_backends_have_flows(router: SmallRouter) -> None:
    """The last flow goes in one sweep; two more without any, and the id is free."""
    put_flow(router.maps, flow_entries(1, NOW))
    gone: list[object] = []
    retirement = Retirement(BACKENDS[:1], gone.append)
    clock = NOW
    ager = Ager(
        router.maps.flow_table,
        router.maps.pending_flows,
        SETTINGS,
        lambda _event: None,
        lambda: clock,
        retirement=retirement,
    )
    for _ in range(3):
        asyncio.run(ager.sweep())
    assert not gone
    clock = NOW + SETTINGS.flow_idle_ns + 1
    asyncio.run(ager.sweep())
    asyncio.run(ager.sweep())
    assert not gone
    asyncio.run(ager.sweep())
    assert gone == [BACKENDS[0]]


def test_retired_backends_that_are_over_together_do_not_hold_the_loop(
    router: SmallRouter,
) -> None:
    """The heart beats between them."""
    gone: list[int] = []
    many = [replace(BACKENDS[0], id=number) for number in range(40 * AT_ONCE)]
    retirement = Retirement(many, lambda each: gone.append(each.id))
    ager = Ager(
        router.maps.flow_table,
        router.maps.pending_flows,
        SETTINGS,
        lambda _event: None,
        lambda: NOW,
        retirement=retirement,
    )
    steps: list[int] = []

    async def beat() -> None:
        while True:
            steps.append(len(gone))
            await asyncio.sleep(0)

    async def sweeps() -> None:
        beats = asyncio.create_task(beat())
        for _ in range(SWEEPS):
            await ager.sweep()
        beats.cancel()

    asyncio.run(sweeps())
    assert len(gone) == len(many)
    assert max(b - a for a, b in itertools.pairwise([*steps, len(gone)])) <= AT_ONCE
