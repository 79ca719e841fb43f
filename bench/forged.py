# SPDX-License-Identifier: Apache-2.0
"""A flood of forged first packets at a router in a lab, from inside the kernel.

It comes by an interface of its own, or by the one that the lab's clients come by. Backends answer
it by an XDP program, so that their stacks do not drown in it; everybody else reaches the stacks.
"""

from __future__ import annotations

import ctypes as ct
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import xdp_link
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.core.abi import parse_addr
from xdp_router.lab import Lab, links
from xdp_router.lab.namespace import Namespace
from xdp_router.lab.spec import Family

from . import programs
from .frames import HEADERS, PROTO_TCP, PROTO_UDP, SYN, tcp_frame, udp_frame
from .threaded import thread_napi
from .wire import XdpMd, keep_ready

INTERFACE = "flood0"
"""The router's end of the flood's own wire."""

_HEAD_MAX = 80
_CONFIG = struct.Struct(f"=QQ{_HEAD_MAX}sB7x")
FORGED: dict[int, tuple[str, str, str]] = {
    4: ("198.18.128.0/18", "198.18.202.1/24", "198.18.202.2"),
    6: ("2001:db8:f000::/40", "2001:db8:202::1/64", "2001:db8:202::2"),
}
"""What they pretend to come from, and both ends of the flood's own wire: the router's, theirs."""
COUNTERS = ("at_backends", "answered")
"""Forged packets that arrived at backends, and answers that came back."""
_BATCH = 64
_EACH_NS = 500_000


class Forger:
    """Sends forged first packets from one interface of a namespace."""

    def __init__(
        self,
        namespace: Namespace,
        ifname: str,
        macs: tuple[str, str],
        service: tuple[str, int],
        loaded: programs.Programs,
        proto: int = PROTO_TCP,
    ) -> None:
        """``macs``: the router's and our own. ``loaded``: ``flood``; one flood at a time."""
        self._namespace = namespace
        self._config = BpfMap(loaded.maps["flood_config"])
        dmac, smac = (bytes.fromhex(mac.replace(":", "")) for mac in macs)
        target = (parse_addr(service[0]), service[1])
        self._proto = proto
        self._frame = first_packet(dmac, smac, target, proto)
        self._data = ct.create_string_buffer(2048)
        ct.memmove(self._data, self._frame, len(self._frame))
        index = links.ifindex(namespace, ifname)
        self._ctx = XdpMd(ingress_ifindex=index, data_end=len(self._frame))
        self._run = bpf.TestRun(
            loaded.programs["forge"], self._data, self._ctx, flags=bpf.BPF_F_TEST_XDP_LIVE_FRAMES
        )
        self._run.opts.batch_size = _BATCH
        self._run.opts.data_size_in = len(self._frame)

    @contextmanager
    def flooding(self, rate: int, cpu: int) -> Iterator[None]:
        """Send while the block runs, ``rate`` a second at most, from one CPU."""
        self._config.write(
            bytes(programs.U32),
            config_value(time.monotonic_ns() | 1, self._frame, self._proto),
        )
        stop = threading.Event()
        failures: list[BaseException] = []

        def send() -> None:
            try:
                with programs.pinned(cpu):
                    self._send(rate, stop)
            except BaseException as error:  # told when the block ends
                failures.append(error)

        thread = threading.Thread(target=lambda: self._namespace.run(send), name="flood")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def _send(self, rate: int, stop: threading.Event) -> None:
        """What is due by the clock; what could not be sent in time is not made up for."""
        last_ns = time.monotonic_ns()
        most = rate // 100
        while not stop.is_set():
            time.sleep(_EACH_NS / 1e9)
            now_ns = time.monotonic_ns()
            due = min(most, (now_ns - last_ns) * rate // 1_000_000_000)
            last_ns = now_ns
            self._run.opts.repeat = max(1, due)
            if code := self._run.run():
                raise BpfError(code, f"send {due} live frames")

    def sent(self) -> int:
        """How many frames were sent since the newest flood began."""
        raw = self._config.read(bytes(programs.U32)) or bytes(_CONFIG.size)
        return int(_CONFIG.unpack(raw)[1])


def config_value(random: int, frame: bytes, proto: int) -> bytes:
    """``struct flood_config`` with nothing sent; ``random`` must not be 0."""
    return _CONFIG.pack(random, 0, frame.ljust(_HEAD_MAX, b"\0"), proto)


def first_packet(dmac: bytes, smac: bytes, target: tuple[int, int], proto: int) -> bytes:
    """A SYN without payload, or a datagram of 12 bytes; who sends it is filled in."""
    six = bool(target[0] >> 32)
    # The family is told by the source, which no address of IPv6 is that is zero.
    source = (1 << 32 if six else 0, 0)
    if proto == PROTO_UDP:
        return udp_frame(dmac, smac, source, target, length=HEADERS)
    return tcp_frame(dmac, smac, source, target, SYN, length=HEADERS)


class ForgedSyns:
    """The parts that a flood has in a lab. ``own`` and ``shared`` send it."""

    def __init__(
        self,
        lab: Lab,
        directory: Path,
        undo: ExitStack,
        threaded: bool = False,
        *,
        family: Family = 4,
        proto: int = PROTO_TCP,
        back: str = "own",
    ) -> None:
        """Wires and programs; before the router is attached, to ``INTERFACE`` as well.

        ``threaded``: the router's end of the flood's own wire works in a thread, so that the
        flood is as fast as its sender, and what is too much is lost in front of XDP. ``back``:
        where the router routes answers to that no entry tells the way of.
        """
        self._undo = undo
        self.loaded = programs.load(
            "flood", directory, entries={"flood_counts": len(COUNTERS)}, family=family
        )
        undo.callback(self.loaded.close)
        keep_ready(self.loaded.programs["forge"], undo)
        source = Namespace.create(f"{lab.prefix}-flood")
        undo.callback(source.close)
        links.prepare(source, {}, ipv6=True)
        macs = links.mac(3, 0, 1), links.mac(3, 0, 2)
        links.connect(
            links.End(lab.router, INTERFACE, macs[0], tuple(own for _, own, _ in FORGED.values())),
            links.End(source, "eth0", macs[1]),
        )
        if threaded:
            thread_napi(lab.router, INTERFACE)
        for namespace in lab.backends:
            self._attach(namespace, "answer_forged")
        for namespace in (source, lab.client):
            self._attach(namespace, "drop_answers")
        client_macs = links.mac(0, 0, 1), links.mac(0, 0, 2)
        prefix, _, gateway = FORGED[family]
        if back == "own":
            links.permanent_neighbour(lab.router, INTERFACE, gateway, macs[1])
            _route(lab.router, prefix, gateway)
        else:
            _route(lab.router, prefix, lab.addresses_of(family).client)
        service = lab.addresses_of(family).service
        self.own = Forger(source, "eth0", macs, service, self.loaded, proto)
        self.shared = Forger(lab.client, "eth0", client_macs, service, self.loaded, proto)
        self._counts = BpfMap(self.loaded.maps["flood_counts"])

    def _attach(self, namespace: Namespace, program: str) -> None:
        index = links.ifindex(namespace, "eth0")
        native = xdp_link.AttachMode.NATIVE
        fd = self.loaded.programs[program]
        link = namespace.run(lambda: xdp_link.attach(fd, "eth0", index, native))
        self._undo.callback(link.close)

    def counts(self) -> dict[str, int]:
        """Forged packets that arrived at backends, and answers that came back; since the start."""
        found = {}
        for number, name in enumerate(COUNTERS):
            raw = self._counts.read(number.to_bytes(programs.U32, "little")) or b""
            found[name] = sum(memoryview(raw).cast("Q"))
        return found


def _route(namespace: Namespace, prefix: str, gateway: str) -> None:
    links.with_netlink(
        namespace, lambda netlink: netlink.route("replace", dst=prefix, gateway=gateway)
    )
