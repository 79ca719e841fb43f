# SPDX-License-Identifier: Apache-2.0
"""Which services and backends there are now, and which strategy decides for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .events import ProbeReply
from .model import Backend, Endpoint, Mode, Service, Snapshot
from .probe_kinds import probed_endpoint
from .score_inputs import PUSH, ScoreInputs
from .strategy import create, require_mode
from .strategy.base import ProbeSettings, Sequencer, Step, Strategy
from .strategy.probing import Servers, Shared


@dataclass(frozen=True, slots=True)
class Departed:
    """Ids that a change has taken away."""

    services: frozenset[int]
    backends: frozenset[int]


class Roster:
    """Its dictionaries are the same ones for ever, and changed by ``apply`` alone.

    A service keeps its id over a change, and a backend its own, as ``identity`` has it.
    """

    def __init__(
        self, up: AbstractSet[int], sequence: Sequencer, shared: Shared | None = None
    ) -> None:
        """``up``: the ids of the usable backends, which strategies go on looking at.

        ``shared`` None: with limits by default, nothing told, no chance.
        """
        self._up = up
        self._sequence = sequence
        self.shared = shared if shared is not None else Shared(Servers(ProbeSettings()))
        self._by_mode: dict[Mode, Strategy] = {}
        self.services: dict[int, Service] = {}
        self.service_of: dict[int, Service] = {}  # by backend
        self.strategies: dict[int, Strategy] = {}  # by service
        self._probed_at: dict[int, tuple[int, int, int]] = {}  # by backend
        self.all_strategies: list[Strategy] = []
        self.by_probed: dict[tuple[int, int, int], tuple[Strategy, ...]] = {}
        """Who probes an endpoint, or may still wait for its answers: mostly one."""

    @property
    def open_races(self) -> int:
        """Races that flows wait for."""
        return sum(strategy.open_races for strategy in self.all_strategies)

    def add_counters(self, totals: dict[str, int]) -> dict[str, int]:
        """``totals`` with those of all strategies added."""
        for strategy in self.all_strategies:
            for name, value in strategy.counters.items():
                totals[name] = totals.get(name, 0) + value
        return totals

    def deadline(self) -> int | None:
        """The next instant at which some strategy has something to do."""
        instants = [strategy.deadline() for strategy in self.all_strategies]
        return min((instant for instant in instants if instant is not None), default=None)

    def departing(self, services: Iterable[Service]) -> Departed:
        """What ``apply`` would take away. Raise ValueError if a mode is not available."""
        services = tuple(services)
        for mode in {service.mode for service in services}:
            require_mode(mode)
        backends = {backend.id for service in services for backend in service.backends}
        return Departed(
            frozenset(self.services.keys() - {service.id for service in services}),
            frozenset(self.service_of.keys() - backends),
        )

    def apply(self, services: Iterable[Service], settings: ProbeSettings) -> list[Step]:
        """Have these and no others from now on. Raise ValueError, and change nothing, if a mode is
        not available.

        Backends that depart are out of ``up`` already. Nobody waits for an answer of one that
        departs or is probed otherwise: its flows wait for the others' answers. What comes of the
        change for flows that wait for nothing any more is returned.
        """
        services = tuple(services)
        by_mode: dict[Mode, list[Service]] = {}
        for service in services:
            by_mode.setdefault(service.mode, []).append(service)
        made = {
            mode: create(mode, members, self._up, settings, self._sequence, self.shared)
            for mode, members in by_mode.items()
            if mode not in self._by_mode
        }
        self._let_go(services)
        steps: list[Step] = []
        for mode, strategy in self._by_mode.items():
            steps += strategy.apply(by_mode.get(mode, ()), settings)
        self._by_mode.update(made)
        self.all_strategies.extend(made.values())
        waited = {at: found for at, found in self.by_probed.items() if self._is_waited_for(at)}
        for known in (self.services, self.service_of, self.strategies, self.by_probed):
            known.clear()
        self._probed_at.clear()
        self.by_probed.update(waited)
        for mode, members in by_mode.items():
            for service in members:
                self._enter(service, self._by_mode[mode])
        self.shared.servers.change(settings, self.by_probed)
        return steps

    def _is_waited_for(self, at: tuple[int, int, int]) -> bool:
        addr, port, proto = at
        server = self.shared.servers.find(Endpoint(addr, port, proto))
        return server is not None and bool(server.ports.outstanding)

    def _enter(self, service: Service, strategy: Strategy) -> None:
        self.services[service.id] = service
        self.strategies[service.id] = strategy
        for backend in service.backends:
            self.service_of[backend.id] = service
            endpoint = probed_endpoint(backend)
            at = self._probed_at[backend.id] = endpoint.addr, endpoint.port, endpoint.proto
            found = self.by_probed.get(at, ())
            if strategy not in found:
                self.by_probed[at] = (*found, strategy)

    def backend_state(self, service: Service, backend: int, up: bool) -> None:
        """A backend of the service may be chosen, or may not: whoever probes it gets to know. A
        race that began before the service had its mode may still wait for it."""
        whose = self.strategies[service.id]
        whose.backend_state(service, backend, up)
        for strategy in self.by_probed.get(self._probed_at[backend], ()):
            if strategy is not whose:
                strategy.backend_state(service, backend, up)

    # Modes, and what they go by

    def mode_of(self, service: int) -> Mode:
        """A service's mode. Raise KeyError if there is no such service."""
        return self.services[service].mode

    def snapshot(self, service: int) -> Snapshot | None:
        """What the service's newest pick table was made of; None: its mode has none."""
        strategy = self.strategies.get(service)
        return None if strategy is None else strategy.snapshot(service)

    @property
    def inputs(self) -> ScoreInputs:
        """What was told of backends, for their scores."""
        return self.shared.inputs

    def tell(
        self, backend: Backend, values: Mapping[str, float], now_ns: int, source: str = PUSH
    ) -> None:
        """Take in what somebody says of a backend, for its score.

        Raise ValueError for what is no input.
        """
        self.inputs.tell(backend.id, values, now_ns, source)
        self.strategies[backend.service].told(backend.service)

    def share_out(
        self, answers: Sequence[ProbeReply]
    ) -> tuple[dict[Strategy, list[ProbeReply]], int]:
        """Whose each answer is, and how many come from where nobody asks."""
        out: dict[Strategy, list[ProbeReply]] = {}
        unknown = 0
        for answer in answers:
            found = self.by_probed.get((answer.backend_addr, answer.backend_port, answer.proto))
            if found is None:
                unknown += 1
                continue
            whose = found[0]
            if len(found) > 1:
                whose = next((each for each in found if each.awaits(answer)), whose)
            out.setdefault(whose, []).append(answer)
        return out, unknown

    def _let_go(self, services: Iterable[Service]) -> None:
        """Nobody waits any more for what would be answered to somebody else."""
        after = {service.id: service for service in services}
        # Those that are the very same are not looked at: there may be many.
        changed = [each for each in self.services.values() if after.get(each.id) is not each]
        stays = {
            (backend.id, backend.endpoint, backend.probe)
            for service in (after[each.id] for each in changed if each.id in after)
            for backend in service.backends
        }
        for service in changed:
            for backend in service.backends:
                as_before = (backend.id, backend.endpoint, backend.probe)
                if as_before in stays:
                    continue
                at = probed_endpoint(backend)
                # A race that began before the service had its mode may still wait there.
                for strategy in self.by_probed[at.addr, at.port, at.proto]:
                    strategy.backend_state(service, backend.id, False)
                self.inputs.forget(backend.id)
