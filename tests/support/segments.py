# SPDX-License-Identifier: Apache-2.0
"""Single TCP segments by hand: made and sent, or captured and read. No TCP stack takes part."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from xdp_router.lab import Namespace

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10

Address = tuple[str, int]

_ETH_P_IP = 0x0800
_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_SO_RCVBUFFORCE = 33
_CAPTURE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """What matters of a TCP segment over IPv4. Ports are with the addresses."""

    source: Address
    target: Address
    flags: int
    seq: int
    ack: int = 0
    window: int = 65535
    ttl: int = 64
    payload: bytes = b""

    @property
    def is_syn(self) -> bool:
        """A SYN that opens a connection."""
        return self.flags & (SYN | ACK) == SYN

    @property
    def end(self) -> int:
        """Sequence number behind the segment."""
        extra = bool(self.flags & SYN) + bool(self.flags & FIN)
        return (self.seq + len(self.payload) + extra) & 0xFFFFFFFF

    def packet(self) -> bytes:
        """IPv4 packet with correct checksums."""
        source, target = socket.inet_aton(self.source[0]), socket.inet_aton(self.target[0])
        ports = (self.source[1], self.target[1])
        fixed = (*ports, self.seq & 0xFFFFFFFF, self.ack & 0xFFFFFFFF, 5 << 4, self.flags)
        tcp = struct.pack("!HHIIBBHHH", *fixed, self.window, 0, 0) + self.payload
        pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
        tcp = tcp[:16] + _checksum(pseudo + tcp) + tcp[18:]
        head = struct.pack(
            "!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0x4000, self.ttl, socket.IPPROTO_TCP, 0
        )
        head = head + source + target
        return head[:10] + _checksum(head) + head[12:] + tcp


def _checksum(data: bytes) -> bytes:
    data += b"\0" * (len(data) & 1)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def parse_segment(packet: bytes) -> Segment | None:
    """The TCP segment in an IPv4 packet; None for anything else. Checksums are not looked at."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
        return None
    at = (packet[0] & 15) * 4
    length = int.from_bytes(packet[2:4])
    sport, dport, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", packet, at)
    return Segment(
        source=(socket.inet_ntoa(packet[12:16]), sport),
        target=(socket.inet_ntoa(packet[16:20]), dport),
        flags=flags,
        seq=seq,
        ack=ack,
        window=window,
        ttl=packet[8],
        payload=packet[at + (offset >> 4) * 4 : length],
    )


class Injector:
    """Sends segments from a namespace, with any source address."""

    def __init__(self, namespace: Namespace) -> None:
        self._socket = namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, segment: Segment) -> None:
        """Send one segment."""
        self._socket.sendto(segment.packet(), segment.target)


class Capture:
    """Sees what comes in by (and, if asked, goes out of) an interface, from its making on."""

    def __init__(
        self, namespace: Namespace, interface: str = "eth0", *, outgoing: bool = False
    ) -> None:
        self._socket = namespace.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _CAPTURE_BYTES)
        if not outgoing:
            self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        # Only a socket for all protocols sees what goes out.
        self._socket.bind((interface, _ETH_P_ALL if outgoing else _ETH_P_IP))
        self._socket.setblocking(False)
        self._seen: list[Segment] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def segments(self) -> list[Segment]:
        """All TCP segments so far, in order."""
        while True:
            try:
                packet = self._socket.recv(65536)
            except BlockingIOError:
                return self._seen
            segment = parse_segment(packet)
            if segment is not None:
                self._seen.append(segment)

    def syns(self, source_address: str | None = None) -> list[Segment]:
        """Opening SYNs so far, of one source address or of all."""
        return [
            segment
            for segment in self.segments()
            if segment.is_syn and source_address in (None, segment.source[0])
        ]
