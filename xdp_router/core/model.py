# SPDX-License-Identifier: Apache-2.0
"""Values that every layer speaks about: flows, services, backends, decisions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

NO_BACKEND = 0xFFFFFFFF
"""Backend id that means "none": an unset fallback, or a refused flow."""


class Mode(enum.IntEnum):
    """How a flow's backend is, or was, chosen (``enum xr_mode``)."""

    RACE = 0
    SNAPSHOT = 1
    INLINE = 2
    FALLBACK = 3
    HASH = 4
    REFUSED = 5


class Reason(enum.IntEnum):
    """Why a flow went where it went (``enum xr_reason``)."""

    NONE = 0
    RACE_WON = 1
    RACE_JOINED = 2
    DEADLINE = 3
    ALL_REFUSED = 4
    NO_CANDIDATE = 5
    RING_FULL = 6
    BUDGET = 7
    NO_HEARTBEAT = 8
    FRAME_TOO_LONG = 9
    PROBE_BUDGET = 10
    ORPHAN = 11
    TUPLE_TAKEN = 12
    OVERLOAD = 13
    TABLE_FULL = 14
    BACKLOG = 15


class Unfit(enum.IntEnum):
    """Why a backend is unfit for one client."""

    CLIENT_ITSELF = 1
    BESIDE_CLIENT = 2


class ProbeAnswer(enum.IntEnum):
    """What came back for a probe (``enum xr_probe_answer``); LOST never came from XDP."""

    LOST = 0
    SYNACK = 1
    RST = 2
    UNREACHABLE = 3


class Forwarding(enum.IntEnum):
    """How packets of a bound flow reach the backend (``enum xr_forwarding``)."""

    NAT = 0


class Orphans(enum.IntEnum):
    """What happens to a mid-stream segment without a binding (``enum xr_orphans``)."""

    RESET = 0
    HASH = 1


class KernelHandoff(enum.Enum):
    """Whether packets are handed to the kernel where XDP cannot send them itself."""

    CHECK = "check"
    """Where the host allows it."""
    SET = "set"
    """And the sysctls that it takes are set."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address (IPv4 as a host-order integer), port and IP protocol number."""

    addr: int
    port: int
    proto: int = 6


@dataclass(frozen=True, slots=True)
class FlowKey:
    """Client-to-service five-tuple. Addresses are host-order integers."""

    client_addr: int
    client_port: int
    service_addr: int
    service_port: int
    proto: int = 6


@dataclass(frozen=True, slots=True)
class Backend:
    """One real server of a service. ``id`` indexes the ``backends`` map."""

    id: int
    name: str
    endpoint: Endpoint
    service: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Service:
    """A virtual address with its backends. ``id`` indexes ``hash_tables`` and ``tokens``."""

    id: int
    name: str
    endpoint: Endpoint
    backends: tuple[Backend, ...]
    mode: Mode = Mode.RACE
    forwarding: Forwarding = Forwarding.NAT
    fallback: int = NO_BACKEND
    deadline_ns: int = 50_000_000
    orphans: Orphans = Orphans.RESET
    event_rate: int = 50_000  # first-packet events per second that XDP may raise


@dataclass(slots=True)
class ProbeRecord:
    """One candidate's part in a race, as ``explain`` shows it."""

    backend: int
    sent_ns: int
    answer: ProbeAnswer = ProbeAnswer.LOST
    answered_ns: int = 0

    @property
    def rtt_ns(self) -> int:
        """Round-trip time; 0 while the answer or the send time is not known."""
        return self.answered_ns - self.sent_ns if self.answered_ns and self.sent_ns else 0


@dataclass(slots=True)
class Decision:
    """One flow's decision and everything needed to explain it.

    Instants are CLOCK_MONOTONIC nanoseconds; 0 means "has not happened".
    ``probes`` is shared by all flows that joined one race. ``error`` says why the kernel did
    not take the binding; empty if it did.
    """

    key: FlowKey
    service: int
    backend: int
    mode: Mode
    reason: Reason
    seen_ns: int
    decided_ns: int = 0
    reinjected_ns: int = 0
    established_ns: int = 0
    synack_us: int = 0
    first_data_us: int = 0
    fppl_ns: int = 0
    closed_ns: int = 0
    probes: list[ProbeRecord] = field(default_factory=list)
    error: str = ""
    unfit: tuple[tuple[int, Unfit], ...] = ()
    """Backends that are unfit for this client: passed over, or the last resort."""
