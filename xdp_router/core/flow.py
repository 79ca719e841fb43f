# SPDX-License-Identifier: Apache-2.0
"""The life of a flow as a table, the object of an open decision, and the record of past ones.

    INIT ──► PROBING ──► BOUND | FALLBACK ──► STREAMING ──► CLOSED

INIT       its first packet is known, nothing has been done for it.
PROBING    it waits for a measurement, its own or one that it joined.
BOUND      a binding to a backend that was chosen by a measurement is in the kernel.
FALLBACK   the same, but the backend was chosen without one: configured fallback or hash. A
           flow that is refused without ever having been probed for passes through it, too:
           the degrade chain was walked to its end.
STREAMING  the client's handshake was verified.
CLOSED     refused, reset, evicted, failed, or aged out.

INIT → BOUND skips the probing: another race's outcome was taken, or somebody else had decided.
PROBING, BOUND and FALLBACK may close at any time. Nothing leaves CLOSED: the next first packet
of the same five-tuple is a flow of its own. TCP detail is not part of this; it lives in
``flow_table``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .address import PROTOCOLS
from .events import Datagram, FirstPacket
from .model import NO_BACKEND, Decision, FlowKey, Mode, Reason, Service, Unfit
from .plain_enum import PlainEnum
from .strategy.base import Evidence


class FlowState(PlainEnum):
    """Where a flow is in its life."""

    INIT = "init"
    PROBING = "probing"
    BOUND = "bound"
    FALLBACK = "fallback"
    STREAMING = "streaming"
    CLOSED = "closed"


class FlowInput(PlainEnum):
    """What can happen to a flow."""

    PROBE = "probe"
    BIND = "bind"
    FALL_BACK = "fall back"
    STREAM = "stream"
    CLOSE = "close"


TRANSITIONS: dict[FlowState, dict[FlowInput, FlowState]] = {
    FlowState.INIT: {
        FlowInput.PROBE: FlowState.PROBING,
        FlowInput.BIND: FlowState.BOUND,
        FlowInput.FALL_BACK: FlowState.FALLBACK,
    },
    FlowState.PROBING: {
        FlowInput.BIND: FlowState.BOUND,
        FlowInput.FALL_BACK: FlowState.FALLBACK,
        FlowInput.CLOSE: FlowState.CLOSED,
    },
    FlowState.BOUND: {
        FlowInput.STREAM: FlowState.STREAMING,
        FlowInput.CLOSE: FlowState.CLOSED,
    },
    FlowState.FALLBACK: {
        FlowInput.STREAM: FlowState.STREAMING,
        FlowInput.CLOSE: FlowState.CLOSED,
    },
    FlowState.STREAMING: {
        FlowInput.CLOSE: FlowState.CLOSED,
    },
    FlowState.CLOSED: {},
}

# Which input the end of a decision is, by the mode that it ended in.
_DECIDED_AS = {
    Mode.RACE: FlowInput.BIND,
    Mode.SNAPSHOT: FlowInput.BIND,
    Mode.INLINE: FlowInput.BIND,
    Mode.STICKY: FlowInput.BIND,
    Mode.ROUND_ROBIN: FlowInput.BIND,
    Mode.FALLBACK: FlowInput.FALL_BACK,
    Mode.HASH: FlowInput.FALL_BACK,
}


class IllegalTransition(Exception):
    """An input that the table does not have for this state; the state is unchanged.

    It is a mistake of the caller, never of a client or a backend.
    """

    def __init__(self, state: FlowState, given: FlowInput) -> None:
        self.state = state
        self.given = given
        legal = ", ".join(each.value for each in TRANSITIONS[state]) or "nothing: it is final"
        super().__init__(f"flow in state {state.value} cannot {given.value}; it accepts {legal}")


def next_state(state: FlowState, given: FlowInput) -> FlowState:
    """The state after ``given``. Raise IllegalTransition if the table has none."""
    after = TRANSITIONS[state].get(given)
    if after is None:
        raise IllegalTransition(state, given)
    return after


def state_of(decision: Decision) -> FlowState:
    """The state of a flow whose decision is no longer open, from its kept record."""
    if decision.closed_ns or decision.mode is Mode.REFUSED:
        return FlowState.CLOSED
    if decision.established_ns:
        return FlowState.STREAMING
    if _DECIDED_AS[decision.mode] is FlowInput.BIND:
        return FlowState.BOUND
    return FlowState.FALLBACK


class Flow:
    """A flow while its decision is open. ``mode`` None: nothing has been chosen for it yet."""

    __slots__ = (
        "backend",
        "decided_ns",
        "evidence",
        "excluded",
        "first",
        "held",
        "mode",
        "reason",
        "service",
        "state",
        "take_over",
        "taken",
        "tried",
        "unfit",
    )

    def __init__(
        self,
        first: FirstPacket,
        service: Service,
        evidence: Evidence,
        unfit: tuple[tuple[int, Unfit], ...] = (),
        excluded: frozenset[int] = frozenset(),
    ) -> None:
        self.first = first
        self.service = service
        self.evidence = evidence
        self.state = FlowState.INIT
        self.backend = NO_BACKEND
        self.mode: Mode | None = None
        self.reason = Reason.NONE
        self.decided_ns = 0
        self.tried: tuple[int, ...] = ()
        """Backends whose reply tuple belongs to another flow."""
        self.unfit = unfit
        self.excluded = excluded
        """Unfit backends that are passed over as long as there is another one."""
        self.take_over = False
        """Nobody's tuple is free: those of flows that are over may be had."""
        self.held: list[Datagram | FirstPacket] = []
        """Datagrams behind the first, see :mod:`.held`."""
        self.taken: list[tuple[int, Mode, Reason]] = []
        """The choices that met them, in order; while taking over, those that are left."""

    @property
    def itself(self) -> frozenset[int]:
        """Backends that are the client: never chosen."""
        return frozenset(each for each, why in self.unfit if why is Unfit.CLIENT_ITSELF)

    def apply(self, given: FlowInput) -> None:
        """Move on. Raise IllegalTransition, and stay, if the table does not allow it."""
        self.state = next_state(self.state, given)

    def choose(self, backend: int, mode: Mode, reason: Reason, now_ns: int) -> None:
        """Note a choice. It is not binding before the kernel has it."""
        self.backend = backend
        self.mode = mode
        self.reason = reason
        self.decided_ns = now_ns

    def meet_taken_tuple(self) -> None:
        """The choice cannot be had: its reply tuple belongs to another flow."""
        assert self.mode is not None
        self.tried += (self.backend,)
        if not self.take_over:
            self.taken.append((self.backend, self.mode, self.reason))

    def settle(self) -> Decision:
        """The choice is final: move to the state it leads to and return its record.

        Raise IllegalTransition if nothing has been chosen, or the flow is settled already.
        """
        mode = self.mode
        if mode is None:
            raise IllegalTransition(self.state, FlowInput.BIND)
        if mode is not Mode.REFUSED:
            self.apply(_DECIDED_AS[mode])
        else:
            if self.state is FlowState.INIT:
                self.apply(FlowInput.FALL_BACK)
            self.apply(FlowInput.CLOSE)
        first = self.first
        return Decision(
            first.key,
            first.service,
            self.backend,
            mode,
            self.reason,
            first.seen_ns,
            self.decided_ns,
            probes=self.evidence.records,
            unfit=self.unfit,
            compared=self.evidence.compared,
        )


class DecisionLog:
    """The newest decisions, in the order in which they became final."""

    __slots__ = ("_by_client", "_kept", "_limit", "_newest")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: deque[Decision] = deque()
        self._newest: dict[FlowKey, Decision] = {}
        self._by_client: dict[tuple[int, int, int], Decision] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Decision]:
        """Newest first."""
        return reversed(self._kept)

    def limit(self, limit: int) -> None:
        """Keep so many from now on."""
        self._limit = limit
        self._forget_oldest()

    def add(self, decision: Decision) -> None:
        """Keep a decision; the oldest one goes if there are too many."""
        self._kept.append(decision)
        key = decision.key
        self._newest[key] = decision
        self._by_client[key.client_addr, key.client_port, key.proto] = decision
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._kept) > self._limit:
            oldest = self._kept.popleft()
            if self._newest[oldest.key] is oldest:
                del self._newest[oldest.key]
            client = oldest.key.client_addr, oldest.key.client_port, oldest.key.proto
            if self._by_client[client] is oldest:
                del self._by_client[client]

    def newest(self, key: FlowKey) -> Decision | None:
        """The newest decision of a five-tuple."""
        return self._newest.get(key)

    def newest_of_client(self, addr: int, port: int, proto: int = 0) -> Decision | None:
        """The newest decision of a client's address and port, whatever the service.

        ``proto`` 0: and whatever the protocol.
        """
        protocols = (proto,) if proto else PROTOCOLS.values()
        found = [self._by_client.get((addr, port, each)) for each in protocols]
        known = [decision for decision in found if decision is not None]
        return max(known, key=lambda decision: decision.decided_ns, default=None)
