# SPDX-License-Identifier: Apache-2.0
"""Datagrams that come while the daemon sends those that it has held: none overtakes another.

The daemon runs a held frame through the program, and sends it then. What comes between the two
is put there by the packet socket's stand-in.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.bpf.corpus.udp_flows import ask, asked, forward, key, reply, seen, service
from tests.bpf.corpus.world import MARK, World
from tests.support.program import DROP, REDIRECT
from tests.support.udp_frames import Datagram
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core.commands import Reinject
from xdp_router.core.events import Datagram as HeldDatagram
from xdp_router.daemon.executor import Executor

pytest_plugins = ("tests.support.worlds",)

HELD, NEXT = Datagram(payload=b"the last of two"), Datagram(payload=b"the next one")


def test_a_datagram_waits_for_the_one_in_the_daemons_hands(world: World) -> None:
    """Its flow is answered, and each that was held has been counted: but it has not left."""
    world.reset()
    for given in (service(), seen(2), reply(packets=1), forward(packets=1)):
        given(world)
    left: list[bytes] = []

    def comes_meanwhile(_ifindex: int, frame: bytes) -> None:
        outcome = world.run(ask(NEXT))
        assert (outcome.verdict, outcome.counters["datagram_held"]) == (DROP, 1)
        left.append(frame)

    sender: Any = SimpleNamespace(send_frame=comes_meanwhile)
    daemon = _daemon(world, sender)
    daemon.execute(Reinject(_held(world, HELD)))
    sender.send_frame = lambda _ifindex, frame: left.append(frame)
    daemon.execute(Reinject(_held(world, NEXT)))
    assert left == [world.native(asked(HELD)), world.native(asked(NEXT))]
    assert daemon.counters["reinject_failed"] == 0
    assert world.run(ask(NEXT)).verdict == REDIRECT


def _daemon(world: World, sender: Any) -> Executor:
    state: Any = None
    plane = world.program.plane
    reinjector = Reinjector(plane.entry, MARK, plane.maps["leaving"])
    return Executor(state, (), reinjector, sender, lambda _decision: None)


def _held(world: World, datagram: Datagram) -> HeldDatagram:
    return HeldDatagram(world.native_key(key()), 0, world.wires.client, world.native(ask(datagram)))
