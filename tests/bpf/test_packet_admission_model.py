# SPDX-License-Identifier: Apache-2.0
"""Random services of many ports, with rules, limits and affinity: as a pure model says.

Verdict, whole frame, counters, what is open and where sources go are compared after each packet.
"""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import pytest

from tests.bpf.corpus.wide import ranged, takes_ports
from tests.bpf.corpus.world import (
    B1,
    B2,
    B3,
    CLIENT,
    IN,
    SECOND,
    WEB,
    Server,
    World,
    endpoint_of,
    from_backend,
    to_backend,
    to_client,
    to_service,
)
from tests.support.admission_model import AdmissionModel, Outcome, Ports, Terms
from tests.support.frames import ACK, PSH, RST, SYN, End, Segment, difference
from tests.support.program import DROP, PASS, REDIRECT, TX, VERDICTS
from tests.support.worlds import world_id
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Endpoint, Service, SourcePrefix

pytest_plugins = ("tests.support.worlds",)

LIVES, STEPS = 16, 40
ESTABLISHED_MAX = 3
"""The table has room for four."""

ADDRS = (CLIENT.addr, "198.18.0.3", "198.18.9.5")
NETS = tuple({End(addr, 0).number >> 8 for addr in ADDRS})
SERVERS = {"B1": B1, "B2": B2, "B3": B3} | {
    f"C{n}": Server(3 + n, End(f"198.18.{n}.3", 8090), bytes.fromhex(f"020000000c1{n}"), 1)
    for n in (1, 2, 3)
}
"""Three of each service; B1 takes the packet's port."""
OF_SERVICE = {n: [name for name, s in SERVERS.items() if s.service == n] for n in (0, 1)}
PORTS = (
    Ports(80, 80, 0), Ports(22, 22, None), Ports(8022, 8022, None), Ports(8050, 8050, 1),
    Ports(9000, 9099, None), Ports(8000, 8100, 0), Ports(0, 65535, 1),
)  # fmt: skip
"""Single ones; then ranges, the narrow ones first."""
ASKED = (80, 22, 8022, 8023, 8050, 8000, 8100, 7999, 8101, 9000, 9099, 8999, 9100, 1, 65535)
ISN, SERVER_ISN = 1_000, 5_000_000
VERDICT_OF = {"backend": REDIRECT, "drop": DROP, "rst": TX, "pass": PASS}

Client = tuple[int, int]


class Life:
    """Two services of one address, each with terms of its own."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.story: list[str] = []
        self.number = 0
        terms = {number: self._terms() for number in (0, 1)}
        chain = {n: (rng.choice(names), rng.choice(names)) for n, names in OF_SERVICE.items()}
        self.model = AdmissionModel(PORTS, terms, chain, set(SERVERS))
        self._write()

    def _terms(self) -> Terms:
        rng, rules = self.rng, {}
        for bits, numbers in ((24, NETS), (32, [End(addr, 0).number for addr in ADDRS])):
            for number in numbers:
                if rng.random() < 0.25:
                    rules[bits, number] = rng.random() < 0.5
        limit, affinity_s = rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 10))
        return Terms(limit, affinity_s, rules, rng.random() < 0.15)

    # --- the maps ---------------------------------------------------------------------------

    def _write(self) -> None:
        world = self.world
        world.touch()
        world.reset()
        world.touch()
        for name, server in SERVERS.items():
            self._write_backend(name, True)
            world.maps.backend_index.write(endpoint_of(server.end), server.id, server.service)
        takes_ports(world)
        for number in (0, 1):
            world.maps.usage.reset(number)
        found: list[tuple[int, int]] = []
        for each in PORTS:
            value = self._service(each.service)
            single = each.low == each.high
            at = endpoint_of(End(WEB.addr, each.low)) if single else ranged(each.low, each.high)
            world.maps.services.write(at, value)
            if not single:
                found.append((each.low, each.high))
        world.maps.service_ranges.replace({(world.native_addr(WEB.number), 6): found})
        world.maps.source_rules.add(self._rules(number) for number in (0, 1))
        for number, (_, name) in self.model.chain.items():
            world.change_hash((SERVERS[name].id,) * abi.HASH_SLOTS, number)
        world.limit(flags=abi.CONTROL_RANGES, heartbeat_ns=world.now_ns - SECOND,
                    heartbeat_stale_ns=1)  # fmt: skip

    def _service(self, number: int | None) -> abi.ServiceValue:
        value = self.world.service(number or 0)
        if number is None:
            return dataclasses.replace(value, backend_count=0)
        terms, change = self.model.terms[number], dict[str, Any]()
        change["flags"] = terms.has_rules * abi.SERVICE_SOURCES
        change["flags"] |= bool(terms.affinity_s) * abi.SERVICE_AFFINITY
        change["flow_limit"], change["affinity_ns"] = terms.limit, terms.affinity_s * SECOND
        change["fallback"] = SERVERS[self.model.chain[number][0]].id
        return dataclasses.replace(value, backend_count=3, **change)

    def _rules(self, number: int) -> Service:
        terms, longer = self.model.terms[number], 0 if self.world.family == 4 else 96
        sources = tuple(
            SourcePrefix(self.world.native_addr(prefix << 32 - bits | (bits < 32)) >> 32 - bits
                         << 32 - bits, bits + longer, denied)
            for (bits, prefix), denied in terms.rules.items()
        )  # fmt: skip
        at = Endpoint(self.world.native_addr(WEB.number), WEB.port)
        return Service(number, "any", at, (), sources=sources, allowed_only=terms.allowed_only)

    # --- the steps --------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens."""
        rng, model = self.rng, self.model
        pending = [at for at, flow in model.flows.items() if flow.state == "pending"]
        bound = [at for at, flow in model.flows.items() if flow.state != "pending"]
        over = [at for at, flow in model.flows.items() if flow.state == "closing"]
        what = rng.random()
        if what < 0.35 and pending and len(bound) < ESTABLISHED_MAX:
            self._handshake(*pending[-1])
        elif what < 0.5 and bound:
            client, port = rng.choice(bound)
            segment = Segment(flags=RST, seq=model.flows[client, port].isn + 1)
            self._client_sends(client, port, segment, model.resets(client, port))
        elif what < 0.65 and over:
            self._syn(*rng.choice(over), anew=True)
        elif what < 0.7 and model.flows:
            self._syn(*rng.choice(list(model.flows)), anew=False)
        elif what < 0.75:
            self._pass_time(rng.choice((4, 20)))
        elif what < 0.8:
            self._up_or_down(rng.choice(list(SERVERS)))
        elif what < 0.85:
            data = Segment(flags=PSH | ACK, seq=7, ack=8, payload=b"data")
            client, port = self._new_client(), rng.choice(ASKED)
            self._client_sends(client, port, data, model.orphan(client, port))
        else:
            self._syn(self._new_client(), rng.choice(ASKED), anew=True)

    def _new_client(self) -> Client:
        self.number += 1
        return End(self.rng.choice(ADDRS), 0).number, 40_000 + self.number

    def _syn(self, client: Client, port: int, anew: bool) -> None:
        self.number += 1
        known = self.model.flows.get((client, port))
        isn = ISN * self.number * 1000 if anew or not known else known.isn
        self._client_sends(client, port, Segment(flags=SYN, seq=isn),
                           self.model.syn(client, port, isn))  # fmt: skip

    def _handshake(self, client: Client, port: int) -> None:
        flow = self.model.flows[client, port]
        answer = Segment(flags=SYN | ACK, seq=SERVER_ISN, ack=flow.isn + 1)
        end = self._end(client)
        got = self.world.run(from_backend(answer, self._server(flow.backend, port), end), "backend")
        wanted = self.world.native(to_client(answer, End(WEB.addr, port), end))
        assert (got.verdict, got.frame, got.counters) == (REDIRECT, wanted, {}), self.story
        last = Segment(flags=ACK, seq=flow.isn + 1, ack=SERVER_ISN + 1)
        self._client_sends(client, port, last, self.model.completes(client, port))

    def _pass_time(self, seconds: int) -> None:
        self.story.append(f"{seconds} s pass")
        self.model.pass_time(seconds)
        for (service, addr), (name, age) in self.model.notes.items():
            then_ns = time.monotonic_ns() - int(age * SECOND)
            source = self.world.native_addr(addr)
            self.world.maps.affinity.write(source, service, then_ns, SERVERS[name].id)

    def _up_or_down(self, name: str) -> None:
        self.model.up ^= {name}
        up = name in self.model.up
        self.story.append(f"{name} is {'up' if up else 'down'}")
        self._write_backend(name, up)

    def _write_backend(self, name: str, up: bool) -> None:
        server = SERVERS[name]
        port = 0 if server is B1 else server.end.port
        self.world.change_server(server, flags=abi.BACKEND_UP * up, port=port)

    # --- what comes of it -------------------------------------------------------------------

    @staticmethod
    def _end(client: Client) -> End:
        return End(".".join(str(byte) for byte in client[0].to_bytes(4, "big")), client[1])

    @staticmethod
    def _server(name: str, port: int) -> Server:
        server = SERVERS[name]
        own = End(server.end.addr, port)
        return dataclasses.replace(server, end=own) if server is B1 else server

    def _client_sends(self, client: Client, port: int, segment: Segment, outcome: Outcome) -> None:
        end, service = self._end(client), End(WEB.addr, port)
        frame = to_service(segment, service, end)
        self.story.append(f"{end} > {port} {segment.flags:#x}: {outcome}")
        wanted = frame
        if outcome.what == "backend":
            wanted = to_backend(segment, self._server(outcome.backend, port), end)
        elif outcome.what == "rst":
            answer = (
                Segment(flags=RST, seq=segment.ack, window=0, ident=0)
                if segment.flags & ACK
                else Segment(flags=RST | ACK, ack=segment.seq + 1, window=0, ident=0)
            )
            wanted = answer.frame(service, end, IN.back)
        got = self.world.run(frame)
        told = "\n".join(["", *self.story])
        verdict, native = VERDICT_OF[outcome.what], self.world.native(wanted)
        assert got.verdict == verdict, f"{told}\n{VERDICTS[got.verdict]} {got.counters}"
        assert got.counters == dict(outcome.counters), f"{told}\n{got.counters}"
        assert got.frame == native, f"{told}\n{difference(got.frame, native)}"
        self._look(told)

    def _look(self, told: str) -> None:
        for number in (0, 1):
            counted = self.world.maps.usage.read(number)[:2]
            assert counted == (self.model.opened[number], self.model.closed[number]), told
            for addr in ADDRS:
                source = End(addr, 0).number
                found = self.world.maps.affinity.read(self.world.native_addr(source), number)
                note = self.model.notes.get((number, source))
                wanted = SERVERS[note[0]].id if note else NO_BACKEND
                assert (found[1] if found else NO_BACKEND) == wanted, told


@pytest.mark.parametrize("world", [("object", 4), ("object", 6)], ids=world_id, indirect=True)
def test_random_services(world: World, rng: random.Random) -> None:
    """Whatever services say of new flows, each becomes what the model says."""
    for _ in range(LIVES):
        life = Life(world, rng)
        for _ in range(STEPS):
            life.step()
