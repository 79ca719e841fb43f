# SPDX-License-Identifier: Apache-2.0
"""Where a frame goes: a test run tells the verdict, a live one delivers to an interface."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import socket
from collections.abc import Iterator

import pytest
from pyroute2 import IPRoute

from tests.bpf.corpus.degrade import rst_to_client
from tests.bpf.corpus.flows import decided, established
from tests.bpf.corpus.orphans import DATA, bounced
from tests.bpf.corpus.world import (
    CLIENT_ISN,
    ROUTER_MAC_B,
    ROUTER_MAC_C,
    SERVER_ISN,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)
from tests.support.frames import ACK, RST, Segment
from tests.support.ipv6_frames import IPV6
from tests.support.privileges import require_kernel
from tests.support.program import Wires
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.lab import xdp_stub

pytest_plugins = ("tests.support.worlds",)

ETH_P_IP = 0x0800
THERE = Segment(flags=ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"there")
BACK = Segment(flags=ACK, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1, payload=b"back")


@contextlib.contextmanager
def _receiving(wires: Wires, kind: int) -> Iterator[dict[str, socket.socket]]:
    """Sockets at the far ends; a program on every end, without which veth takes no frames."""
    with contextlib.ExitStack() as stack, IPRoute() as ipr:
        sockets = {}
        stub = xdp_stub.load_constant(xdp_stub.XDP_PASS)
        indices = (wires.client, wires.client_peer, wires.backend, wires.backend_peer)
        links = [bpf.link_create(stub, index, bpf.XDP_FLAGS_DRV_MODE) for index in indices]
        for fd in (stub, *links):
            stack.callback(os.close, fd)
        for side, index in (("client", wires.client_peer), ("backend", wires.backend_peer)):
            name = ipr.link("get", index=index)[0].get_attr("IFLA_IFNAME")
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind))
            stack.callback(sock.close)
            sock.bind((name, kind))
            sock.settimeout(0.2)
            sockets[side] = sock
        yield sockets


def _run_live(world: World, frame: bytes, at: str) -> None:
    data = ct.create_string_buffer(frame, len(frame))
    context = (ct.c_uint32 * 6)(0, len(frame), 0, world.ingress(at), 0, 0)
    holder = _Context.from_buffer(context)
    entry = world.program.plane.entry
    run = bpf.TestRun(entry, data, holder, flags=bpf.BPF_F_TEST_XDP_LIVE_FRAMES)
    run.opts.batch_size = 1
    assert run.run() == 0


class _Context(ct.Structure):
    _fields_ = [("words", ct.c_uint32 * 6)]


def _received(sock: socket.socket) -> list[bytes]:
    frames = []
    with contextlib.suppress(TimeoutError):
        while True:
            frames.append(sock.recv(4096))
    # What the kernel says on the wires, which are IPv6's as well, is not of us.
    return [frame for frame in frames if frame[6:12] in (ROUTER_MAC_B, ROUTER_MAC_C)]


CASES: dict[str, tuple[tuple[Given, ...], bytes, str, bytes, str]] = {
    "bound, client to backend": (
        (established(),), to_service(THERE), "client", to_backend(THERE), "backend",
    ),
    "bound, backend to client": (
        (established(),), from_backend(BACK), "backend", to_client(BACK), "client",
    ),
    "pending, client to backend": (
        decided(), to_service(THERE), "client", to_backend(THERE), "backend",
    ),
    "pending, backend to client": (
        decided(), from_backend(BACK), "backend", to_client(BACK), "client",
    ),
    "answer by redirect": (
        (bounced,), to_service(DATA), "client", rst_to_client(DATA.ack, 0, RST), "client",
    ),
    "answer by XDP_TX": (
        (), to_service(DATA), "client", rst_to_client(DATA.ack, 0, RST), "client",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_frame_leaves_by_the_right_interface(name: str, world: World) -> None:
    """The rewritten frame, once, at the far end of one wire, and nothing at the other's."""
    require_kernel(5, 18, "BPF_PROG_TEST_RUN with live frames")
    given, frame, at, out, side = CASES[name]
    world.reset()
    for step in given:
        step(world)
    kind = {4: ETH_P_IP, 6: IPV6}[world.family]
    with _receiving(world.wires, kind) as sockets:
        _run_live(world, world.native(frame), at)
        assert _received(sockets[side]) == [world.native(out)]
        other = "backend" if side == "client" else "client"
        assert _received(sockets[other]) == []
    world.program.changes()
