# SPDX-License-Identifier: Apache-2.0
"""A pure model of what a service says of a new flow: whose port it is, who may, and how many.

Ports, then source rules, then the limit, then the source's own backend, then the degrade chain: the
daemon is silent here, so that XDP decides. Of a TCP flow just its handshake and its end are known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

NET_BITS, HOST_BITS = 24, 32


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of the one address; ``service`` None: they are left out of what comes later."""

    low: int
    high: int
    service: int | None


@dataclass(slots=True)
class Terms:
    """What a service says of new flows. ``rules``: by prefix (bits, number), whether denied."""

    limit: int = 0
    affinity_s: int = 0
    rules: dict[tuple[int, int], bool] = field(default_factory=dict)
    allowed_only: bool = False

    @property
    def has_rules(self) -> bool:
        """Whether sources are looked at."""
        return bool(self.rules) or self.allowed_only

    def denies(self, addr: int) -> bool:
        """The longest prefix that holds the address has the word."""
        for bits in (HOST_BITS, NET_BITS):
            denied = self.rules.get((bits, addr >> HOST_BITS - bits))
            if denied is not None:
                return denied
        return self.allowed_only


@dataclass(slots=True)
class Flow:
    """A client's flow: its backend's name, and how far it has come."""

    service: int
    backend: str
    isn: int
    state: str = "pending"  # then "established", "closing"


@dataclass(frozen=True, slots=True)
class Outcome:
    """ "backend", "drop", "rst" or "pass", and what is counted."""

    what: str
    counters: Counter[str]
    backend: str = ""


@dataclass(slots=True)
class AdmissionModel:
    """The services of one address. Clients are (address, port)."""

    ports: tuple[Ports, ...]
    """The first that holds a port has it."""
    terms: dict[int, Terms]
    chain: dict[int, tuple[str, str]]
    """By service: fallback and the hash's choice."""
    up: set[str]
    flows: dict[tuple[tuple[int, int], int], Flow] = field(default_factory=dict)
    """By client and port."""
    notes: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)
    """Where a source's flows go, by service and address; how old that is."""
    opened: Counter[int] = field(default_factory=Counter)
    closed: Counter[int] = field(default_factory=Counter)

    def service_of(self, port: int) -> int | None:
        """Whose port it is."""
        return next((p.service for p in self.ports if p.low <= port <= p.high), None)

    def pass_time(self, seconds: float) -> None:
        """Notes grow older."""
        self.notes = {at: (name, age + seconds) for at, (name, age) in self.notes.items()}

    def syn(self, client: tuple[int, int], port: int, isn: int) -> Outcome:
        """The first packet of a connection, or the same again."""
        counted: Counter[str] = Counter()
        flow = self.flows.get((client, port))
        if flow and flow.isn == isn:
            counted["syn_retransmit"] += 1
            return Outcome("backend", counted, flow.backend)
        if flow and flow.state != "closing":
            counted["syn_on_live_flow"] += 1
            return Outcome("backend", counted, flow.backend)
        if flow:
            counted["syn_reopened"] += 1
            self.closed[flow.service] += 1
            del self.flows[client, port]
        service = self.service_of(port)
        if service is None:
            counted["pass_not_service"] += 1
            return Outcome("pass", counted)
        terms = self.terms[service]
        if terms.denies(client[0]):
            counted["source_denied"] += 1
            return Outcome("drop", counted)
        if terms.limit and self.opened[service] - self.closed[service] >= terms.limit:
            counted["flow_limit_reached"] += 1
            return Outcome("rst", counted)
        name, counter = self._choose(service, client[0], counted)
        if not name:
            counted["refused_no_backend"] += 1
            return Outcome("rst", counted)
        counted[counter] += 1
        self.flows[client, port] = Flow(service, name, isn)
        return Outcome("backend", counted, name)

    def _choose(self, service: int, addr: int, counted: Counter[str]) -> tuple[str, str]:
        terms = self.terms[service]
        name, age = self.notes.get((service, addr), ("", 0))
        if terms.affinity_s and name in self.up and age <= terms.affinity_s:
            return name, "affinity_used"
        counted["heartbeat_stale"] += 1
        counters = "decided_fallback", "decided_hash"
        return next(
            ((each, how) for each, how in zip(self.chain[service], counters, strict=True)
             if each in self.up), ("", ""),
        )  # fmt: skip

    def completes(self, client: tuple[int, int], port: int) -> Outcome:
        """The client's ACK to the SYN-ACK that it has seen."""
        flow, counted = self.flows[client, port], Counter[str]()
        if flow.state == "pending":
            flow.state = "established"
            self.opened[flow.service] += 1
            counted["promoted"] += 1
            if self.terms[flow.service].affinity_s:
                self.notes[flow.service, client[0]] = flow.backend, 0
        return Outcome("backend", counted, flow.backend)

    def resets(self, client: tuple[int, int], port: int) -> Outcome:
        """The client's own RST: the flow is over, and open until its entries go."""
        flow = self.flows[client, port]
        flow.state = "closing"
        return Outcome("backend", Counter(), flow.backend)

    def orphan(self, client: tuple[int, int], port: int) -> Outcome:
        """A segment of a flow that nobody knows."""
        service, counted = self.service_of(port), Counter[str]()
        if service is None:
            counted["pass_not_service"] += 1
            return Outcome("pass", counted)
        if self.terms[service].denies(client[0]):
            counted["source_denied"] += 1
            return Outcome("drop", counted)
        counted["orphan_reset"] += 1
        return Outcome("rst", counted)
