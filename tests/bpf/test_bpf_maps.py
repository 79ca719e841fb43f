# SPDX-License-Identifier: Apache-2.0
"""The typed maps: what is written is what the kernel holds, by the header's layout."""

from __future__ import annotations

import dataclasses
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.bpf_programs import SMALL
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.core import abi
from xdp_router.core.model import Endpoint, Forwarding, Mode, Orphans

WEB = Endpoint(0xC6126401, 80)
SERVICE = abi.ServiceValue(
    50_000_000, 20_000, 1_000_000, 3, 4, 2, 5, Mode.RACE, Forwarding.NAT, Orphans.HASH, 1
)
BACKEND = abi.BackendValue(
    0xC6130102, 8080, 6, abi.BACKEND_UP, 3, 7, 0xC6130101, b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", 10
)


@pytest.fixture
def fds() -> Iterator[dict[str, int]]:
    """The maps of a small data plane, without a program."""
    require_root()
    made = {
        spec.name: bpf.map_create(
            spec.type, spec.name, spec.key_size, spec.value_size, spec.entries(SMALL), spec.flags
        )
        for spec in MAP_SPECS
        if spec.value_size is not None and not spec.inner
    }
    yield made
    for fd in made.values():
        os.close(fd)


@pytest.fixture
def maps(fds: dict[str, int]) -> Maps:
    """All of them, typed."""
    return Maps(fds)


def test_services(maps: Maps) -> None:
    """A service is found by its address, listed, and gone after deleting; twice is no error."""
    assert maps.services.read(WEB) is None
    maps.services.write(WEB, SERVICE)
    assert maps.services.read(WEB) == SERVICE
    assert list(maps.services.items()) == [(WEB, SERVICE)]
    maps.services.delete(WEB)
    maps.services.delete(WEB)
    assert list(maps.services.items()) == []


def test_service_key_is_as_on_the_wire(maps: Maps, fds: dict[str, int]) -> None:
    """The mapped address and the port are in network order in the kernel's key."""
    maps.services.write(WEB, SERVICE)
    assert list(bpf.BpfMap(fds["services"]).each_key()) == [
        bytes([*[0] * 10, 0xFF, 0xFF, 198, 18, 100, 1, 0, 80, 6, 0])
    ]


def test_backends(maps: Maps) -> None:
    """A backend is kept under its id; an id past the table is an error that names the map."""
    maps.backends.write(5, BACKEND)
    assert maps.backends.read(5) == BACKEND
    with pytest.raises(BpfError, match="backends"):
        maps.backends.write(1 << 20, BACKEND)
    assert maps.backends.read(1 << 20) is None


def test_backend_index(maps: Maps) -> None:
    """A backend's address leads to its id and service."""
    maps.backend_index.write(WEB, 4, 3)
    assert list(maps.backend_index.items()) == [(WEB, (4, 3))]
    maps.backend_index.delete(WEB)
    assert list(maps.backend_index.items()) == []


def test_hash_tables_have_two_halves(maps: Maps) -> None:
    """Writing one half leaves the other half, and other services, alone."""
    slots = tuple(range(abi.HASH_SLOTS))
    maps.hash_tables.write(1, 1, slots)
    assert maps.hash_tables.read(1, 1) == slots
    for service, half in ((1, 0), (0, 1), (2, 0)):
        assert maps.hash_tables.read(service, half) == (0,) * abi.HASH_SLOTS


def test_interfaces(maps: Maps) -> None:
    """An interface is kept under its index."""
    value = abi.InterfaceValue(b"\2\0\0\0\0\1", bytes(6), abi.IF_BOUNCE_REDIRECT)
    maps.interfaces.write(9, value)
    assert list(maps.interfaces.items()) == [(9, value)]
    maps.interfaces.delete(9)
    assert list(maps.interfaces.items()) == []


def test_heartbeat_changes_nothing_else(maps: Maps) -> None:
    """A beat sets its two fields alone; without a first write there is nothing to beat into."""
    with pytest.raises(RuntimeError):
        maps.control.beat(1, 1)
    value = dataclasses.replace(maps.control.read(), reinject_mark=7, probe_port_max=61999)
    maps.control.write(value)
    maps.control.beat(123_456_789, 5)
    maps.control.set_flags(1)
    value = dataclasses.replace(value, flags=1)
    assert maps.control.read() == dataclasses.replace(value, heartbeat_ns=123_456_789, resumed_ns=5)


def test_counters_are_summed_over_cpus(maps: Maps, fds: dict[str, int]) -> None:
    """A counter is the sum of all CPUs' values, under its name."""
    cpus = bpf.possible_cpus()
    key = int(abi.Counter.orphan_reset).to_bytes(4, "little")
    bpf.BpfMap(fds["counters"]).write(key, struct.pack(f"={cpus}Q", *range(10, 10 + cpus)))
    counters = maps.counters.read()
    assert counters["orphan_reset"] == sum(range(10, 10 + cpus))
    assert sum(counters.values()) == counters["orphan_reset"]
    assert len(counters) == abi.COUNTER_MAX


def test_tokens_are_given_to_every_cpu(maps: Maps, fds: dict[str, int]) -> None:
    """Filling a bucket fills every CPU's."""
    maps.tokens.fill(2, 1000, 55)
    raw = bpf.BpfMap(fds["tokens"]).read((2).to_bytes(4, "little"))
    assert raw == abi.pack_token_bucket(1000, 55) * bpf.possible_cpus()


def test_pending_flows_insert_once(maps: Maps) -> None:
    """The first decision stays; the second is told so."""
    key, value = b"k" * abi.FLOW_KEY_SIZE, b"v" * abi.PENDING_FLOW_SIZE
    assert maps.pending_flows.insert_noexist(key, value) == 0
    assert maps.pending_flows.insert_noexist(key, bytes(len(value))) == errno.EEXIST
    assert maps.pending_flows.read(key) == value
    assert [list(batch) for batch in maps.pending_flows.batches(16) if batch.count] == [
        [(key, value)]
    ]
    assert maps.pending_flows.delete(key) == 0


def test_flow_table_is_full_when_it_is_full(maps: Maps) -> None:
    """Past its size the table refuses new entries, and keeps the old ones."""
    entries = maps.flow_table.max_entries
    assert entries == 2 * SMALL.max_flows
    value = bytes(abi.FLOW_ENTRY_SIZE)
    keys = [struct.pack("=QQ", number, 0) for number in range(entries + 1)]
    assert all(maps.flow_table.insert_noexist(key, value) == 0 for key in keys[:-1])
    assert maps.flow_table.insert_noexist(keys[-1], value) == errno.E2BIG
    assert sum(batch.count for batch in maps.flow_table.batches(256)) == entries
    assert maps.flow_table.delete(keys[0]) == 0
    assert maps.flow_table.insert_noexist(keys[-1], value) == 0


def test_a_missing_map_is_named(fds: dict[str, int]) -> None:
    """A set of maps that is not whole says which one is missing."""
    with pytest.raises(KeyError, match="counters"):
        Maps({name: fd for name, fd in fds.items() if name != "counters"})


def test_cost_of_an_insert(maps: Maps, record_property: Callable[[str, object], None]) -> None:
    """Inserting a decision costs microseconds; the figure is reported, the bound loose."""
    value = bytes(abi.PENDING_FLOW_SIZE)
    keys = [struct.pack("=QQ", number, 1) for number in range(1000)]
    insert = maps.pending_flows.insert_noexist
    start = time.perf_counter_ns()
    for key in keys:
        insert(key, value)
    cost_ns = (time.perf_counter_ns() - start) / len(keys)
    record_property("ns_per_insert", cost_ns)
    print(f"pending_flows insert: {cost_ns:.0f} ns")
    assert cost_ns < 100_000
