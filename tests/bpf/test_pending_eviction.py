# SPDX-License-Identifier: Apache-2.0
"""Which entries of ``flood_flows`` a flood pushes out: the oldest, never one just made."""

from __future__ import annotations

import pytest

from bench.frames import SYN, tcp_frame
from tests.bpf.corpus.budget import spend
from tests.bpf.corpus.world import B2, CLIENT_MAC, ROUTER_MAC_C, WEB, World
from tests.support.program import SIZES
from xdp_router.core import abi
from xdp_router.core.model import FlowKey

pytest_plugins = ("tests.support.worlds",)

FIRST = abi.parse_addr("198.18.128.0")
PORTS = 1000
BURST = 64
"""SYNs that one poll of a network card brings, before any SYN-ACK can come back."""


def client(number: int) -> tuple[int, int]:
    """Address and port of one of many clients."""
    return FIRST + number // PORTS, 20_000 + number % PORTS


def kept(world: World, number: int) -> bool:
    """Whether a client's handshake has all that it needs."""
    addr, port = client(number)
    there = FlowKey(addr, port, WEB.number, WEB.port)
    back = FlowKey(B2.end.number, B2.end.port, addr, port)
    forward = abi.pack_flow_key(world.native_key(there), abi.Kind.FORWARD)
    reply = abi.pack_flow_key(world.native_key(back), abi.Kind.REPLY)
    return all(world.program.flood.read(key) is not None for key in (forward, reply))


@pytest.mark.parametrize("share", [0.01, 0.5, 0.8])
def test_the_oldest_handshakes_give_way(world: World, share: float) -> None:
    """However many SYNs come after the table is full, the newest ones that fit are all there."""
    world.reset()
    spend(abi.TOKENS_SERVICE)(world)
    fit = SIZES.flood // 2
    last = 4 * fit + BURST
    for number in range(last):
        addr, port = client(number)
        frame = tcp_frame(ROUTER_MAC_C, CLIENT_MAC, (addr, port), (WEB.number, WEB.port), SYN)
        world.program.run_only(world.native(frame), world.ingress("client"))
    newest = range(last - int(share * fit), last)
    missing = [last - number for number in newest if not kept(world, number)]
    assert not missing, f"{len(missing)} of {len(newest)}; how many came after: {missing[:20]}"
    assert not list(world.program.pending.each_key()), "a flood's entries are its own"
    world.touch()
