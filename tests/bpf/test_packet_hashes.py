# SPDX-License-Identifier: Apache-2.0
"""Hashes that C and Python compute, each by itself, and have to agree on."""

from __future__ import annotations

import dataclasses

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.flows import read_pending
from tests.bpf.corpus.probes import the_rst
from tests.bpf.corpus.world import (
    B1,
    PROBE_KEY,
    PROBE_PORTS,
    WEB,
    Server,
    World,
    endpoint_of,
    from_backend,
    to_service,
)
from tests.support.frames import ACK, SYN, End, Segment
from tests.support.program import REDIRECT, TX
from xdp_router.core import abi
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import NO_BACKEND, FlowKey
from xdp_router.core.probe_sequence import probe_hash, probe_seq

pytest_plugins = ("tests.support.worlds",)

# Any address: nothing is sent, the frames run through the program only.
ADDRESSES = st.integers(1, 0xFFFFFFFE).map(lambda n: ".".join(str(n >> s & 255) for s in
                                                              (24, 16, 8, 0)))  # fmt: skip
PORTS = st.integers(1, 0xFFFF)
ENDS = st.builds(End, ADDRESSES, PORTS)
WORDS = st.integers(0, 0xFFFFFFFF)


def _slot_is_backend(world: World) -> None:
    """Slot n of the hash table holds backend n: a decision shows the slot."""
    world.reset()
    world.touch()
    for number in range(abi.HASH_SLOTS):
        world.maps.backends.write(number, world.server(dataclasses.replace(B1, id=number)))
    world.maps.hash_tables.write(0, 0, tuple(range(abi.HASH_SLOTS)))


def test_xdp_takes_the_slot_that_python_computes(worlds: dict[str, World]) -> None:
    """For any client and service the hash picks the same of the 1,021 slots."""
    for world in worlds.values():
        _slot_is_backend(world)

    @given(client=ENDS, service=ENDS)
    @settings(max_examples=300)
    @example(End("255.255.255.255", 65535), End("255.255.255.255", 65535))
    @example(End("0.0.0.1", 1), End("128.0.0.0", 1))
    def agree(client: End, service: End) -> None:
        key = FlowKey(client.number, client.port, service.number, service.port)
        frame = to_service(OPEN, service, client)
        for world in worlds.values():
            world.program.clear_flows()
            value = world.service()
            stale = dataclasses.replace(world.control(), heartbeat_ns=0, heartbeat_stale_ns=1)
            world.maps.control.write(stale)
            value = dataclasses.replace(value, fallback=NO_BACKEND)
            world.maps.services.write(endpoint_of(service), value)
            outcome = world.run(frame)
            world.maps.services.delete(endpoint_of(service))
            assert outcome.verdict == REDIRECT
            entry = read_pending(world, abi.pack_flow_key(key, abi.Kind.FORWARD))
            assert entry is not None
            assert entry.backend == flow_hash(world.native_key(key)) % abi.HASH_SLOTS

    agree()
    for world in worlds.values():
        world.touch()


def test_xdp_knows_the_probes_that_python_numbers(worlds: dict[str, World]) -> None:
    """Whatever key, addresses and ports: the right number is known, any other bit is not."""

    @given(
        key=st.tuples(WORDS, WORDS),
        backend=ENDS,
        source=st.builds(End, ADDRESSES, st.integers(*PROBE_PORTS)),
        nonce=st.integers(0, 255),
        bit=st.integers(0, 23),
    )
    @settings(max_examples=300)
    @example((0, 0), B1.end, End("198.18.1.1", 61000), 0, 0)
    @example((0xFFFFFFFF, 0xFFFFFFFF), B1.end, End("198.18.1.1", 61000), 255, 23)
    def agree(key: tuple[int, int], backend: End, source: End, nonce: int, bit: int) -> None:
        assume(not PROBE_PORTS[0] <= backend.port <= PROBE_PORTS[1])
        server = Server(B1.id, backend, B1.mac)
        number = probe_hash(key, backend.number, backend.port, source.port, source.number)
        seq = probe_seq(number, nonce)
        for world in worlds.values():
            world.reset()
            world.touch()
            world.change_control(probe_key=key)
            world.number_probes(key)
            world.change_server(server, probe_addr=source.number)
            world.maps.backend_index.write(endpoint_of(backend), server.id, 0)
            world.maps.services.delete(endpoint_of(WEB))
            answer = Segment(flags=SYN | ACK, seq=1, ack=(seq + 1) & 0xFFFFFFFF)
            outcome = world.run(from_backend(answer, server, source), "backend")
            assert outcome.counters == {"probe_synack": 1}
            assert outcome.verdict == TX
            assert outcome.frame == world.native(the_rst(answer.ack, server, source))
            (record,) = outcome.records
            tuple_ = FlowKey(backend.number, backend.port, source.number, source.port)
            assert abi.unpack_event_header(record).seq == world.native_probe(seq, tuple_)
            wrong = answer.but(ack=((seq ^ 1 << bit) + 1) & 0xFFFFFFFF)
            outcome = world.run(from_backend(wrong, server, source), "backend")
            assert outcome.counters == {"probe_unverified": 1}
            world.maps.backend_index.delete(endpoint_of(backend))

    agree()
    for world in worlds.values():
        world.number_probes(PROBE_KEY)
        world.touch()
