# SPDX-License-Identifier: Apache-2.0
"""An engine that looks at the health of its backends, with a world that answers its probes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tests.support.cast import BACKENDS, DEFAULTS, T0, first, sequence, service
from tests.support.playbook import MS
from xdp_router.core.commands import (
    Command,
    EndFlows,
    FindReplies,
    HealthNews,
    LogHealth,
    SendProbe,
    SetBackendDead,
    WriteBinding,
)
from xdp_router.core.engine import Engine
from xdp_router.core.events import (
    BackendState,
    BindingWritten,
    Event,
    FlowsEnded,
    FlowSigns,
    ProbeReply,
    ProbeSent,
    RepliesFound,
)
from xdp_router.core.model import (
    NO_BACKEND,
    HealthSettings,
    ProbeAnswer,
    Service,
    Signs,
)
from xdp_router.core.probe_kinds import probed_endpoint
from xdp_router.core.selection import build_table

S = 1000 * MS
SETTINGS = HealthSettings()
"""A look each second, three bad ones, two good ones, held for a second."""


class HealthWorld:
    """Runs an engine in steps of 10 ms. ``answers``: what each backend's probes get; None: nothing.

    ``heard``: backends whose flows say something still. ``draw`` is none: no jitter, the first of
    all that there are. ``begin``: all backends are up at once.
    """

    def __init__(
        self,
        services: Iterable[Service] | None = None,
        health: HealthSettings | None = SETTINGS,
        draw: Any = None,
        begin: bool = True,
        **change: Any,
    ) -> None:
        made = services if services is not None else [service(len(BACKENDS))]
        made = [dataclasses.replace(each, health=health, **change) for each in made]
        self.backends = {each.id: each for one in made for each in one.backends}
        self.engine = Engine(made, DEFAULTS, sequence, build_table, draw or _middle)
        self.services = made
        self.now_ns = T0
        self.answers: dict[int, ProbeAnswer | None] = dict.fromkeys(
            self.backends, ProbeAnswer.SYNACK
        )
        self.heard: set[int] = set()
        self.said: list[Command] = []
        self.probed: list[int] = []
        self.dead: set[int] = set()
        self.up: set[int] = set()
        for backend in self.backends if begin else ():
            self.tell(BackendState(backend, True))

    def tell(self, event: Event) -> list[Command]:
        """Give the engine an event; all that follows from it is done, and returned."""
        return self.obey(self.engine.handle(event, self.now_ns))

    def obey(self, commands: Iterable[Command]) -> list[Command]:
        """Do what it says. What that comes to is told when all of it is done."""
        done: list[Command] = []
        events: list[Event] = []
        for command in commands:
            done.append(command)
            self.said.append(command)
            if isinstance(command, SendProbe):
                events += self._probe(command)
            elif isinstance(command, WriteBinding):
                events.append(BindingWritten(command.first.key))
            elif isinstance(command, SetBackendDead):
                (self.dead.add if command.dead else self.dead.discard)(command.backend)
            elif isinstance(command, FindReplies):
                events.append(RepliesFound(command.backend, command.backend in self.heard))
            elif isinstance(command, EndFlows):
                assert command.backend in self.dead, "who is told by XDP is marked before"
                events.append(FlowsEnded(command.backend))
        for event in events:
            done += self.tell(event)
        return done

    def _probe(self, command: SendProbe) -> list[Event]:
        backend = self.backends[command.backend]
        self.probed.append(backend.id)
        port, seq = command.probe_port, command.seq
        events: list[Event] = [ProbeSent(backend.id, port, seq, self.now_ns)]
        answer = self.answers[backend.id]
        if answer is not None:
            at = probed_endpoint(backend)
            events.append(ProbeReply(at.addr, at.port, port, seq, answer, self.now_ns, at.proto))
        return events

    def run(self, span_ns: int) -> list[Command]:
        """Let time pass. Returns what was said meanwhile."""
        begin, until = len(self.said), self.now_ns + span_ns
        while self.now_ns < until:
            due = self.engine.deadline()
            if due is not None and due <= self.now_ns:
                self.obey(self.engine.expire(self.now_ns))
            self.now_ns += 10 * MS
        return self.said[begin:]

    def signs(self, backend: int, **what: int) -> None:
        """XDP has seen this of a backend's flows."""
        self.tell(FlowSigns(((backend, Signs(**what)),)))

    def choose(self, port: int) -> int:
        """Whom a new flow goes to."""
        done = self.tell(first(port, self.now_ns))
        until = self.now_ns + S
        while not (found := [each for each in done if isinstance(each, WriteBinding)]):
            assert self.now_ns < until, "nobody has decided"
            self.now_ns += 10 * MS
            done += self.obey(self.engine.expire(self.now_ns))
        return found[0].backend

    def news(self, backend: int | None = None) -> list[HealthNews]:
        """What was said of a backend's health, or of everybody's."""
        return [
            each.news
            for each in self.said
            if isinstance(each, LogHealth) and backend in (None, each.backend)
        ]

    def fall(self, backend: int, answer: ProbeAnswer | None = ProbeAnswer.RST) -> None:
        """It answers so until it is ill."""
        self.answers[backend] = answer
        before = self.news(backend).count(HealthNews.ILL)
        for _ in range(100):
            if self.news(backend).count(HealthNews.ILL) > before:
                return
            self.run(100 * MS)
        raise AssertionError("it never fell")

    @property
    def usable(self) -> frozenset[int]:
        """Who may be chosen."""
        return self.engine.up


def only(said: list[Command], *kinds: type) -> list[Command]:
    """Those that are about health."""
    return [each for each in said if isinstance(each, kinds)]


def dead(world: HealthWorld, backend: int = 1) -> None:
    """It falls silent until it is found dead."""
    world.fall(backend, None)
    world.run(10 * MS)
    assert world.dead == {backend}


def _middle(count: int) -> int:
    """No jitter: the middle of what there is."""
    return count // 2


NOBODY = NO_BACKEND
