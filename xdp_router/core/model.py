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
    STICKY = 6
    ROUND_ROBIN = 7


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
    AFFINITY = 16
    CONNECTION_ID = 17
    TIE = 18
    DATAGRAMS = 19
    STATELESS = 20
    STICKY_LOST = 21
    SNAPSHOT = 22
    SNAPSHOT_STALE = 23
    INLINE = 24
    CONTROL_ARM = 25


class Unfit(enum.IntEnum):
    """Why a backend is unfit for one client."""

    CLIENT_ITSELF = 1
    BESIDE_CLIENT = 2


class ProbeAnswer(enum.IntEnum):
    """What came back for a probe (``enum xr_probe_answer``).

    LOST never came from XDP, nor do CONNECTED and HTTP, which are the kernel's connections. STUN
    and UNEXPECTED are what a DATAGRAM, looked at, may be.
    """

    LOST = 0
    SYNACK = 1
    RST = 2
    UNREACHABLE = 3
    ECHO = 4
    DATAGRAM = 5
    STUN = 6
    CONNECTED = 8
    HTTP = 9
    UNEXPECTED = 7
    """From the right place, but not what a live server says: it neither wins nor refuses."""


class ProbeKind(enum.Enum):
    """What backends are asked with."""

    SYN = "syn"
    ICMP = "icmp"
    STUN = "stun"
    UDP = "udp"
    CONNECT = "tcp-connect"
    HTTP = "http"


CONNECTIONS = frozenset({ProbeKind.CONNECT, ProbeKind.HTTP})
"""Kinds whose probes are connections of the kernel's, which XDP has no part in."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How a backend is probed. ``port`` 0 is the backend's own.

    ``payload`` is what a datagram of kind UDP carries, ``answer`` what its answer begins with.
    ``path``, ``host`` (empty: the probed address) and ``status``, the first and the last that is
    good, are of kind HTTP.
    """

    kind: ProbeKind = ProbeKind.SYN
    port: int = 0
    payload: bytes = b""
    answer: bytes = b""
    path: str = "/"
    host: str = ""
    status: tuple[int, int] = (200, 399)

    @property
    def name(self) -> str:
        """How the configuration calls it."""
        if not self.port:
            return self.kind.value
        return f"{'tcp' if self.kind is ProbeKind.SYN else self.kind.value}:{self.port}"


class Forwarding(enum.IntEnum):
    """How packets of a bound flow reach the backend (``enum xr_forwarding``)."""

    NAT = 0
    FULLNAT = 1
    DSR = 2
    IPIP = 3


ONE_SIDED = frozenset({Forwarding.DSR, Forwarding.IPIP})
"""Methods that leave the tuple as it is: replies go from the backend to the client directly."""


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
    """Address as a host-order integer (below 2**32: IPv4), port and IP protocol number.

    ``ranged``: a service's, of the ports from ``port`` to ``last``; from 0 on they are all.
    A backend's port may be 0: it takes the ports that its service is asked by.
    """

    addr: int
    port: int
    proto: int = 6
    ranged: bool = False
    last: int = field(default=0, compare=False)


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
    probe: Probe = Probe()
    forwarding: Forwarding = Forwarding.NAT  # that of its service
    vlan: int | None = None
    """Its frames' VLAN id, 0: they have no tag; None: frames keep what they came with."""
    scrape: Endpoint | None = None
    """Where its metrics are; None: as its service says."""


@dataclass(frozen=True, slots=True)
class SourcePrefix:
    """What a service says of the sources in a prefix of its own address family."""

    network: int
    length: int
    denied: bool


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """How much each term of a score counts; they add up to 1. See :mod:`.score`."""

    rtt: float = 0.4
    ttft: float = 0.2
    cache: float = 0.2
    queue: float = 0.2
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one metric that have these labels, whatever else they have."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read an input of a score: what ``of`` is; with ``over`` by how much ``of`` has
    grown since the last time for each one that ``over`` has."""

    of: tuple[Series, ...]
    over: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a service's backends are asked for over HTTP, for their scores."""

    inputs: tuple[tuple[str, tuple[Reading, ...]], ...]
    """By input, of the ways to read it the first one whose metrics are there."""
    preset: str = ""
    port: int = 0  # 0: the backend's own
    path: str = "/metrics"
    interval_ns: int = 1_000_000_000
    timeout_ns: int = 500_000_000


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How a service's backends are found ill and well.

    ``interval_ns``: how often each is looked at. ``rise``, ``fall``: such looks in a row.
    ``hold_ns``: how long a backend is down at least, at first; it doubles up to ``hold_max_ns``.
    ``slow_start_ns``: from its return until it has its whole share; 0: at once.
    ``reset_on_death``: clients of one that has died are told by a RST.
    """

    interval_ns: int = 1_000_000_000
    rise: int = 2
    fall: int = 3
    hold_ns: int = 1_000_000_000
    hold_max_ns: int = 60_000_000_000
    slow_start_ns: int = 10_000_000_000
    reset_on_death: bool = True


@dataclass(frozen=True, slots=True)
class Signs:
    """``struct backend_signs``: how a backend's flows fare. Totals, or what has come to them.

    ``sources``: how often the source prefix of what speaks against it was another one than before,
    of which ``source`` is a hash.
    """

    answered: int = 0
    served: int = 0
    unanswered: int = 0
    refused: int = 0
    cut: int = 0
    unreachable: int = 0
    source: int = 0
    sources: int = 0


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
    quic: bool = False  # of UDP: a client that changes its port keeps its backend
    except_ports: tuple[tuple[int, int], ...] = ()  # of a ranged one: first and last, not its own
    affinity_ns: int = 0  # flows of one source go together; 0: each goes its own way
    max_connections: int = 0  # established ones; 0: no limit
    sources: tuple[SourcePrefix, ...] = ()
    allowed_only: bool = False  # who is in none of the prefixes is denied
    tunnel_source: int = 0  # ipip: of the outer header; 0: our address on the way to the backend
    tunnel_bits: int = 0  # so many of its low bits differ from flow to flow
    icmp_echo: bool = False  # pings to its address are answered
    stateless: bool = False  # over budget, flows are forwarded without an entry
    candidates: int = 0  # so many, at random, take part in a race; 0: all of them
    probe_interval_ns: int = 10_000_000  # of the snapshot's probes
    snapshot_age_ns: int = 100_000_000  # pick tables that are older are not used
    score: ScoreWeights = ScoreWeights()
    score_said: ScoreWeights | None = None  # as they are written; None: as they count
    score_age_ns: int = 10_000_000_000  # what was told of a backend holds for so long
    scrape: Scrape | None = None  # None: its backends are not asked
    control_arm: int = 0  # percent of new flows that are not decided by the mode, but ...
    control_arm_by: Mode = Mode.ROUND_ROBIN  # ... in turns, or by HASH
    health: HealthSettings | None = None  # None: nobody is ill
    listener: str = ""  # of the gateway on this host, which takes it up: it has no backends


@dataclass(slots=True)
class ProbeRecord:
    """One candidate's part in a race, as ``explain`` shows it."""

    backend: int
    sent_ns: int
    answer: ProbeAnswer = ProbeAnswer.LOST
    answered_ns: int = 0
    tied: bool = False
    """It was as fast as others when the race was decided: their weights decided."""

    @property
    def rtt_ns(self) -> int:
        """Round-trip time; 0 while the answer or the send time is not known."""
        return self.answered_ns - self.sent_ns if self.answered_ns and self.sent_ns else 0


@dataclass(frozen=True, slots=True)
class Scored:
    """One backend's part in a snapshot: what its share was made of. None: not measured."""

    backend: int
    slots: int
    score: float
    rtt_ns: int | None = None
    ttft_ns: int | None = None
    cache: float | None = None
    queue: float | None = None
    rtt_term: float | None = None
    ttft_term: float | None = None
    queue_term: float | None = None
    usage: float | None = None
    sources: tuple[tuple[str, str], ...] = ()
    """By input (names of ``Measured``), who has told it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a pick table was made of: every backend of the service that could be chosen."""

    made_ns: int
    scored: tuple[Scored, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two backends that mode ``inline`` chose from, as it knew them at that moment.

    ``wait_ns``: expected until its answer, 1 s at most; 0: nothing was known. ``open``: flows
    that it had.
    """

    backend: int
    wait_ns: int
    open: int


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
    snapshot: Snapshot | None = None
    """What it was decided by, if not by a race: the newest one that was published."""
    compared: tuple[Compared, ...] = ()
    """With mode ``inline``: the two that it was decided between, unless there was one alone."""
