# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks send: every method, family and protocol, with right checksums."""

from __future__ import annotations

import struct

import pytest

from bench.forged import first_packet
from bench.frames import PROTO_TCP, PROTO_UDP, family_of, fold
from bench.traffic import FAMILIES, PROTOCOLS, Traffic, combinations, ipv6
from bench.wire import _IP, template
from tests.support.bench_frames import is_right, segment_of
from xdp_router.core import abi
from xdp_router.core.model import ONE_SIDED, Forwarding

MACS = bytes.fromhex("025852000001"), bytes.fromhex("025852000002")
CASES = [(family, proto) for family in FAMILIES for proto in PROTOCOLS.values()]


@pytest.mark.parametrize(("family", "proto"), CASES)
def test_a_clients_frame_is_right(family: int, proto: int) -> None:
    """Checksums, lengths and addresses, of a flow that is and of its first packet."""
    for first in (False, True):
        frame = Traffic(family, proto=proto).frame(*MACS, first=first)
        assert frame[:12] == b"".join(MACS)
        assert family_of(frame) == family
        assert segment_of(frame)[2] == proto
        assert is_right(frame)


@pytest.mark.parametrize(("family", "proto"), CASES)
def test_a_forged_first_packet_has_the_service_and_no_source(family: int, proto: int) -> None:
    """The kernel program fills in who it is from."""
    addr = abi.parse_addr("198.18.100.1")
    target = (addr if family == 4 else ipv6(addr)), 80
    frame = first_packet(*MACS, target, proto)
    addresses, segment, told = segment_of(frame)
    width = len(addresses) // 2
    assert family_of(frame) == family
    assert told == proto
    assert int.from_bytes(addresses[width:], "big") == target[0]
    assert not any(addresses[: width if family == 4 else width - 5])
    assert struct.unpack_from("!HH", segment) == (0, 80)
    assert len(segment) == 20


@pytest.mark.parametrize(("family", "proto"), CASES)
def test_a_template_sums_up_to_the_frame(family: int, proto: int) -> None:
    """Template sum, address and port give the checksum of the whole frame."""
    frame = Traffic(family, proto=proto).frame(*MACS)
    head, (ip_sum, l4_sum) = template(frame, _IP[family], keep_seq=True)
    addresses, segment, _ = segment_of(frame)
    low = addresses[len(addresses) // 2 - 4 : len(addresses) // 2]
    filled = sum(struct.unpack("=2H", low))
    port = struct.unpack("=H", segment[:2])[0]
    at = 6 if proto == PROTO_UDP else 16
    check = struct.unpack("=H", segment[at : at + 2])[0]
    assert fold(l4_sum + filled + port) == check ^ 0xFFFF
    if family == 4:
        assert fold(ip_sum + filled) == struct.unpack("=H", frame[24:26])[0] ^ 0xFFFF
    assert len(head) == len(frame) - len(segment) + 20


def test_each_combination_once() -> None:
    """Every method with every family and protocol, numbered as they stand."""
    made = combinations()
    assert [each.number for each in made] == list(range(len(made)))
    assert {(each.method, each.family, each.proto) for each in made} == {
        (method, family, proto)
        for method in Forwarding
        for family in FAMILIES
        for proto in (PROTO_TCP, PROTO_UDP)
    }
    assert len(made) == len({each.name for each in made}) == len({each.service for each in made})


def test_replies_that_do_not_come_through_are_not_measured() -> None:
    """dsr and ipip have one way alone."""
    for each in combinations():
        ways = ("forward",) if each.method in ONE_SIDED else ("forward", "reply")
        assert each.ways == ways


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tunnels_packet_is_counted_by_its_outer_header(family: int) -> None:
    """At the backend IP carries IP; by other methods it carries what was sent."""
    inside = {4: 4, 6: 41}[family]
    assert Traffic(family, Forwarding.IPIP).arrives == inside
    assert Traffic(family, Forwarding.DSR, PROTO_UDP).arrives == PROTO_UDP
