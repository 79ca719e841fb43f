# SPDX-License-Identifier: Apache-2.0
"""Races that take long: retransmits meanwhile, deadlines, and the degrade chain after them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.clients import connect, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab, wait_until_idle
from tests.support.segments import SYN, Capture, Injector, Segment
from xdp_router.lab import BackendSpec, Lab, LabSpec, links

pytest_plugins = ("tests.support.netns",)

MS = 1_000_000
SLOW_S = 0.3
SPEC = LabSpec(tuple(BackendSpec(name, delay_ns=300 * MS) for name in ("b1", "b2", "b3")))
# An address that nobody has: what the router answers is answered by nobody.
NOBODY = "198.18.0.77"


def deadline_config(deadline: str) -> str:
    """Races that are not shared, with ``b1`` to fall back to."""
    return calm_config(SPEC, 'coalesce_window = "0s"', deadline=deadline, fallback="b1")


@pytest.fixture(scope="module")
def impatient(private_mounts: Path) -> Iterator[Router]:
    """All backends answer after 300 ms; the deadline is 50 ms."""
    with routed_lab(private_mounts, SPEC, deadline_config("50ms")) as router:
        yield router


@pytest.fixture(scope="module")
def patient(private_mounts: Path) -> Iterator[Router]:
    """The same with a deadline of 3 s."""
    with routed_lab(private_mounts, SPEC, deadline_config("3s")) as router:
        yield router


class Arrivals:
    """SYNs of clients that arrive at each backend; probes are the router's own and not in it."""

    def __init__(self, captures: list[Capture], source: str) -> None:
        self._captures = captures
        self._source = source

    def of_port(self, port: int) -> list[list[Segment]]:
        """For each backend, the SYNs from a client port."""
        return [
            [syn for syn in capture.syns(self._source) if syn.source[1] == port]
            for capture in self._captures
        ]

    def backends(self, port: int) -> set[int]:
        """Which backends got a SYN from a client port."""
        return {index for index, syns in enumerate(self.of_port(port)) if syns}


def arrivals(lab: Lab, stack: ExitStack, source: str) -> Arrivals:
    """Begin to look at what arrives at the backends."""
    return Arrivals([stack.enter_context(Capture(each)) for each in lab.backends], source)


def syn(router: Router, port: int, isn: int) -> Segment:
    """A first packet of nobody's."""
    return Segment((NOBODY, port), router.service, SYN, isn)


def test_retransmits_during_a_race_join_its_one_decision(patient: Router) -> None:
    """SYNs that are repeated while the race runs, and after it: one event, one backend."""
    with ExitStack() as stack, Injector(patient.lab.client) as injector:
        seen = arrivals(patient.lab, stack, NOBODY)
        counted = stack.enter_context(patient.counted())
        first = syn(patient, 41_001, 1_000_000)
        for _ in range(3):
            injector.send(first)
            time.sleep(0.010)
        wait_for(lambda: seen.backends(41_001), 5, "the SYN is let through")
        injector.send(first)
        wait_for(lambda: sum(map(len, seen.of_port(41_001))) >= 2, 5, "the repeated SYN")
        assert len(seen.backends(41_001)) == 1
        assert counted("first_packet") == 1
        assert counted("syn_held_again") == 2
        assert counted("syn_retransmit") == 1
        explained = patient.json("explain", f"{NOBODY}:41001")
        # Probes that a stalled machine answers together differ by noise only.
        assert explained["reason"] in ("race_won", "tie")
        (chosen,) = seen.backends(41_001)
        assert explained["backend"] == f"b{chosen + 1}"


def test_client_that_retransmits_during_its_race_is_connected(patient: Router) -> None:
    """A race slower than the client's own retransmission timer still gives one connection."""
    for name in ("b1", "b2", "b3"):
        patient.lab.set_delay(name, 1.2)
    try:
        with ExitStack() as stack:
            seen = arrivals(patient.lab, stack, patient.lab.addresses.client)
            counted = stack.enter_context(patient.counted())
            with connect(patient, timeout=15) as peer:
                port = peer.getsockname()[1]
                for name in ("b1", "b2", "b3"):
                    patient.lab.set_delay(name, 0)
                name = who(peer)
            assert seen.backends(port) == {int(name[1:]) - 1}
            assert counted("first_packet") == 1
            assert counted("syn_held_again") >= 1
    finally:
        for name in ("b1", "b2", "b3"):
            patient.lab.set_delay(name, SLOW_S)


def test_late_answers_change_nothing(impatient: Router) -> None:
    """All answers after the deadline: one backend gets the SYN, the fallback, and it stays so."""
    with ExitStack() as stack:
        seen = arrivals(impatient.lab, stack, impatient.lab.addresses.client)
        with connect(impatient) as peer:
            assert who(peer) == "b1"
            host, port = peer.getsockname()
            wait_for(lambda: impatient.ask("status")["engine"]["races_deadline"] >= 1)
            flow = impatient.flow((host, port))
            explained = impatient.json("explain", f"{host}:{port}")
            text = impatient.cli("explain", f"{host}:{port}").stdout
        assert [len(syns) for syns in seen.of_port(port)] == [1, 0, 0]
    assert flow is not None
    assert flow["decision"]["mode"] == "fallback"
    assert flow["decision"]["reason"] == "deadline"
    assert flow["decision"]["latency_us"] >= 50_000
    assert (explained["mode"], explained["reason"]) == ("fallback", "deadline")
    assert [row["answer"] for row in explained["candidates"]] == ["lost"] * 3
    (decided,) = [step for step in explained["timeline"] if step["what"] == "decided"]
    assert decided["t_us"] >= 50_000
    assert "fallback: deadline" in text


def test_deciders_that_meet_at_the_deadline_agree(impatient: Router, rng: random.Random) -> None:
    """Answers, deadline and SYN retransmits within a millisecond: one backend gets all SYNs."""
    flows = range(42_000, 42_040)
    isns = {port: rng.getrandbits(32) for port in flows}
    # b2 answers about when the daemon gives up and the client's retransmit makes XDP decide.
    impatient.lab.set_delay("b2", 0.0495)
    try:
        with ExitStack() as stack, Injector(impatient.lab.client) as injector:
            seen = arrivals(impatient.lab, stack, NOBODY)
            counted = stack.enter_context(impatient.counted())
            for port in flows:
                begun = time.monotonic()
                injector.send(syn(impatient, port, isns[port]))
                for at in (0.0485, 0.0495, 0.0500, 0.0503, 0.0506, 0.0510, 0.0520):
                    time.sleep(max(0.0, begun + at + rng.uniform(0, 3e-4) - time.monotonic()))
                    injector.send(syn(impatient, port, isns[port]))
            wait_until_idle(impatient)
            wait_for(lambda: all(seen.backends(port) for port in flows), 5, "all let through")
            time.sleep(0.1)  # whatever a second decider let through is on the delay line
            split = {port: seen.backends(port) for port in flows if len(seen.backends(port)) > 1}
            assert not split, f"SYNs of one flow at several backends: {split}"
            assert counted("first_packet") == len(flows)
            for port in flows:
                (index,) = seen.backends(port)
                explained = impatient.ask("explain", client=f"{NOBODY}:{port}")
                assert explained["backend"] == f"b{index + 1}"
    finally:
        impatient.lab.set_delay("b2", SLOW_S)


def test_fallback_that_is_down_is_replaced_by_the_hash(impatient: Router) -> None:
    """After the deadline, with the fallback down: a backend that is up, by hash."""

    def up() -> bool:
        rows = {row["name"]: row["up"] for row in impatient.ask("backends")}
        return bool(rows["b1"])

    links.set_up(impatient.lab.router, "be1", False)
    try:
        wait_for(lambda: not up(), 5, "the fallback is down")
        table = impatient.cli("backends").stdout
        assert "b1 is down: " in table
        with connect(impatient) as peer:
            assert who(peer) in ("b2", "b3")
            flow = impatient.flow(peer.getsockname())
        assert flow is not None
        assert (flow["decision"]["mode"], flow["decision"]["reason"]) == ("hash", "deadline")
    finally:
        links.set_up(impatient.lab.router, "be1", True)
    wait_for(up, 10, "the fallback is up again")
    with connect(impatient) as peer:
        assert who(peer) == "b1"
