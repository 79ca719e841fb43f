# SPDX-License-Identifier: Apache-2.0
"""Source ports of fullnat, as the daemon and as the program take them, over the real tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.bpf.corpus.budget import spend
from tests.bpf.corpus.degrade import hash_table, silent
from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.flows import forward_key, read_pending, reply_entry
from tests.bpf.corpus.fullnat import OURS, fullnat, there
from tests.bpf.corpus.world import (
    B1,
    CLIENT,
    WEB,
    World,
    endpoint_of,
    flow_key,
    to_service,
)
from tests.support.frames import End
from tests.support.program import REDIRECT
from xdp_router.core import abi
from xdp_router.core.commands import WriteBinding
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.events import FirstPacket
from xdp_router.core.model import Backend, Endpoint, Forwarding, Mode, Reason, Service
from xdp_router.daemon.nat_ports import STEPS_FROM, TRIES, InsertFailed, NatPorts, NoFreePort

pytest_plugins = ("tests.support.worlds",)

BACKEND = Backend(B1.id, "b1", endpoint_of(B1.end), 0)
OTHER_SERVICE = Backend(9, "other", endpoint_of(B1.end), 1)
SERVICE = Service(0, "web", endpoint_of(WEB), (BACKEND,), forwarding=Forwarding.FULLNAT)


def command(port: int = CLIENT.port) -> WriteBinding:
    first = FirstPacket(flow_key(client=End(CLIENT.addr, port)), 0, 2, 1, 7, 0, 7, bytes(14))
    return WriteBinding(first, B1.id, Mode.RACE, Reason.RACE_WON, 0)


def made(first: int, last: int, random: int = 0) -> NatPorts:
    settings = Settings(nat_port_min=first, nat_port_max=last)
    config = RouterConfig((SERVICE,), settings)
    return NatPorts(config, lambda _backend: OURS.number, lambda _bits: random)


def take(ports: NatPorts, world: World, port: int = CLIENT.port) -> int:
    """The port that a flow gets; REPLY has it."""
    tables = world.maps.flows_of(WEB.number)
    key, source = ports.take(tables, command(port), BACKEND)
    assert source == Endpoint(OURS.number, source.port)
    assert key == nat_key(source.port)
    raw = tables.pending.read(key)
    assert raw is not None
    entry = abi.unpack_pending(raw)
    assert (entry.new_daddr, entry.new_dport) == (CLIENT.number, port)
    assert entry.flags == abi.PENDING_FULLNAT
    return source.port


def nat_key(port: int, kind: int = abi.Kind.REPLY) -> bytes:
    ours = Endpoint(OURS.number, port)
    return abi.pack_reply_key(endpoint_of(B1.end), flow_key(), kind, ours)


def test_only_services_with_fullnat_have_ports() -> None:
    """Backends of other services keep their clients' addresses."""
    ports = made(20_000, 20_003)
    assert ports.has(BACKEND)
    assert not ports.has(OTHER_SERVICE)


def test_each_port_is_had_once(world: World) -> None:
    """From a random one on, round to the first; then there is none, and the log says what to do."""
    world.reset()
    ports = made(20_000, 20_003, random=2)
    assert [take(ports, world, 1000 + n) for n in range(4)] == [20_002, 20_003, 20_000, 20_001]
    assert ports.counters == {"nat_port_taken": 0 + 1 + 2 + 3, "nat_ports_exhausted": 0}
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(NoFreePort):
                take(ports, world, 5000)
    assert ports.counters == {"nat_port_taken": 6 + 4 + 4, "nat_ports_exhausted": 2}
    (line,) = logs
    assert (line["event"], line["backend"], line["nat_ports"]) == (
        "nat_ports_exhausted",
        "b1",
        "20000-20003",
    )
    assert "widen nat_ports" in line["mend"]


def test_an_established_flows_port_is_taken(world: World) -> None:
    """Though its REPLY has aged: the one that was inserted goes again."""
    world.reset()
    value = abi.pack_flow_entry(reply_entry(world))
    assert world.maps.flow_table.insert_noexist(nat_key(20_000, 0), value) == 0
    ports = made(20_000, 20_001)
    assert take(ports, world) == 20_001
    assert world.maps.pending_flows.read(nat_key(20_000)) is None


def test_a_port_of_a_flood_is_taken(world: World) -> None:
    """Its REPLY is in ``flood_flows``: none of both tables has a port that the other has."""
    world.reset()
    take(made(20_000, 20_000), world)
    world.move_to_flood()
    assert take(made(20_000, 20_001), world, 1000) == 20_001
    assert world.maps.flows_of(WEB.number).pending.read(nat_key(20_000)) is None


@pytest.mark.parametrize("random", [0, 0x12345678, 0xFFFFFFFF])
def test_no_more_than_sixteen_are_tried(random: int, world: World) -> None:
    """All of them different, wherever it begins."""
    world.reset()
    ports = made(10_000, 10_000 + STEPS_FROM - 1, random)
    got = {take(ports, world, 1000 + n) for n in range(TRIES)}
    assert len(got) == TRIES
    with pytest.raises(NoFreePort):
        take(ports, world, 5000)


def test_what_the_table_does_not_take(world: World) -> None:
    """Its own error, no try of other ports."""

    class Failing:
        def insert_noexist(self, _key: bytes, _value: bytes) -> int:
            return 12

    failing: Any = Failing()
    tables = dataclasses.replace(world.maps.flows_of(WEB.number), pending=failing)
    ports = made(20_000, 20_003)
    with pytest.raises(InsertFailed, match="Cannot allocate memory"):
        ports.take(tables, command(), BACKEND)
    assert ports.counters["nat_port_taken"] == 0


def test_the_program_finds_the_ports_that_are_left(world: World) -> None:
    """In a range of 16 it finds 12 for sure: four are tried at a time, from a random one on."""
    world.reset()
    fullnat(world)
    silent(world)
    hash_table()(world)
    world.limit(
        nat_port_min=30_000,
        nat_port_max=30_015,
        heartbeat_ns=1,
        heartbeat_stale_ns=1,
    )
    got = set()
    missed = 0
    for number in range(12):
        client = End(CLIENT.addr, 1000 + number)
        outcome = world.run(to_service(OPEN, client=client))
        entry = read_pending(world, forward_key(client=client))
        missed += outcome.counters.get("nat_port_taken", 0)
        if entry is None:
            assert outcome.counters["nat_ports_exhausted"] == 1
            continue
        assert outcome.verdict == REDIRECT
        ports = 34 if world.family == 4 else 54
        assert outcome.frame[ports : ports + 2] == entry.new_sport.to_bytes(2, "big")
        assert entry.new_sport not in got
        got.add(entry.new_sport)
    assert got <= set(range(30_000, 30_016))
    assert len(got) >= 8
    assert there(OPEN)  # of one port: the corpus


def test_a_flood_leaves_a_quarter(world: World) -> None:
    """What is decided over budget gets none of the last ports."""
    world.reset()
    fullnat(world)
    world.limit(nat_port_min=30_000, nat_port_max=30_015)
    spend(abi.TOKENS_EVENTS)(world)
    got = set()
    for number in range(32):
        client = End(CLIENT.addr, 1000 + number)
        world.run(to_service(OPEN, client=client))
        entry = read_pending(world, forward_key(client=client))
        if entry is not None:
            got.add(entry.new_sport)
    assert len(got) >= 8
    assert got <= set(range(30_000, 30_012))


def test_the_program_begins_anywhere(world: World) -> None:
    """A hundred flows have a hundred ports, far apart."""
    world.reset()
    fullnat(world)
    world.limit(nat_port_min=10_000, nat_port_max=29_999, heartbeat_ns=1, heartbeat_stale_ns=1)
    got = []
    for number in range(100):
        client = End(CLIENT.addr, 1000 + number)
        world.run(to_service(OPEN, client=client))
        entry = read_pending(world, forward_key(client=client))
        assert entry is not None
        got.append(entry.new_sport)
    assert len(set(got)) == 100
    assert all(10_000 <= port <= 29_999 for port in got)
    assert max(got) - min(got) > 10_000
