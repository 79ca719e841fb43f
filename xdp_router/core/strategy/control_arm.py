# SPDX-License-Identifier: Apache-2.0
"""The control arm: a share of new flows that are not decided by the mode, to measure what it gains.

Which arm a flow is in depends on its addresses and ports alone (or, where flows of one source go
together, on its source), and on nothing that becomes of it: both arms meet the same clients and
the same backends at the same time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ..events import FirstPacket
from ..flow_hash import choice_hash
from ..model import NO_BACKEND, FlowKey, Mode, Reason, Service
from .base import Verdict
from .turns import Turns

FindSlot = Callable[[Service, int, AbstractSet[int]], int]
"""(service, hash, backends ruled out) -> whose the slot is, or NO_BACKEND."""

_U32 = 0xFFFF_FFFF


class Arm(enum.Enum):
    """How a flow of a service with a control arm is decided."""

    MODE = "mode"
    CONTROL = "control"


def arm_of(service: Service, key: FlowKey) -> Arm:
    """Which arm a flow is in, whoever decides: ``is_control_arm`` in ``ebpf/lib/pick.h`` is the
    other half. Without a control arm all are in one."""
    if not service.control_arm:
        return Arm.MODE
    # Mixed once more: the slot that a hash gives must say nothing of the arm.
    mixed = (choice_hash(service, key) ^ 0x5BD1_E995) * 0x9E37_79B1 & _U32
    mixed = (mixed ^ mixed >> 15) * 0x85EB_CA6B & _U32
    return Arm.CONTROL if (mixed >> 16) * 100 < service.control_arm << 16 else Arm.MODE


class ControlArm:
    """Decides the flows of the control arm, before any strategy sees them.

    ``up`` is the engine's set of usable backend ids; it is looked at, never changed.
    """

    def __init__(self, up: AbstractSet[int], find: FindSlot) -> None:
        self._up = up
        self._find = find
        self._turns = Turns()

    def decide(
        self, service: Service, first: FirstPacket, excluded: frozenset[int]
    ) -> Verdict | None:
        """What becomes of a first packet; None: it is the mode's. ``excluded``: it must not get
        these."""
        if arm_of(service, first.key) is Arm.MODE:
            return None
        backend = self._backend(service, first.key, excluded)
        if backend == NO_BACKEND:
            return Verdict(first, NO_BACKEND, Reason.NO_CANDIDATE)
        return Verdict(first, backend, Reason.CONTROL_ARM, service.control_arm_by)

    def keep_only(self, backends: AbstractSet[int]) -> None:
        """Forget the turns of all others: their ids may be somebody else's soon."""
        self._turns.keep_only(backends)

    def _backend(self, service: Service, key: FlowKey, excluded: frozenset[int]) -> int:
        usable = [
            each for each in service.backends if each.id in self._up and each.id not in excluded
        ]
        if not usable:
            return NO_BACKEND
        if service.control_arm_by is Mode.HASH:
            return self._find(service, choice_hash(service, key), excluded)
        return usable[self._turns.take(usable)].id
