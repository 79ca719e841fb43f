# SPDX-License-Identifier: Apache-2.0
"""Sends raw frames: probes to backends, and frames that are re-injected.

AF_PACKET, because a raw IP socket would leave conntrack entries and obey SNAT rules.
Answers are not received here: the XDP program takes them.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from typing import Final, Protocol

from xdp_router.core.address import is_ipv6
from xdp_router.core.checksum import checksum, ones_sum, pseudo_sum

from .ip_header import ethertype, ip_header
from .paths import Path

_ETHERNET = 14
_SOL_PACKET: Final = 263
_PACKET_QDISC_BYPASS: Final = 20

_TCP: Final = struct.Struct("!HHIIBBHHHBBH")
_PATCH: Final = struct.Struct("!HHIIHHH")  # ports, seq, ack, offset+flags, window, checksum
_TCP_LENGTH: Final = 24
_OFFSET_FLAGS: Final = 0x6002  # six words, SYN
_WINDOW: Final = 65535
_MSS: Final = 1460
_MSS_IPV6: Final = 1440
_PROTO_TCP: Final = 6


class ProbeTarget:
    """One backend as the destination of probes: a frame with all but ports, seq, checksum.

    Make a new one when the path changes. ``addr`` and the path's source are of one family.
    """

    __slots__ = ("_base", "_tcp_at", "frame", "ifindex", "path", "port")

    def __init__(self, path: Path, addr: int, port: int) -> None:
        self.path = path
        self.ifindex = path.ifindex
        self.port = port
        ip = ip_header(path.source_addr, addr, _PROTO_TCP, _TCP_LENGTH)
        mss = _MSS_IPV6 if is_ipv6(addr) else _MSS
        tcp = _TCP.pack(0, port, 0, 0, _OFFSET_FLAGS >> 8, 2, _WINDOW, 0, 0, 2, 4, mss)
        headers = path.ethernet_header(ethertype(addr)) + ip
        self._tcp_at = len(headers)
        self.frame = bytearray(headers + tcp)
        # TCP checksum without source port and sequence number: pseudo header and the rest.
        pseudo = pseudo_sum(path.source_addr, addr, _PROTO_TCP, _TCP_LENGTH)
        self._base = checksum(pseudo + ones_sum(tcp)) ^ 0xFFFF

    def probe(self, probe_port: int, seq: int) -> bytearray:
        """The finished frame of one probe; valid until the next call."""
        total = self._base + probe_port + (seq >> 16) + (seq & 0xFFFF)
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        _PATCH.pack_into(
            self.frame,
            self._tcp_at,
            probe_port,
            self.port,
            seq,
            0,
            _OFFSET_FLAGS,
            _WINDOW,
            total ^ 0xFFFF,
        )
        return self.frame


class Target(Protocol):
    """One backend as the destination of probes, whatever their kind."""

    @property
    def ifindex(self) -> int:
        """The interface that they leave by."""

    def probe(self, probe_port: int, seq: int) -> bytes | bytearray:
        """The finished frame of one probe; valid until the next call."""


class ProbeSocket:
    """Frame sender with one socket per egress interface, opened at its first frame.

    Belongs to the network namespace in which frames are first sent. ``qdisc_bypass`` skips
    the queueing discipline: cheaper, but unseen by its shaping. No method that sends raises:
    a frame that the kernel does not take is counted in :attr:`counters`.
    """

    def __init__(self, *, qdisc_bypass: bool = False) -> None:
        self._bypass = qdisc_bypass
        self._sockets: dict[int, socket.socket] = {}
        self.counters: dict[str, int] = {
            "probe_sent": 0,
            "probe_bytes": 0,
            "frame_sent": 0,
            "send_no_buffers": 0,
            "send_interface_down": 0,
            "send_interface_gone": 0,
            "send_failed": 0,
        }

    def open(self, ifindex: int) -> None:
        """Open the interface's socket now. Raises OSError; sending does it by itself."""
        if ifindex in self._sockets:
            return
        with contextlib.ExitStack() as undo:
            # Protocol 0: it receives nothing, so nothing is cloned for it.
            sock = undo.enter_context(
                socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            )
            sock.setblocking(False)
            if self._bypass:
                sock.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
            sock.bind((socket.if_indextoname(ifindex), 0))
            undo.pop_all()
        self._sockets[ifindex] = sock

    def send_probe(self, target: Target, probe_port: int, seq: int) -> int:
        """Send one probe. Returns CLOCK_MONOTONIC ns just before the send; 0: not sent."""
        frame = target.probe(probe_port, seq)
        sock = self._sockets.get(target.ifindex)
        if sock is not None:
            sent_ns = time.monotonic_ns()
            try:
                sock.send(frame)
            except OSError as error:
                if not self._retry(target.ifindex, error):
                    return 0
            else:
                self._sent(frame)
                return sent_ns
        sent_ns = time.monotonic_ns()
        if not self._send_slowly(target.ifindex, frame):
            return 0
        self._sent(frame)
        return sent_ns

    def _sent(self, frame: bytes | bytearray) -> None:
        self.counters["probe_sent"] += 1
        self.counters["probe_bytes"] += len(frame) - _ETHERNET

    def send_frame(self, ifindex: int, frame: bytes | bytearray | memoryview) -> bool:
        """Send a finished Ethernet frame by an interface. False: not sent, and counted."""
        sock = self._sockets.get(ifindex)
        if sock is not None:
            try:
                sock.send(frame)
            except OSError as error:
                if not self._retry(ifindex, error):
                    return False
            else:
                self.counters["frame_sent"] += 1
                return True
        if not self._send_slowly(ifindex, frame):
            return False
        self.counters["frame_sent"] += 1
        return True

    def close(self) -> None:
        """Close all sockets. Calling it again does nothing."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def forget(self, ifindex: int) -> None:
        """Close the socket of an interface that has gone."""
        sock = self._sockets.pop(ifindex, None)
        if sock is not None:
            sock.close()

    def _retry(self, ifindex: int, error: OSError) -> bool:
        """Whether a second try makes sense; if not, the failure is counted."""
        if error.errno == errno.ENETDOWN:
            # Also reported once, late, for a flap that is over.
            return True
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EBADF):
            self.forget(ifindex)
            return True
        self._count(error)
        return False

    def _send_slowly(self, ifindex: int, frame: bytes | bytearray | memoryview) -> bool:
        try:
            self.open(ifindex)
            self._sockets[ifindex].send(frame)
        except OSError as error:
            self._count(error)
            return False
        return True

    def _count(self, error: OSError) -> None:
        if error.errno in (errno.ENOBUFS, errno.EAGAIN):
            name = "send_no_buffers"
        elif error.errno == errno.ENETDOWN:
            name = "send_interface_down"
        elif error.errno in (errno.ENXIO, errno.ENODEV):
            name = "send_interface_gone"
        else:
            name = "send_failed"
        self.counters[name] += 1
