# SPDX-License-Identifier: Apache-2.0
"""The bytes of a probe."""

from __future__ import annotations

import socket
import struct

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
