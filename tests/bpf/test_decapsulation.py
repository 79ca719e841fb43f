# SPDX-License-Identifier: Apache-2.0
"""The tunnel's end, packet by packet: what is taken off, and what is left alone."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from tests.support.privileges import require_root
from xdp_router.lab import decapsulation, libc

BPF_PROG_TEST_RUN = 10
XDP_PASS = 2
OWN4, OWN6 = "198.18.1.1", "2001:db8:18::1:1"
FAR4, FAR6 = "198.18.0.1", "2001:db8:18::1"
ETHER = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
INNER: dict[int, Packet] = {
    4: IP(src="198.18.0.2", dst="198.18.100.1") / UDP(sport=1, dport=2) / Raw(b"inside four"),
    6: IPv6(src="2001:db8:18::2", dst="2001:db8:100::1") / TCP(sport=1, dport=2) / Raw(b"six"),
}
OUTER: dict[int, Packet] = {4: IP(src=FAR4, dst=OWN4), 6: IPv6(src=FAR6, dst=OWN6)}


@pytest.fixture(scope="module")
def program() -> Iterator[int]:
    """The program of a host with both addresses."""
    require_root()
    fd = decapsulation.load(OWN4, OWN6)
    yield fd
    os.close(fd)


def run(program: int, packet: Packet) -> tuple[int, bytes]:
    """Verdict and frame after the program."""
    frame = bytes(packet)
    given = ctypes.create_string_buffer(frame, len(frame))
    left = ctypes.create_string_buffer(2048)
    attributes = struct.pack(
        "<IIIIQQII",
        program,
        0,
        len(frame),
        len(left),
        ctypes.addressof(given),
        ctypes.addressof(left),
        1,
        0,
    )
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc.bpf(BPF_PROG_TEST_RUN, buffer)
    verdict, _, length = struct.unpack_from("<III", buffer, 4)  # retval, size in, size out
    return verdict, left.raw[:length]


@pytest.mark.parametrize("inner", [4, 6])
@pytest.mark.parametrize("outer", [4, 6])
def test_outer_header_is_taken_off(program: int, outer: int, inner: int) -> None:
    """What is left is the inner packet behind the same MACs, with its own Ethernet type."""
    packet = ETHER / OUTER[outer] / INNER[inner]
    assert run(program, packet) == (XDP_PASS, bytes(ETHER / INNER[inner]))


@pytest.mark.parametrize(
    "packet",
    [
        ETHER / INNER[4],
        ETHER / INNER[6],
        ETHER / ARP(),
        ETHER / IP(src=FAR4, dst="198.18.1.2") / INNER[4],
        ETHER / IPv6(src=FAR6, dst="2001:db8:18::1:2") / INNER[4],
        ETHER / IP(src=FAR4, dst=OWN4, flags="MF") / INNER[4],
        ETHER / IP(src=FAR4, dst=OWN4, frag=3, proto=4) / Raw(bytes(40)),
        ETHER / IP(src=FAR4, dst=OWN4, options=b"\x01" * 4) / INNER[4],
        ETHER / IPv6(src=FAR6, dst=OWN6) / IPv6ExtHdrDestOpt() / INNER[4],
        ETHER / IP(src=FAR4, dst=OWN4, proto=47) / Raw(bytes(40)),
        ETHER / Raw(b"\x00" * 10),
        Ether(type=0x86DD) / Raw(b"\x60" + bytes(30)),
    ],
    ids=[
        "IPv4",
        "IPv6",
        "ARP",
        "not own IPv4",
        "not own IPv6",
        "first fragment",
        "later fragment",
        "options",
        "extension header",
        "GRE",
        "short",
        "cut",
    ],
)
def test_everything_else_stays_as_it_is(program: int, packet: Packet) -> None:
    """The kernel gets the frame as it came."""
    assert run(program, packet) == (XDP_PASS, bytes(packet))
