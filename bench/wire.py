# SPDX-License-Identifier: Apache-2.0
"""A client, a router and a backend on veth wires, with a live-frame generator at one end and
a counting XDP program at the other. No process runs in there: the router is what is attached.
"""

from __future__ import annotations

import ctypes as ct
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import xdp_link
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.lab import links
from xdp_router.lab.namespace import Namespace

from . import programs
from .frames import ETHERNET, PROTO_TCP, PROTO_UDP, fold
from .plane import Place
from .traffic import CLIENT_BASE, NAT

_HEAD_MAX = 80
_CONFIG = struct.Struct(f"=QIIIIII6s6s{_HEAD_MAX}sBB2x")
_CHECK_AT = {PROTO_TCP: 16, PROTO_UDP: 6}
_TCP_HEADER = 20
"""The programs write so much behind the IP header; of UDP some of it is payload."""


@dataclass(frozen=True, slots=True)
class _Ip:
    """Where things are in a family's header, from its beginning."""

    length: int
    proto: int
    addresses: int
    width: int

    @property
    def low(self) -> int:
        """The last 32 bits of the source address."""
        return self.addresses + self.width - 4


_IP = {4: _Ip(20, 9, 12, 4), 6: _Ip(40, 6, 8, 16)}
_BATCH = 64
_SETTLE_S = 0.05


class XdpMd(ct.Structure):
    """``struct xdp_md`` of a test run."""

    _fields_ = [(name, ct.c_uint32) for name in ("data", "data_end", "data_meta")] + [
        (name, ct.c_uint32) for name in ("ingress_ifindex", "rx_queue_index", "egress_ifindex")
    ]


def keep_ready(prog_fd: int, undo: ExitStack) -> None:
    """Attach a program to a wire that nobody uses.

    A test run with ``repeat`` > 1 puts its program into the kernel's XDP dispatcher and takes it
    out again, some 10 ms each; one that is attached somewhere is there already.
    """
    namespace = Namespace.create("bench-idle")
    undo.callback(namespace.close)
    links.prepare(namespace, {})  # no IPv6: nothing may arrive there
    links.connect(
        links.End(namespace, "idle0", links.mac(9, 0, 1)),
        links.End(namespace, "idle1", links.mac(9, 0, 2)),
    )
    index = links.ifindex(namespace, "idle0")
    native = xdp_link.AttachMode.NATIVE
    link = namespace.run(lambda: xdp_link.attach(prog_fd, "idle0", index, native))
    undo.callback(link.close)


class Generator:
    """Sends frames from an interface of a namespace, from inside the kernel.

    ``flows`` 0: each frame is the first of a new flow, with an ISN of its own.
    """

    def __init__(
        self,
        loaded: programs.Programs,
        namespace: Namespace,
        ifname: str,
        undo: ExitStack,
        family: int = 4,
    ) -> None:
        self._ip = _IP[family]
        keep_ready(loaded.programs["generate"], undo)
        self._config = BpfMap(loaded.maps["wire_config"])
        self._namespace = namespace
        self._ifindex = links.ifindex(namespace, ifname)
        self._frame = ct.create_string_buffer(2048)
        self._ctx = XdpMd(ingress_ifindex=self._ifindex)
        self._run = bpf.TestRun(
            loaded.programs["generate"],
            self._frame,
            self._ctx,
            flags=bpf.BPF_F_TEST_XDP_LIVE_FRAMES,
        )
        self._run.opts.batch_size = _BATCH

    def configure(
        self,
        flows: int,
        frame: bytes,
        *,
        first: int = 0,
        redirect_to: int = 0,
        dmac: bytes = bytes(6),
        smac: bytes = bytes(6),
        arrives: int = 0,
    ) -> None:
        """Set the template, of this generator's family. Its source address, source port and (if
        ``flows`` is 0) TCP sequence number are replaced. ``arrives``: what the IP header says
        that it carries when the receiver counts it; 0: as sent. The rest is for the bare redirect.
        """
        head, sums = template(frame, self._ip, keep_seq=bool(flows))
        proto = frame[ETHERNET + self._ip.proto]
        self._config.write(
            bytes(programs.U32),
            _CONFIG.pack(
                time.monotonic_ns() | 1,
                flows,
                first,
                CLIENT_BASE,
                *sums,
                redirect_to,
                dmac,
                smac,
                head.ljust(_HEAD_MAX, b"\0"),
                proto,
                arrives or proto,
            ),
        )
        ct.memmove(self._frame, frame, len(frame))
        self._ctx.data_end = len(frame)
        self._run.opts.data_size_in = len(frame)

    def send(self, frames: int) -> None:
        """Send; only from within ``Namespace.run`` of the generator's namespace."""
        self._run.opts.repeat = frames
        code = self._run.run()
        if code:
            raise BpfError(code, f"send {frames} live frames")

    def within(self, use: Any) -> Any:
        """Call ``use`` in a thread inside the namespace."""
        return self._namespace.run(use)


def template(frame: bytes, ip: _Ip, *, keep_seq: bool) -> tuple[bytes, tuple[int, int]]:
    """The frame's headers without what is filled in, and the sums of the IP header and of the
    segment, not folded, without that and in this machine's byte order."""
    l4 = ETHERNET + ip.length
    head = bytearray(frame[: l4 + _TCP_HEADER])
    proto = head[ETHERNET + ip.proto]
    check = l4 + _CHECK_AT[proto]
    low = ETHERNET + ip.low
    head[low : low + 4] = bytes(4)
    if ip.width == 4:
        head[ETHERNET + 10 : ETHERNET + 12] = bytes(2)
    head[l4 : l4 + 2] = bytes(2)
    head[check : check + 2] = bytes(2)
    if proto == PROTO_TCP and not keep_seq:
        head[l4 + 4 : l4 + 8] = bytes(4)
    segment = bytes(head[l4:]) + frame[len(head) :]
    at = ETHERNET + ip.addresses
    pseudo = bytes(head[at : at + 2 * ip.width])
    pseudo += bytes((0, proto)) + len(segment).to_bytes(2, "big")
    ip_sum = fold(_swapped(bytes(head[ETHERNET:l4]))) if ip.width == 4 else 0
    return bytes(head), (ip_sum, fold(_swapped(pseudo) + _swapped(segment)))


def _swapped(data: bytes) -> int:
    """One's complement sum as the machine's own byte order reads it."""
    data += b"\0" * (len(data) & 1)
    return sum(struct.unpack(f"={len(data) // 2}H", data))


class Receiver:
    """What a counting program has counted, over all CPUs."""

    def __init__(self, loaded: programs.Programs) -> None:
        self._map = BpfMap(loaded.maps["wire_count"])

    def count(self) -> int:
        """Packets so far."""
        raw = self._map.read(bytes(programs.U32))
        return sum(memoryview(raw).cast("Q")) if raw is not None else 0


class Wire:
    """The namespaces, their interfaces and what stands at the ends. Use ``wire()``."""

    def __init__(self, directory: Path, undo: ExitStack, families: Sequence[int] = (4,)) -> None:
        self.client, self.router, self.backend = (
            Namespace.create(f"bench-{part}") for part in ("client", "router", "backend")
        )
        self._undo = undo
        for namespace in (self.client, self.router, self.backend):
            undo.callback(namespace.close)
            forward = {"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0"}
            links.prepare(namespace, {**forward, "ipv4/conf/default/rp_filter": "0"})
        place = Place()
        links.connect(
            links.End(self.router, "client0", _text(place.client_side), ("198.18.0.1/17",)),
            links.End(self.client, "eth0", _text(place.client), ("198.18.0.2/17",)),
        )
        links.connect(
            links.End(self.router, "be1", _text(place.backend_side), ("198.19.1.1/24",)),
            links.End(self.backend, "eth0", _text(place.backend), ("198.19.1.2/24",)),
        )
        links.default_route(self.client, "198.18.0.1")
        links.default_route(self.backend, "198.19.1.1")
        self.place = Place(
            client_ifindex=links.ifindex(self.router, "client0"),
            backend_ifindex=links.ifindex(self.router, "be1"),
        )
        links.with_netlink(
            self.router,
            lambda netlink: netlink.neigh(
                "replace",
                dst="198.19.1.2",
                lladdr=_text(place.backend),
                ifindex=self.place.backend_ifindex,
                state="permanent",
            ),
        )
        self.ends = programs.load("wire", directory)
        undo.callback(self.ends.close)
        self.generators: dict[int, Generator] = {}
        for family in families:
            loaded = self.ends
            if family != 4:  # counted by the same program
                loaded = programs.load("wire", directory, self.ends.maps, family=family)
                undo.callback(loaded.close)
            self.generators[family] = Generator(loaded, self.client, "eth0", undo, family)
        if 4 in self.generators:  # what the receiver counts until something else is sent
            self.generators[4].configure(1, NAT.frame(place.client_side, place.client))
        self.receiver = Receiver(self.ends)
        self.attach(self.backend, "eth0", self.ends.programs["count_and_drop"])
        time.sleep(_SETTLE_S)

    def attach(self, namespace: Namespace, ifname: str, prog_fd: int) -> xdp_link.XdpLink:
        """Attach a program natively, until the end of the wire."""
        index = links.ifindex(namespace, ifname)
        link = namespace.run(
            lambda: xdp_link.attach(prog_fd, ifname, index, xdp_link.AttachMode.NATIVE)
        )
        self._undo.callback(link.close)
        return link

    def rate(self, frames: int, family: int = 4) -> tuple[float, float]:
        """Send so many by a family's generator; packets a second that arrived, and the share."""

        def body() -> tuple[float, float]:
            with programs.pinned(1):
                before, start_ns = self.receiver.count(), time.perf_counter_ns()
                self.generators[family].send(frames)
                elapsed_ns = time.perf_counter_ns() - start_ns
                arrived = self.receiver.count() - before
            return arrived * 1e9 / elapsed_ns, arrived / frames

        return self.client.run(body)


@contextmanager
def wire(directory: Path, families: Sequence[int] = (4,)) -> Iterator[Wire]:
    """A wire that is there while the block runs, with a generator for each family."""
    with ExitStack() as undo:
        yield Wire(directory, undo, families)


def _text(mac: bytes) -> str:
    return mac.hex(":")
