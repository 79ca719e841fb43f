# SPDX-License-Identifier: Apache-2.0
"""A network for the background prober: servers with round trips that change, on a clock of ours."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence

from tests.support.playbook import MS, US
from xdp_router.core.commands import PublishPickTable, SendProbe, SetServiceMode
from xdp_router.core.events import FirstPacket, ProbeReply, ProbeSent
from xdp_router.core.model import Backend, Endpoint, FlowKey, Mode, ProbeAnswer, Service
from xdp_router.core.probe_kinds import probed_endpoint
from xdp_router.core.score_inputs import ScoreInputs
from xdp_router.core.strategy.base import ProbeSettings, Step, Verdict
from xdp_router.core.strategy.probing import Servers, Shared
from xdp_router.core.strategy.snapshot import SnapshotStrategy

T0 = 1_000 * MS
Answer = tuple[ProbeAnswer, int] | None
"""What a server says, and how long it takes; None: nothing."""


def near(rtt_ns: int = 100 * US) -> Callable[[int], Answer]:
    """A server that always answers after so long."""
    return lambda now_ns: (ProbeAnswer.SYNACK, rtt_ns)


def backend(number: int, service: int = 0, host: int = 0, weight: int = 1) -> Backend:
    """A backend of a service, on a host of its own unless one is named."""
    at = Endpoint(0xC6130000 + (host or number), 8080)
    return Backend(number, f"b{number}", at, service, weight)


def service(*numbers: int, number: int = 0, **more: object) -> Service:
    """A service of mode snapshot with these backends."""
    own = tuple(backend(each, number) for each in numbers)
    options: dict[str, object] = {"mode": Mode.SNAPSHOT, **more}
    return Service(number, f"s{number}", Endpoint(0xC6126401, 80 + number), own, **options)  # type: ignore[arg-type]  # options are checked by what they do


class World:
    """The strategy, its servers (by host number), and the clock. ``up``: ids of usable backends."""

    def __init__(
        self,
        services: Sequence[Service],
        servers: dict[int, Callable[[int], Answer]],
        settings: ProbeSettings | None = None,
        seed: int = 1,
    ) -> None:
        self.servers = servers
        self.up = {each.id for one in services for each in one.backends}
        self.now = T0
        self.inputs = ScoreInputs()
        settings = settings or ProbeSettings(probe_rate=1_000_000, probe_burst=10_000)
        chance = random.Random(seed)
        self.shared = Shared(Servers(settings), self.inputs, chance.randrange)
        self.strategy = SnapshotStrategy(services, self.up, settings, _sequence, self.shared)
        self.backends = {each.id: each for one in services for each in one.backends}
        self.published: list[tuple[int, PublishPickTable]] = []
        self.modes: list[SetServiceMode] = []
        self.verdicts: list[tuple[int, Verdict]] = []
        self.probes: Counter[int] = Counter()
        self._wire: list[tuple[int, int, ProbeReply]] = []
        self.can_send = True

    def run(self, until_ns: int) -> None:
        """Let time pass; whatever is due happens in its order."""
        until_ns += T0
        while True:
            due = self.strategy.deadline()
            arrives = self._wire[0][0] if self._wire else None
            at = min((each for each in (due, arrives) if each is not None), default=until_ns)
            if at >= until_ns:
                break
            self.now = max(self.now, at)
            if arrives is not None and arrives <= self.now:
                reply = heapq.heappop(self._wire)[2]
                self.do(self.strategy.probe_replies((reply,), self.now))
            else:
                self.do(self.strategy.expire(self.now))
        self.now = until_ns

    def do(self, steps: Sequence[Step]) -> None:
        """Carry out what the strategy says."""
        for step in steps:
            if isinstance(step, SendProbe):
                self._send(step)
            elif isinstance(step, PublishPickTable):
                self.published.append((self.now - T0, step))
            elif isinstance(step, SetServiceMode):
                self.modes.append(step)
            else:
                self.verdicts.append((self.now - T0, step))

    def _send(self, probe: SendProbe) -> None:
        self.probes[probe.backend] += 1
        if not self.can_send:
            self.strategy.probe_sent(ProbeSent(probe.backend, probe.probe_port, probe.seq, 0), 0)
            return
        sent = ProbeSent(probe.backend, probe.probe_port, probe.seq, self.now)
        self.do(self.strategy.probe_sent(sent, self.now))
        at = probed_endpoint(self.backends[probe.backend])
        answer = self.servers[at.addr - 0xC6130000](self.now - T0)
        if answer is not None:
            kind, rtt = answer
            arrives = self.now + rtt
            reply = ProbeReply(at.addr, at.port, probe.probe_port, probe.seq, kind, arrives)
            heapq.heappush(self._wire, (arrives, len(self.probes) + self.probes.total(), reply))

    def shares(self, number: int = 0) -> dict[int, int]:
        """Slots by backend in a service's newest table."""
        table = next(step for _, step in reversed(self.published) if step.service == number)
        return dict(sorted(Counter(table.slots).items()))

    def ask(self, which: Service, port: int) -> None:
        """A first packet that XDP hands on."""
        key = FlowKey(0xC6120001, port, which.endpoint.addr, which.endpoint.port)
        first = FirstPacket(key, which.id, 2, self.now, port, 0, 7, b"syn")
        _, steps = self.strategy.admit(which, first, self.now)
        self.do(steps)

    def turn(self, number: int, up: bool) -> None:
        """A backend comes or goes."""
        (self.up.add if up else self.up.discard)(number)
        which = self.backends[number].service
        picks = next(p.service for p in self.strategy._picks.values() if p.service.id == which)
        self.strategy.backend_state(picks, number, up)


def _sequence(backend: Backend, port: int, nonce: int) -> int:
    return backend.id * 100_000_000 + nonce * 100_000 + port
