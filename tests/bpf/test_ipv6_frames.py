# SPDX-License-Identifier: Apache-2.0
"""The corpus in IPv6 says what it says in IPv4: scapy reads both, and finds them alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from tests.bpf.corpus import CASES
from tests.bpf.corpus.world import B1, CLIENT, WEB
from tests.bpf.corpus.world6 import PROBES
from tests.support import frames, ipv6_judge
from tests.support.frames import ACK, Hop, Segment
from tests.support.ipv6_frames import (
    DESTINATION,
    ipv4_addr,
    ipv6_addr,
    ipv6_frame,
    is_ipv6,
    with_extensions,
)

TCP_NUMBER = 6
HOP = Hop(bytes(6), bytes(6))


def _plain() -> Iterator[tuple[str, bytes, bytes]]:
    """Frames of whole TCP packets that scapy writes as it reads them, in both families."""
    for case in CASES:
        for frame in (case.frame, case.out):
            if case.families != (4, 6) or frame is None or is_ipv6(frame):
                continue
            packet = Ether(frame)
            if TCP not in packet or packet[IP].proto != TCP_NUMBER or packet[IP].flags.MF:
                continue
            whole = not frames.length_errors(frame) and not packet[IP].frag
            if whole and frames.rebuilt(frame) == frame:
                yield case.name, frame, ipv6_frame(frame, PROBES)


def test_a_translated_frame_is_right_and_means_the_same() -> None:
    """Sums and lengths as scapy computes them; TTL, class, ports, flags and payload are kept."""
    tried = 0
    for name, frame, six in _plain():
        assert not ipv6_judge.checksum_errors(six), name
        assert ipv6_judge.rebuilt(six) == six, name
        old, new = Ether(frame), Ether(six)
        assert (new[IPv6].hlim, new[IPv6].tc) == (old[IP].ttl, old[IP].tos), name
        for field in ("sport", "dport", "flags", "window", "urgptr", "options"):
            assert getattr(new[TCP], field) == getattr(old[TCP], field), (name, field)
        length = old[IP].len - old[IP].ihl * 4 - old[TCP].dataofs * 4
        assert bytes(new[TCP].payload)[:length] == bytes(old[TCP].payload)[:length], name
        tried += 1
    assert tried > 500


def test_a_wrong_sum_stays_wrong() -> None:
    """What is damaged in IPv4 is damaged in IPv6."""
    frame = bytearray(Segment(payload=b"data").frame(CLIENT, WEB, HOP))
    frame[-1] ^= 1
    assert ipv6_judge.checksum_errors(ipv6_frame(bytes(frame), PROBES)) == {"tcp"}


@given(st.integers(1, 0xFFFFFFFF))
def test_addresses_come_back(number: int) -> None:
    """Each IPv4 address has its own of IPv6, and a /24 is a /56."""
    six = ipv6_addr(number)
    assert ipv4_addr(six) == number
    assert ipv6_addr(six) == six
    assert six >> 72 == ipv6_addr(number & ~0xFF | 1) >> 72


def test_no_address_stays_none() -> None:
    """0 is no address in both families, and an address of no IPv4 one's is left as it is."""
    assert (ipv6_addr(0), ipv4_addr(0), ipv4_addr(1 << 127)) == (0, 0, 1 << 127)


def test_probe_numbers_keep_what_is_wrong_with_them() -> None:
    """The distance from the right number is the same in both families."""
    backend, ours = (B1.end.number, B1.end.port), (CLIENT.number, 61_000)
    at = PROBES.moved(0, backend, ours)
    for off in (1, 5, 0x800000, 0xFFFFFF):
        assert (PROBES.moved(off, backend, ours) - at) & 0xFFFFFF == off
    assert PROBES.moved(77, backend, (CLIENT.number, 40_000)) == 77


@pytest.mark.parametrize("at", [14, 16, 17])
def test_what_ipv6_cannot_say_is_refused(at: int) -> None:
    """A header that lies about itself has no counterpart."""
    frame = bytearray(Segment().frame(CLIENT, WEB, HOP))
    frame[at] = {14: 0x44, 16: 0xFF, 17: 0x05}[at]
    with pytest.raises(ValueError, match="IPv4"):
        ipv6_frame(bytes(frame), PROBES)


def test_extension_headers_are_put_in_front() -> None:
    """The chain is linked, and the payload length counts it."""
    frame = ipv6_frame(Segment(flags=ACK, payload=b"x").frame(CLIENT, WEB, HOP), PROBES)
    header = DESTINATION, bytes([0, 0, 1, 4, 0, 0, 0, 0])
    packet = Ether(with_extensions(frame, header, header))
    assert packet[IPv6].nh == DESTINATION
    assert packet[IPv6].plen == Ether(frame)[IPv6].plen + 16
    assert bytes(packet[TCP].payload) == b"x"
    assert not ipv6_judge.checksum_errors(bytes(packet))
