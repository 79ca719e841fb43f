# SPDX-License-Identifier: Apache-2.0
"""Who is in the control arm, and whose turn it is there, as XDP has it for many flows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bpf.corpus.control_arm import arm
from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.flows import read_pending
from tests.bpf.corpus.picks import table
from tests.bpf.corpus.wide import service_of
from tests.bpf.corpus.world import B1, B2, B3, CLIENT, Given, World, flow_key, to_service
from tests.support.frames import End
from tests.support.program import REDIRECT
from xdp_router.core import abi
from xdp_router.core.model import Mode, Reason
from xdp_router.core.strategy.control_arm import Arm, arm_of

pytest_plugins = ("tests.support.worlds",)

PORTS = range(10_000, 10_400)
SHARE = 30


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """A test run is on the CPU of who asks for it, and turns are each CPU's own."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def decisions(world: World, ports: range, *given: Given) -> Iterator[tuple[int, abi.PendingValue]]:
    """What becomes of SYNs by these ports of the client."""
    world.reset()
    for step in given:
        step(world)
    frame = bytearray(world.native(to_service(OPEN)))
    port_at = 34 if world.family == 4 else 54
    for port in ports:
        frame[port_at : port_at + 2] = port.to_bytes(2, "big")
        assert world.program.run_only(bytes(frame), world.wires.client)[0] == REDIRECT
        key = world.native_key(flow_key(client=End(CLIENT.addr, port)))
        entry = read_pending(world, abi.pack_flow_key(key, abi.Kind.FORWARD))
        assert entry is not None
        yield port, entry


@pytest.mark.parametrize("affine", [False, True])
def test_both_sides_have_the_same_flows_in_it(world: World, affine: bool) -> None:
    """The daemon tells by the same hash which arm a flow was in that XDP has decided."""
    how: dict[str, Any] = {"flags": abi.SERVICE_AFFINITY, "affinity_ns": 1} if affine else {}
    service = service_of(control_arm=SHARE, mode=Mode.SNAPSHOT, affinity_ns=int(affine))
    met: Counter[Arm] = Counter()
    for port, entry in decisions(world, PORTS, arm(control_arm=SHARE, **how), table(B1, B2)):
        key = world.native_key(flow_key(client=End(CLIENT.addr, port)))
        wanted = arm_of(service, key)
        assert (entry.reason is Reason.CONTROL_ARM) is (wanted is Arm.CONTROL), (port, entry)
        met[wanted] += 1
    if affine:  # one source: all are in one arm
        assert len(met) == 1
    else:
        assert 60 < met[Arm.CONTROL] < 180


def test_turns_give_exact_shares(world: World, one_cpu: None) -> None:
    """Once through the table each backend has had as many flows as it has slots."""
    slots = [B1.id] * 600 + [B2.id] * 400 + [B3.id] * 21
    ports = range(10_000, 10_000 + abi.HASH_SLOTS)
    everything = decisions(
        world, ports, arm("turns"), table(B1), lambda world: world.change_hash(tuple(slots))
    )
    found = Counter((entry.backend, entry.mode) for _, entry in everything)
    assert found == {
        (B1.id, Mode.ROUND_ROBIN): 600,
        (B2.id, Mode.ROUND_ROBIN): 400,
        (B3.id, Mode.ROUND_ROBIN): 21,
    }
