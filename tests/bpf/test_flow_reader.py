# SPDX-License-Identifier: Apache-2.0
"""Flows and counters, read from pinned maps without a daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.cast import BACKENDS, first, key, service
from tests.support.descriptors import open_descriptors
from tests.support.small_router import flow_entries, put_flow
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane, NoInstance, instance_dir
from xdp_router.adapters.flow_reader import Instance, PlaneFlows, open_instance
from xdp_router.adapters.names import Names
from xdp_router.adapters.pins import PinError
from xdp_router.cli.main import main
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Endpoint, Mode, Reason

pytest_plugins = ("tests.support.netns",)

S = 1_000_000_000
HELD = replace(first(1), frame=bytes(14))


@pytest.fixture
def plane(bpffs: Path) -> Iterator[DataPlane]:
    """A pinned data plane with the names of one service."""
    made = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0"]))
    names = Names(made.maps["names"])
    names.write_service(0, service().name)
    for backend in BACKENDS:
        names.write_backend(backend.id, backend.name)
    yield made
    made.unpin()
    made.close()


def rows(plane: DataPlane) -> list[dict[str, Any]]:
    return list(PlaneFlows(plane).rows())


def pend(plane: DataPlane, key_: bytes, value: bytes, **change: Any) -> abi.PendingValue:
    """Insert a pending entry with some fields changed."""
    entry = replace(abi.unpack_pending(value), **change)
    assert Maps(plane.maps).pending_flows.insert_noexist(key_, abi.pack_pending(entry)) == 0
    return entry


def test_an_established_flow_is_one_row(plane: DataPlane) -> None:
    """Both directions' figures, names, and how the decision was made."""
    now_ns = time.monotonic_ns()
    entries = flow_entries(1, now_ns - 5 * S, reply_seen_ns=now_ns - 2 * S, seen_ns=now_ns - 9 * S)
    put_flow(Maps(plane.maps), entries)
    (row,) = rows(plane)
    assert 9 <= row.pop("age_s") < 12
    assert 2 <= row.pop("idle_s") < 5
    assert row == {
        "client": "198.18.0.1:1",
        "service": "web",
        "protocol": "tcp",
        "backend": "b1",
        "backend_address": "198.18.1.1:8080",
        "source_address": "",
        "state": "established",
        "packets": 3,
        "bytes": 300,
        "reply_packets": 2,
        "reply_bytes": 2000,
        "decision": {
            "mode": "race",
            "reason": "race_won",
            "latency_us": 400.0,
            "candidates": [],
        },
    }


def test_a_closing_flow_whose_reply_is_gone(plane: DataPlane) -> None:
    """Half a flow is still shown, with what is known of it."""
    entries = flow_entries(1, time.monotonic_ns(), state=abi.TcpState.CLOSING)
    forward, reply = put_flow(Maps(plane.maps), entries)
    Maps(plane.maps).flow_table.delete(reply)
    (row,) = rows(plane)
    assert (row["state"], row["packets"], row["reply_packets"]) == ("closing", 3, 0)
    Maps(plane.maps).flow_table.delete(forward)
    assert rows(plane) == []


def test_a_held_first_packet_is_probing(plane: DataPlane) -> None:
    """SEEN alone: nobody has decided yet, so there is no backend."""
    raw, value = abi.pack_forward_pending(HELD, BACKENDS[0], Mode.RACE, Reason.NONE, 0)
    seen = abi.pack_flow_key(HELD.key, abi.Kind.SEEN)
    pend(plane, seen, value, backend=NO_BACKEND)
    (row,) = rows(plane)
    assert (row["state"], row["backend"], row["backend_address"]) == ("probing", "", "")
    pend(plane, raw, value)
    assert [row["state"] for row in rows(plane)] == ["opening"]


def test_an_opening_flow_has_both_directions(plane: DataPlane) -> None:
    """FORWARD is the row, REPLY its other half; REPLY alone is none."""
    reply, reply_value = abi.pack_reply_pending(HELD, BACKENDS[1], Mode.RACE, Reason.RACE_WON)
    pend(plane, reply, reply_value, packets=1, octets=60)
    assert rows(plane) == []
    decided = abi.pack_forward_pending(HELD, BACKENDS[1], Mode.RACE, Reason.RACE_WON, 250_000)
    pend(plane, *decided, packets=2, octets=120)
    (row,) = rows(plane)
    assert (row["state"], row["backend"], row["backend_address"]) == (
        "opening",
        "b2",
        "198.18.1.2:8080",
    )
    assert (row["packets"], row["bytes"], row["reply_packets"], row["reply_bytes"]) == (
        2,
        120,
        1,
        60,
    )
    assert row["decision"]["latency_us"] == 250.0


def test_the_source_that_stands_for_a_client(plane: DataPlane) -> None:
    """fullnat: what the backend sees, opening and established; its REPLY is found by it."""
    source = Endpoint(0xC6120101, 20_001)
    how = Mode.RACE, Reason.RACE_WON
    pend(plane, *abi.pack_reply_pending(HELD, BACKENDS[1], *how, source), packets=1, octets=60)
    pend(plane, *abi.pack_forward_pending(HELD, BACKENDS[1], *how, 0, source))
    (row,) = rows(plane)
    assert (row["source_address"], row["reply_packets"]) == ("198.18.1.1:20001", 1)
    forward = next(iter(flow_entries(1, time.monotonic_ns()).values()))
    established = replace(
        forward, new_saddr=source.addr, new_sport=source.port, flags=abi.FLOW_FULLNAT
    )
    raw = abi.pack_flow_entry(established)
    assert Maps(plane.maps).flow_table.insert_noexist(abi.pack_flow_key(HELD.key), raw) == 0
    (row,) = rows(plane)
    assert (row["state"], row["source_address"]) == ("established", "198.18.1.1:20001")


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        (abi.PENDING_CLOSED, "closed"),
        (abi.PENDING_REFUSED, "refused"),
        (abi.PENDING_PROVEN, "stateless"),
    ],
)
def test_a_flow_that_never_opened(plane: DataPlane, flags: int, state: str) -> None:
    """Reset before the handshake was complete, or refused."""
    decided = abi.pack_forward_pending(HELD, BACKENDS[1], Mode.RACE, Reason.RACE_WON, 1)
    pend(plane, *decided, flags=flags)
    assert [row["state"] for row in rows(plane)] == [state]


def test_a_promoted_flow_is_not_shown_twice(plane: DataPlane) -> None:
    """Its pending entries stay for a while and are passed over."""
    put_flow(Maps(plane.maps), flow_entries(1, time.monotonic_ns()))
    for entry in (
        abi.pack_forward_pending(HELD, BACKENDS[0], Mode.RACE, Reason.RACE_WON, 1),
        abi.pack_reply_pending(HELD, BACKENDS[0], Mode.RACE, Reason.RACE_WON),
    ):
        pend(plane, *entry)
    assert [row["state"] for row in rows(plane)] == ["established"]


def test_unknown_names_are_numbers(plane: DataPlane) -> None:
    """A flow of a service that is no longer configured is still listed."""
    entries = {
        raw: replace(value, service=5, backend=77)
        for raw, value in flow_entries(1, time.monotonic_ns()).items()
    }
    put_flow(Maps(plane.maps), entries)
    (row,) = rows(plane)
    assert (row["service"], row["backend"]) == ("5", "77")


def test_a_limit_is_kept(plane: DataPlane) -> None:
    """At most so many rows, over all data planes, established ones first."""
    for port in range(2, 12):
        put_flow(Maps(plane.maps), flow_entries(port, time.monotonic_ns()))
    pend(plane, *abi.pack_forward_pending(HELD, BACKENDS[0], Mode.RACE, Reason.RACE_WON, 1))
    instance = Instance([plane])
    assert len(list(instance.flows(0))) == 0
    assert {row["state"] for row in instance.flows(10)} == {"established"}
    assert len(list(instance.flows(1000))) == 11
    assert len(list(Instance([plane, plane]).flows(15))) == 15


def test_one_clients_flows(plane: DataPlane) -> None:
    """Established or not, whatever their ports; a key whose tail is the address is not one."""
    for port in (2, 3):
        put_flow(Maps(plane.maps), flow_entries(port, time.monotonic_ns()))
    pend(plane, *abi.pack_forward_pending(HELD, BACKENDS[0], Mode.RACE, Reason.RACE_WON, 1))
    other = replace(HELD, key=replace(HELD.key, client_addr=0xC6120002))
    pend(plane, *abi.pack_forward_pending(other, BACKENDS[0], Mode.RACE, Reason.RACE_WON, 1))
    mine = Instance([plane]).flows(10, HELD.key.client_addr)
    assert sorted(row["client"] for row in mine) == [f"198.18.0.1:{port}" for port in (1, 2, 3)]
    assert [row["client"] for row in Instance([plane]).flows(10, 0xC6120002)] == ["198.18.0.2:1"]
    assert not list(Instance([plane]).flows(10, HELD.key.service_addr))
    assert not list(Instance([plane]).flows(10, 0x20010DB8 << 96))


def test_every_pinned_data_plane_is_read(plane: DataPlane, bpffs: Path) -> None:
    """Flows of all, counters summed; the daemon that made them may be gone."""
    other = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth1"]))
    for port, each in ((1, plane), (2, other)):
        put_flow(Maps(each.maps), flow_entries(port, time.monotonic_ns()))
        counters = bpf.BpfMap(each.maps["counters"])
        slot = int(abi.Counter.promoted).to_bytes(4, "little")
        counters.write(slot, (port).to_bytes(8, "little") * bpf.possible_cpus())
    other.close()
    instance = open_instance(bpffs)
    assert {row["client"] for row in instance.flows(10)} == {"198.18.0.1:1", "198.18.0.1:2"}
    assert instance.counters()["promoted"] == 3 * bpf.possible_cpus()
    instance.close()


def test_nothing_stays_open(plane: DataPlane, bpffs: Path) -> None:
    """Whoever runs a command within a process of his own, or fails to, keeps no descriptor."""
    other = instance_dir(bpffs, ["eth1"])
    DataPlane.create(IdleLoader(), SMALL, other).close()
    before = open_descriptors()
    done = CliRunner().invoke(main, ["--pins", str(bpffs), "counters", "--json"])
    assert (done.exit_code, open_descriptors()) == (0, before), done.output
    (other / "services").unlink()
    with pytest.raises(PinError, match="services"):
        open_instance(bpffs)
    assert open_descriptors() == before


def test_nothing_is_pinned(bpffs: Path) -> None:
    """The place that was looked at, and how to start."""
    with pytest.raises(NoInstance, match=rf"{bpffs}.*sudo xdp-routerd attach IFACE"):
        open_instance(bpffs)


def test_pins_that_are_half_gone(plane: DataPlane, bpffs: Path) -> None:
    """What is missing is named, with the command that takes the rest away."""
    assert plane.pin_dir is not None
    for name in ("backend_index", "services"):
        (plane.pin_dir / name).unlink()
    with pytest.raises(PinError, match=r"missing \(services, backend_index\).*detach eth0"):
        open_instance(bpffs)


def test_keys_are_those_of_the_flow(plane: DataPlane) -> None:
    """Client and service are not mixed up."""
    put_flow(Maps(plane.maps), flow_entries(4242, time.monotonic_ns()))
    (row,) = rows(plane)
    flow = key(4242)
    assert row["client"] == f"{abi.format_addr(flow.client_addr)}:4242"


def test_a_flow_that_is_not_rewritten_shows_its_backend(plane: DataPlane) -> None:
    """Its packets bear the service's address: the backend's own is looked up."""
    now_ns = time.monotonic_ns()
    maps = Maps(plane.maps)
    addr, flow = BACKENDS[0].endpoint.addr, key(1)
    mac = bytes(6)
    value = abi.BackendValue(addr, 0, 80, 6, abi.BACKEND_UP, 0, 1, mac, mac, 1)
    maps.backends.write(1, value)
    there = abi.pack_flow_key(flow)
    entry = replace(
        flow_entries(1, now_ns)[there],
        new_daddr=flow.service_addr,
        new_dport=flow.service_port,
        flags=abi.FLOW_ONE_SIDED,
    )
    assert maps.flow_table.insert_noexist(there, abi.pack_flow_entry(entry)) == 0
    (row,) = rows(plane)
    assert (row["backend"], row["backend_address"]) == ("b1", "198.18.1.1:80")
    assert (row["reply_packets"], row["reply_bytes"]) == (0, 0)


def test_flows_that_were_not_moved_yet(plane: DataPlane) -> None:
    """Those in the table of before are shown, too; one that is in both is shown once."""
    before = DataPlane.create(IdleLoader(), SMALL, None)
    for port in (1, 2):
        put_flow(Maps(before.maps), flow_entries(port, time.monotonic_ns()))
    for port in (2, 3):
        put_flow(Maps(plane.maps), flow_entries(port, time.monotonic_ns()))
    plane.maps["flow_table_previous"] = os.dup(before.maps["flow_table"])
    before.close()
    rows = list(PlaneFlows(plane).rows())
    clients = sorted(row["client"].rpartition(":")[2] for row in rows)
    assert clients == ["1", "2", "3"]
    assert {row["state"] for row in rows} == {"established"}
    assert {row["reply_packets"] for row in rows} == {2}
