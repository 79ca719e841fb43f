# SPDX-License-Identifier: Apache-2.0
"""What became of one request: for `explain`, the list of decisions and the access log.

A request costs a few dozen bytes of it while it runs; words are made when somebody asks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from xdp_router.core.listeners import ListenerBackend
from xdp_router.core.score import Terms
from xdp_router.gateway.chooser import Order
from xdp_router.gateway.http_head import RequestHead
from xdp_router.gateway.unreadable import method_and_path

if TYPE_CHECKING:
    from .front import World

DETAILS = ("uncached_bytes", "hedges_denied", "candidates", "timeline")
"""What an explanation has beside the row of the list."""
_US = 1e3


class Peer(Protocol):
    """A client's connection."""

    peer: str
    accepted_ns: int
    first_byte_ns: int


@dataclass(slots=True)
class LegRecord:
    """One leg. Instants in ns, 0: it did not come so far. ``tokens``: that it had sent."""

    backend: str
    started_ns: int
    reused: bool = False
    ready_ns: int = 0
    head_ns: int = 0
    token_ns: int = 0
    ended_ns: int = 0
    status: int = 0
    tokens: int = 0
    outcome: str = ""


class Record:
    """One request, or one connection of a ``tls`` listener. ``uncached``: bytes of its prompt that
    the first choice is thought to have to compute; ``streams``: its tokens come one by one;
    ``backend_id``: what the backend's answer called it, if that was something else.

    Most of it is never said of most requests: what stands here costs nothing until then.
    """

    body_ns: int = 0
    decided_ns: int = 0
    answer_ns: int = 0
    ended_ns: int = 0
    method: str = ""
    path: str = ""
    host: str = ""
    route: str = ""
    tenant: str = ""
    model: str = ""
    uncached: int = 0
    streams: bool = False
    mode: str = ""
    reason: str = ""
    backend: str = ""
    backend_id: str = ""
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    tokens: int = 0
    hedged: int = 0
    hedges_denied: int = 0
    retries: int = 0
    end: str = ""
    is_inference: bool = False
    order: Order | None = None

    def __init__(
        self,
        id: str,
        listener: str,
        client: str,
        accepted_ns: int,
        wall_s: float,
        first_byte_ns: int = 0,
        head_ns: int = 0,
    ) -> None:
        self.id = id
        self.listener = listener
        self.client = client
        self.accepted_ns = accepted_ns
        self.wall_s = wall_s
        self.first_byte_ns = first_byte_ns
        self.head_ns = head_ns
        self.legs: list[LegRecord] = []

    def line(self) -> str:
        """The access log's line."""
        return json.dumps(self.summary(), separators=(",", ":")) + "\n"

    def summary(self) -> dict[str, Any]:
        """One row of the list. Times in µs from the request's first byte."""
        start = self.first_byte_ns or self.accepted_ns
        told = {
            "event": "request",
            "time_s": round(self.wall_s, 3),
            "id": self.id,
            "listener": self.listener,
            "client": self.client,
            "method": self.method,
            "host": self.host,
            "path": self.path,
            "status": self.status,
            "route": self.route,
            "tenant": self.tenant,
            "model": self.model,
            "mode": self.mode,
            "backend": self.backend,
            "backend_id": self.backend_id,
            "reason": self.reason,
            "legs": len(self.legs),
            "hedged": self.hedged,
            "retries": self.retries,
            "head_us": since(start, self.head_ns),
            "decided_us": since(start, self.decided_ns),
            "first_byte_us": since(start, self.answer_ns),
            "total_us": since(start, self.ended_ns),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "tokens": self.tokens,
            "end": self.end,
        }
        return {key: value for key, value in told.items() if value not in ("", None)}

    def explained(self, backends: Sequence[ListenerBackend]) -> dict[str, Any]:
        """Everything: who could have had it, what each leg did when, and what came of it."""
        start = self.first_byte_ns or self.accepted_ns
        steps: list[tuple[int, str, str]] = [
            (self.accepted_ns, "accepted", f"connection of {self.client}"),
            (self.first_byte_ns, "first byte", ""),
            (self.head_ns, "head complete", f"{self.method} {self.path}".strip()),
            (self.body_ns, "body complete", f"{self.bytes_in} bytes"),
            (self.decided_ns, "decided", f"mode {self.mode}, route {self.route or 'all'}"),
        ]
        for number, leg in enumerate(self.legs):
            name = f"leg {number + 1} to {leg.backend}"
            kind = "kept connection" if leg.reused else "new connection"
            steps += [
                (leg.started_ns, "leg", f"{name}, {kind}"),
                (0 if leg.reused else leg.ready_ns, "connected", name),
                (leg.head_ns, "answer's head", f"{name}: {leg.status}"),
                (leg.token_ns, "first token", name),
                (leg.ended_ns, "leg ended", f"{name}: {leg.outcome}{_behind(leg)}"),
            ]
        steps += [
            (self.answer_ns, "first byte to the client", self.backend),
            (self.ended_ns, "end", self.end),
        ]
        return {
            **self.summary(),
            "uncached_bytes": self.uncached,
            "hedges_denied": self.hedges_denied,
            "candidates": [
                _candidate(backends[index].name, terms, in_flight, self)
                for index, terms, in_flight in self._compared()
            ],
            "timeline": [
                {"at_us": since(start, at), "what": what, "detail": detail}
                for at, what, detail in sorted(steps, key=lambda step: step[0])
                if at
            ],
        }

    def _compared(self) -> list[tuple[int, Terms, int]]:
        return [] if self.order is None else self.order.told()


def of_request(world: World, listener: str, client: Peer, head: RequestHead) -> Record:
    """Of a request whose head is there."""
    traits = head.traits
    assert traits is not None  # its reader has made them
    record = Record(
        traits.given_id or world.new_id(),
        listener,
        client.peer,
        client.accepted_ns,
        world.wall(),
        first_byte_ns=client.first_byte_ns,
        head_ns=world.clock(),
    )
    record.method, record.path, record.host = traits.method, traits.path, traits.host
    return record


def of_unread(
    world: World, listener: str, client: Peer, begun: bytes, status: int, why: str
) -> Record:
    """Of a request that is refused, and over, before its head could be read.

    ``begun``: what came of it.
    """
    record = of_connection(world, listener, client.peer, client.accepted_ns)
    record.first_byte_ns = client.first_byte_ns
    record.method, record.path = method_and_path(begun)
    record.status, record.end = status, why
    record.ended_ns = world.clock()
    return record


def of_connection(world: World, listener: str, peer: str, accepted_ns: int) -> Record:
    """Of a connection that is one decision."""
    return Record(world.new_id(), listener, peer, accepted_ns, world.wall())


def _candidate(name: str, terms: Terms, in_flight: int, record: Record) -> dict[str, Any]:
    legs = [each for each in record.legs if each.backend == name]
    token_ns = next((each.token_ns - each.started_ns for each in legs if each.token_ns), None)
    shown = {
        key: round(value, 3)
        for key, value in (
            ("score", terms.score),
            ("rtt", terms.rtt),
            ("ttft", terms.ttft),
            ("cache", terms.cache),
            ("queue", terms.queue),
            ("usage", terms.usage),
        )
        if value is not None
    }
    return {
        "backend": name,
        "in_flight": in_flight,
        "terms": shown,
        "legs": len(legs),
        "ttft_us": None if token_ns is None else round(token_ns / _US, 1),
        "outcome": legs[-1].outcome if legs else "",
    }


def _behind(leg: LegRecord) -> str:
    """How much of an answer that nobody got was there already."""
    return f"; events that it had sent: {leg.tokens}" if leg.tokens else ""


def since(start_ns: int, at_ns: int) -> float | None:
    """Microseconds from one instant to the other; None if it did not come."""
    return round((at_ns - start_ns) / _US, 1) if at_ns else None
