# SPDX-License-Identifier: Apache-2.0
"""Which maps a successor makes of another size, and what they take over."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.privileges import require_root
from tests.support.small_router import flow_entries, put_flow
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import resize
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.map_specs import MAP_SPECS, by_count
from xdp_router.adapters.resize import Carry, count_entries, entries_after, plan, unfinished
from xdp_router.core import abi
from xdp_router.core.abi_picks import LoadValue
from xdp_router.core.abi_values import TrafficValue
from xdp_router.core.model import Endpoint, Forwarding, Mode, Orphans

IPV6 = replace(SMALL, ipv6=True)
LARGER = replace(IPV6, max_flows=2000, pending=2048, flood=2048, services=100, backends=300)
WEB = Endpoint(0xC6126401, 80)


@pytest.fixture
def former() -> Iterator[DataPlane]:
    """A data plane of a small router with both families."""
    require_root()
    plane = DataPlane.create(IdleLoader(), IPV6, None)
    yield plane
    plane.close()


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        (("flow_table", "flow_table6"), {"max_flows": 7}),
        (("pending_flows", "pending_flows6"), {"pending": 7}),
        (("flood_flows", "flood_flows6"), {"flood": 7}),
        (("fragments",), {"fragments": 7}),
        (("quic_ids",), {"connection_ids": 7}),
        (("source_rules",), {"source_rules": 7}),
        (("prefix_tokens",), {"prefixes": 7}),
        (("first_packet_events",), {"ring_bytes": 4096}),
        (("interfaces",), {"interfaces": 40}),
        ((), {}),
        ((), {"ipv6": False}),
    ],
)
def test_what_is_made_anew(
    former: DataPlane, tables: tuple[str, ...], wanted: dict[str, int]
) -> None:
    """Whatever has another size, larger or smaller, by both sizes; tables that nobody uses stay."""
    found = plan(former.maps, replace(IPV6, **wanted))  # type: ignore[arg-type]  # of many types
    assert set(found) == set(tables)
    for name, sizes in found.items():
        have = bpf.map_info(former.maps[name]).max_entries
        assert sizes[0] == have != sizes[1] == entries_after(
            former.maps, replace(IPV6, **wanted)  # type: ignore[arg-type]  # of many types
        )[name]  # fmt: skip


def test_what_goes_by_numbers_only_grows() -> None:
    """Numbers that are in use may be high, however few services are left."""
    require_root()
    plane = DataPlane.create(IdleLoader(), LARGER, None)
    assert plan(plane.maps, replace(LARGER, services=1, backends=1)) == {}
    grown = plan(plane.maps, replace(LARGER, services=500, backends=900))
    plane.close()
    want = {spec.name for spec in MAP_SPECS if by_count(spec)} - {"interfaces"}
    assert set(grown) == want
    assert all(before < after for before, after in grown.values())


def test_tables_of_ipv6_that_come_are_no_news() -> None:
    """They are made anew, as large as they should be, and nothing is in the former ones."""
    require_root()
    plane = DataPlane.create(IdleLoader(), SMALL, None)
    assert plan(plane.maps, IPV6) == {}
    plane.close()


def test_one_table_of_before_at_a_time(former: DataPlane) -> None:
    """While flows are in it the table keeps its size; then it may be the next one's."""
    maps = Maps(former.maps)
    put_flow(maps, flow_entries(1, 1))
    plane = DataPlane.succeed(IdleLoader(), former, LARGER)
    assert unfinished(plane.maps) == {"flow_table"}
    assert count_entries(plane.maps, "flow_table") == 2
    assert set(plan(plane.maps, replace(LARGER, max_flows=9))) == {"flow_table6"}
    heir = DataPlane.succeed(IdleLoader(), plane, replace(LARGER, max_flows=9))
    ids = [
        bpf.map_info(each).id
        for each in (
            former.maps["flow_table"],
            plane.maps["flow_table_previous"],
            heir.maps["flow_table_previous"],
        )
    ]
    assert len(set(ids)) == 1
    held = bpf.BpfMap(heir.maps["previous"]).read(bytes(4))
    assert held == ids[0].to_bytes(4, "little")
    for key in flow_entries(1, 1):
        assert maps.flow_table.delete(key) == 0
    assert set(plan(plane.maps, replace(LARGER, max_flows=9))) == {"flow_table", "flow_table6"}
    heir.drop_previous("flow_table")
    heir.drop_previous("flow_table")
    assert "flow_table_previous" not in heir.maps
    assert bpf.BpfMap(heir.maps["previous"]).read(bytes(4)) is None
    heir.close()
    plane.close()


def _pending(key: int, isn: int) -> tuple[bytes, bytes]:
    value = bytearray(abi.PENDING_FLOW_SIZE)
    value[32:36] = isn.to_bytes(4, "little")
    return key.to_bytes(16, "big"), bytes(value)


def _successor(former: DataPlane) -> tuple[DataPlane, Carry]:
    plane = DataPlane.succeed(IdleLoader(), former, LARGER)
    return plane, Carry(former.maps, plane.maps, plan(former.maps, LARGER))


def test_entries_come_along(former: DataPlane) -> None:
    """By both copies; what the new program has written itself is not overwritten."""
    old = Maps(former.maps)
    for number in range(300):
        assert old.pending_flows.insert_noexist(*_pending(number, 1)) == 0
    service = abi.ServiceValue(
        deadline_ns=5, event_interval_ns=0, event_burst_ns=0, id=0, first_backend=0,
        backend_count=1, fallback=0, mode=Mode.RACE, forwarding=Forwarding.NAT,
        orphans=Orphans.RESET, hash_active=0,
    )  # fmt: skip
    old.services.write(WEB, service)
    old.tokens.fill(abi.TOKENS_EVENTS, 77, 78)
    plane, carry = _successor(former)
    carry.copy()
    new = Maps(plane.maps)
    assert new.services.read(WEB) == service
    copied = bpf.BpfMap(plane.maps["tokens"]).read(bytes(4)) or b""
    assert abi.unpack_token_bucket(copied[: abi.TOKEN_BUCKET_SIZE])[:2] == (77, 78)

    before, after = (
        bpf.BpfMap(former.maps["pending_flows"]),
        bpf.BpfMap(plane.maps["pending_flows"]),
    )
    before.write(*_pending(1, 2))
    before.delete(_pending(2, 1)[0])
    before.write(*_pending(900, 1))
    carry.refresh()
    assert after.read(_pending(1, 2)[0]) == _pending(1, 2)[1]
    assert after.read(_pending(2, 1)[0]) is None
    assert after.read(_pending(900, 1)[0]) is not None

    before.write(*_pending(3, 2))
    after.write(*_pending(3, 9))
    before.write(*_pending(4, 2))
    before.write(*_pending(901, 1))
    after.write(*_pending(902, 1))
    carry.finish()
    for number, isn in ((0, 1), (3, 9), (4, 2), (901, 1), (902, 1)):
        key, value = _pending(number, isn)
        assert after.read(key) == value, number
    plane.close()


def test_sums_lose_nothing(former: DataPlane) -> None:
    """What a former program still adds is the daemon's share of the new sums."""
    usage = bpf.BpfMap(former.maps["usage"])
    ended = bpf.BpfMap(former.maps["traffic_ended"])
    loads = Maps(former.maps).backend_loads
    one = (1).to_bytes(4, "little")

    def carried(times: int) -> None:
        usage.write(one, abi.pack_usage(10 * times, 3 * times))
        ended.write(one, abi.pack_traffic(TrafficValue(times, 2 * times, 3, 4 * times, 5)))
        loads.write(1, LoadValue(ewma_ns=7, opened=10 * times, closed=4 * times))

    carried(1)
    Maps(former.maps).usage.age(1, 2)
    plane, carry = _successor(former)
    carry.copy()
    carried(2)
    carry.refresh()
    new = Maps(plane.maps)
    assert new.usage.read(1) == (20, 6, 2)
    carried(3)
    carry.finish()
    assert new.usage.open(1) == 30 - 9 - 2
    assert new.backend_loads.open(1) == 30 - 12
    assert new.backend_loads.read(1).ewma_ns == 7
    assert Maps(plane.maps).traffic.read(1) == TrafficValue(3, 6, 3, 12, 5)
    plane.close()


def test_a_copy_keeps_no_entry() -> None:
    """Tables of the usual size, filled by a flood: a few bytes an entry are remembered."""
    require_root()
    plane = DataPlane.create(IdleLoader(), replace(SMALL, pending=40_000), None)
    table = bpf.BpfMap(plane.maps["pending_flows"])
    table.write_all(_pending(number, 1) for number in range(30_000))
    there = len(list(table.each_key()))
    wanted = replace(SMALL, pending=80_000)
    heir = DataPlane.succeed(IdleLoader(), plane, wanted)
    carry = Carry(plane.maps, heir.maps, plan(plane.maps, wanted))
    tracemalloc.start()
    carry.copy()
    carry.refresh()
    carry.finish()
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert there > 20_000
    assert held < 100 * there
    assert most < 300 * there, "with batches, and the marks of two passes"
    assert sum(1 for _ in bpf.BpfMap(heir.maps["pending_flows"]).each_key()) == there
    heir.close()
    plane.close()


class _Opening(Carry):
    """While tables are read flows are opened behind the walk, fewer each time."""

    opens = 640
    passes = 0

    def _catch_up(self, name: str, *, new_runs: bool = False) -> int:
        changed = super()._catch_up(name, new_runs=new_runs)
        if name == "pending_flows":
            self.passes += 1
            self.opens //= 4
            for number in range(self.opens):
                self._old[name].write(*_pending(1000 * self.passes + number, 1))
        return changed


def test_few_are_left_for_the_end(former: DataPlane) -> None:
    """What is opened while it is caught up with is caught up with as well, before the switch."""
    plane = DataPlane.succeed(IdleLoader(), former, LARGER)
    carry = _Opening(former.maps, plane.maps, plan(former.maps, LARGER))
    carry.copy()
    carry.refresh()
    old, new = (set(bpf.BpfMap(each.maps["pending_flows"]).each_key()) for each in (former, plane))
    assert len(old) == 160 + 40 + 10 + 2
    assert len(old - new) <= 2
    assert carry.passes == 4
    carry.finish()
    assert old <= set(bpf.BpfMap(plane.maps["pending_flows"]).each_key())
    plane.close()


def test_flows_that_open_are_read_last(former: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then comes the switch, and what was left of them is the first thing after it."""
    plane, carry = _successor(former)
    carry.copy()
    read: list[str] = []
    batches = resize._batches

    def noted(table: bpf.BpfMap) -> Iterator[bpf.Batch]:
        read.append(table.info.name)
        return batches(table)

    monkeypatch.setattr(resize, "_batches", noted)
    carry.refresh()
    after = len(read)
    carry.finish()
    opening = {"pending_flows", "flood_flows", "pending_flows6", "flood_flows6"}
    assert set(read[after - 4 : after]) == set(read[after : after + 4]) == opening
    assert {"usage", "backend_load", "traffic_ended"} <= set(read[: after - 4])
    plane.close()


def test_a_small_lru_takes_what_it_can() -> None:
    """More pending flows than there will be room for: no error."""
    require_root()
    plane = DataPlane.create(IdleLoader(), SMALL, None)
    table = bpf.BpfMap(plane.maps["pending_flows"])
    for number in range(500):
        table.write(*_pending(number, 1))
    wanted = replace(SMALL, pending=16)
    heir = DataPlane.succeed(IdleLoader(), plane, wanted)
    carry = Carry(plane.maps, heir.maps, plan(plane.maps, wanted))
    carry.copy()
    carry.refresh()
    carry.finish()
    assert 0 < len(list(bpf.BpfMap(heir.maps["pending_flows"]).each_key())) <= 16
    heir.close()
    plane.close()


def test_a_map_that_is_full_is_an_error(former: DataPlane) -> None:
    """A hash map has room by its size; if it has not, that is said."""
    table = bpf.BpfMap(former.maps["interfaces"])
    room = table.info.max_entries
    keys = [number.to_bytes(4, "little") for number in range(room + 1)]
    batch = bpf.Batch(len(keys), b"".join(keys), bytes(abi.INTERFACE_SIZE * len(keys)))
    with pytest.raises(BpfError) as caught:
        table.write_batch(batch)
    assert caught.value.errno == errno.E2BIG
