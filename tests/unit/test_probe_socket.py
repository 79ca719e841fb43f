# SPDX-License-Identifier: Apache-2.0
"""The bytes of a probe."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_socket import ProbeTarget

SOURCE = 0xC6120101  # 198.18.1.1
BACKEND = 0xC6120102
PATH = Path(7, b"\x02\x00\x00\x00\x00\x02", b"\x02\x00\x00\x00\x00\x01", SOURCE)


def _checksum(data: bytes) -> int:
    """RFC 1071 over everything: 0 if the checksum inside is right."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def test_probe_is_a_minimal_syn() -> None:
    """Ethernet, IPv4 with DF, TTL 64, id 0; TCP SYN, window 65535, MSS 1460 and nothing else."""
    frame = bytes(ProbeTarget(PATH, BACKEND, 8080).probe(60001, 0x01020304))
    assert frame[:14] == PATH.dmac + PATH.smac + b"\x08\x00"
    assert frame[14:24] == bytes.fromhex("4500002c00004000 4006".replace(" ", ""))
    assert frame[26:34] == socket.inet_aton("198.18.1.1") + socket.inet_aton("198.18.1.2")
    ports_seq_ack = struct.pack("!HHII", 60001, 8080, 0x01020304, 0)
    assert frame[34:46] == ports_seq_ack
    assert frame[46:50] == b"\x60\x02\xff\xff"
    assert frame[52:] == b"\x00\x00\x02\x04\x05\xb4"
    assert len(frame) == 58


@given(
    source=st.integers(1, 0xFFFFFFFF),
    backend=st.integers(1, 0xFFFFFFFF),
    port=st.integers(1, 65535),
    probes=st.lists(
        st.tuples(st.integers(0, 65535), st.integers(0, 0xFFFFFFFF)), min_size=1, max_size=5
    ),
)
def test_checksums_are_right_for_every_probe(
    source: int, backend: int, port: int, probes: list[tuple[int, int]]
) -> None:
    """Both checksums verify, whatever the addresses, and for each reuse of the template."""
    target = ProbeTarget(Path(1, b"\x02" * 6, b"\x04" * 6, source), backend, port)
    for probe_port, seq in probes:
        frame = bytes(target.probe(probe_port, seq))
        assert _checksum(frame[14:34]) == 0
        assert _checksum(frame[26:34] + struct.pack("!HH", 6, 24) + frame[34:]) == 0
        assert struct.unpack_from("!HHI", frame, 34) == (probe_port, port, seq)


SOURCE6, BACKEND6 = 0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 2
V6 = st.integers(1 << 32, (1 << 128) - 1)


def test_ipv6_probe_is_a_minimal_syn() -> None:
    """Ethernet, IPv6 without flow label, hop limit 64; TCP SYN, window 65535, MSS 1440."""
    path = Path(7, PATH.dmac, PATH.smac, SOURCE6)
    frame = bytes(ProbeTarget(path, BACKEND6, 8080).probe(60001, 0x01020304))
    assert frame[:14] == PATH.dmac + PATH.smac + b"\x86\xdd"
    assert frame[14:22] == bytes.fromhex("60000000 0018 06 40".replace(" ", ""))
    addrs = [socket.inet_pton(socket.AF_INET6, text) for text in ("2001:db8::1", "2001:db8::2")]
    assert frame[22:54] == b"".join(addrs)
    assert frame[54:66] == struct.pack("!HHII", 60001, 8080, 0x01020304, 0)
    assert frame[66:70] == b"\x60\x02\xff\xff"
    assert frame[72:] == b"\x00\x00\x02\x04\x05\xa0"
    assert len(frame) == 78


@given(
    source=V6,
    backend=V6,
    port=st.integers(1, 65535),
    probes=st.lists(
        st.tuples(st.integers(0, 65535), st.integers(0, 0xFFFFFFFF)), min_size=1, max_size=5
    ),
)
def test_checksum_is_right_for_every_ipv6_probe(
    source: int, backend: int, port: int, probes: list[tuple[int, int]]
) -> None:
    """It verifies, whatever the addresses, and for each reuse of the template."""
    target = ProbeTarget(Path(1, b"\x02" * 6, b"\x04" * 6, source), backend, port)
    for probe_port, seq in probes:
        frame = bytes(target.probe(probe_port, seq))
        assert _checksum(frame[22:54] + struct.pack("!II", 24, 6) + frame[54:]) == 0
        assert struct.unpack_from("!HHI", frame, 54) == (probe_port, port, seq)


def test_a_probe_may_have_a_tag() -> None:
    """Four bytes more in front of the same packet; no tag at all if that is what is known."""
    plain = bytes(ProbeTarget(PATH, BACKEND, 8080).probe(60001, 7))
    tagged = bytes(ProbeTarget(replace(PATH, vlan=7), BACKEND, 8080).probe(60001, 7))
    assert tagged == plain[:12] + b"\x81\x00\x00\x07" + plain[12:]
    assert bytes(ProbeTarget(replace(PATH, vlan=0), BACKEND, 8080).probe(60001, 7)) == plain
