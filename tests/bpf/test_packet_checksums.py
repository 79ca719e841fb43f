# SPDX-License-Identifier: Apache-2.0
"""Incremental checksums, for whatever addresses: as if they had been computed anew."""

from __future__ import annotations

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.bpf.corpus.flows import (
    flow_keys,
    forward_entry,
    forward_value,
    put_flow,
    put_pending,
    reply_entry,
    reply_value,
)
from tests.bpf.corpus.world import (
    B1,
    PROBE_PORTS,
    Server,
    World,
    endpoint_of,
    flow_key,
    from_backend,
    to_backend,
    to_client,
    to_service,
)
from tests.support.frames import ACK, End, Segment, difference
from tests.support.icmp_frames import checksum_errors
from tests.support.program import REDIRECT
from xdp_router.core import abi

pytest_plugins = ("tests.support.worlds",)

# Carries happen where words are all ones or nearly so.
WORDS = st.one_of(st.integers(0, 0xFFFF), st.sampled_from((0, 1, 2, 0xFF, 0xFF00, 0xFFFE, 0xFFFF)))


def _addr(high: int, low: int) -> str:
    return f"{high >> 8}.{high & 255}.{low >> 8}.{low & 255}"


ADDRESSES = st.builds(_addr, WORDS, WORDS).filter(lambda addr: addr != "0.0.0.0")
ENDS = st.builds(End, ADDRESSES, WORDS.filter(bool))
SERVER_END = B1.end
OF_PROBES = frozenset(range(PROBE_PORTS[0], PROBE_PORTS[1] + 1))


@given(
    client=ENDS,
    service=ENDS,
    backend=ENDS,
    ident=WORDS,
    payload=st.binary(max_size=9),
    ttl=st.integers(2, 255),
    numbers=st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF)),
)
@settings(max_examples=250)
# The sum of the changed words is 0x2ffff: its carry carries once more.
@example(End("198.18.0.2", 40000), End("255.255.197.20", 80), SERVER_END, 1, b"", 64, (1, 1))
# Nothing changes but the port, or nothing at all.
@example(End("198.18.0.2", 40000), End("198.18.1.2", 80), SERVER_END, 1, b"", 64, (1, 1))
@example(End("198.18.0.2", 40000), SERVER_END, SERVER_END, 1, b"", 64, (1, 1))
@example(End("0.0.0.0", 1), End("0.0.0.1", 3), End("0.0.0.2", 2), 0, b"", 2, (0, 0))
@example(
    End("255.255.255.255", 65535),
    End("255.255.255.255", 65534),
    End("0.0.0.1", 1),
    65535,
    b"\xff",
    255,
    (0xFFFFFFFF, 0xFFFFFFFF),
)
def _sums_are_right(
    world: World,
    client: End,
    service: End,
    backend: End,
    ident: int,
    payload: bytes,
    ttl: int,
    numbers: tuple[int, int],
) -> None:
    assume(client not in (service, backend))  # who speaks with himself is no flow
    assume(world.family == 4 or client.number)  # :: is nobody
    # What goes to or comes from these is taken for a probe by the frames of the corpus.
    assume(not {client.port, service.port, backend.port} & OF_PROBES)
    server = Server(B1.id, backend, B1.mac)
    segment = Segment(
        flags=ACK, seq=numbers[0], ack=numbers[1], ident=ident, payload=payload, ttl=ttl
    )
    key = flow_key(service, client)
    there = to_service(segment, service, client), to_backend(segment, server, client)
    back = from_backend(segment, server, client), to_client(segment, service, client)
    for bound in (False, True):
        world.reset()
        world.touch()
        value = world.service()
        world.maps.services.write(endpoint_of(service), value)
        if bound:
            keys = flow_keys(server, service, client)
            put_flow(world, keys[0], forward_entry(world, server, client, service))
            put_flow(world, keys[1], reply_entry(world, server, client, service))
        else:
            world.change_server(B1, addr=backend.number, port=backend.port)
            world.maps.backend_index.write(endpoint_of(backend), B1.id, 0)
            reply = abi.pack_reply_key(endpoint_of(backend), key, abi.Kind.REPLY)
            put_pending(world, reply, reply_value(world, server, service, client))
            forward = abi.pack_flow_key(key, abi.Kind.FORWARD)
            put_pending(world, forward, forward_value(world, server, client))
        for (frame, wanted), at in ((there, "client"), (back, "backend")):
            outcome = world.run(frame, at)
            assert outcome.verdict == REDIRECT
            native = world.native(wanted)
            assert outcome.frame == native, difference(outcome.frame, native)
            assert not checksum_errors(outcome.frame)


def test_checksums_of_rewritten_packets(world: World) -> None:
    """Pending and bound, both ways: every byte is as scapy builds the frame from nothing."""
    _sums_are_right(world)
