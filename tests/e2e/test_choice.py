# SPDX-License-Identifier: Apache-2.0
"""Which backend a new flow gets while backends are fast, slow, refusing, silent or gone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import connect, echo_intact, random_bytes, who, who_answers
from tests.support.netns import wait_for
from tests.support.own_service import OwnService, config, own_service
from tests.support.router import Router, routed_lab
from xdp_router.lab import BackendSpec, LabSpec, Namespace

pytest_plugins = ("tests.support.netns",)

MS = 1_000_000
SPEC = LabSpec(
    (
        BackendSpec("b1", delay_line=True),
        BackendSpec("b2", delay_ns=5 * MS),
        BackendSpec("b3", delay_ns=20 * MS),
    ),
    client_addresses=3,
)
# Each flow has its own race, so that each shows what the network is like now.
SETTINGS = 'coalesce_window = "0s"'


@pytest.fixture(scope="module")
def started(private_mounts: Path) -> Iterator[Router]:
    web = config(SPEC, SETTINGS, fallback="b3")
    with routed_lab(private_mounts, SPEC, web) as router:
        yield router


@pytest.fixture
def router(started: Router) -> Iterator[Router]:
    """The module's router; afterwards its backends are as they were."""
    yield started
    lab = started.lab
    for name in ("b1", "b2", "b3"):
        lab.unsilence_backend(name)
        if lab.backend_pid(name) is None:
            lab.start_backend(name)
    lab.set_delay("b1", 0)


@pytest.fixture
def own(router: Router) -> Iterator[OwnService]:
    with own_service(router) as service:
        yield service


def sockets_in(namespace: Namespace, port: int, state: str | None = None) -> list[str]:
    """Remote ends (hexadecimal) of TCP sockets at a local port, half-open ones (03) included."""
    lines = namespace.run(lambda: Path("/proc/thread-self/net/tcp").read_text()).splitlines()
    rows = [line.split() for line in lines[1:]]
    return [row[2] for row in rows if int(row[1][-4:], 16) == port and state in (None, row[3])]


def test_fast_backend_gets_nearly_all(router: Router) -> None:
    """With round trips of 0, 5 and 20 ms the fastest backend wins (nearly) every race."""
    got = Counter(who_answers(router) for _ in range(40))
    assert got["b1"] >= 36, got
    assert router.ask("status")["engine"]["decided_race"] >= 40


def test_new_flows_follow_the_delay_and_old_ones_stay(router: Router) -> None:
    """When the fast backend becomes slow, new flows go elsewhere; its old flow stays with it."""
    with connect(router) as old:
        assert who(old) == "b1"
        router.lab.set_delay("b1", 0.080)
        got = Counter(who_answers(router) for _ in range(10))
        assert got["b1"] == 0, got
        assert got["b2"] >= 8, got
        assert echo_intact(old, random_bytes(5_000))
        flow = router.flow(old.getsockname())
        assert flow is not None
        assert flow["backend"] == "b1"


def test_refusing_backend_loses_against_a_slower_one(router: Router) -> None:
    """A closed port answers first, by RST, and does not win; explain says that it refused."""
    router.lab.kill_backend("b1")
    with connect(router) as peer:
        assert who(peer) == "b2"
        host, port = peer.getsockname()

    def refused() -> bool:  # on a busy machine its RST may come behind the winner's answer
        row = router.json("explain", f"{host}:{port}")
        assert row["reason"] == "race_won"
        answers = {each["backend"]: each["answer"] for each in row["candidates"]}
        assert answers["b2"] == "synack"
        return bool(answers["b1"] == "rst")

    wait_for(refused, message="b1's RST")
    assert Counter(who_answers(router) for _ in range(10))["b1"] == 0


def test_silent_backend_loses(router: Router) -> None:
    """A host that answers nothing delays nobody, and its loss is counted."""
    before = {row["name"]: row["losses"] for row in router.json("backends")}
    router.lab.silence_backend("b1")
    begun = time.monotonic()
    got = Counter(who_answers(router) for _ in range(5))
    took = time.monotonic() - begun
    assert got["b1"] == 0, got
    assert took < 4, "5 connections waited for the deadline (1 s) of a silent host"

    def lost() -> bool:
        after = {row["name"]: row["losses"] for row in router.ask("backends")}
        return bool(after["b1"] > before["b1"])

    wait_for(lost, 5, "the silent backend's losses")


def test_refused_by_all_is_refused_at_once(router: Router) -> None:
    """When every backend refuses, connect() says ECONNREFUSED after one round trip."""
    for name in ("b1", "b2", "b3"):
        router.lab.kill_backend(name)
    took = []
    for _ in range(3):
        begun = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            connect(router)
        took.append(time.monotonic() - begun)
    assert min(took) < 0.3
    decision = router.events("decision")[-1]
    assert (decision["mode"], decision["reason"]) == ("refused", "all_refused")
    assert decision["backend"] is None
    router.lab.start_backend("b2")
    assert who_answers(router) == "b2"


def test_probes_never_reach_an_application(router: Router, own: OwnService) -> None:
    """Backends accept exactly the real connections, and no probe leaves a half-open socket."""
    before = router.counters()["probe_synack"]
    peers = [router.lab.client.connect(("198.18.100.2", 81)) for _ in range(20)]
    accepted: list[int] = []

    def all_accepted() -> bool:
        for index, server in own.accepted():
            server.close()
            accepted.append(index)
        return len(accepted) >= 20

    wait_for(all_accepted, 5, "20 accepted connections")
    wait_for(lambda: router.counters()["probe_synack"] >= before + 60, 5, "60 answered probes")
    for peer in peers:
        peer.close()
    namespaces = router.lab.backends
    wait_for(
        lambda: not any(sockets_in(each, 9000, "03") for each in namespaces), 5, "no half-open"
    )
    assert not own.accepted()
    assert len(accepted) == 20
    # Probes come from the router's own address in each backend's network: 198.19.i.1.
    remotes = [remote for each in namespaces for remote in sockets_in(each, 9000)]
    assert not [remote for remote in remotes if remote.startswith("01")], remotes


def test_every_client_address_is_served(router: Router) -> None:
    """Several clients behind the router each have their flow under their own address."""
    addresses = router.lab.addresses.clients
    for address in addresses:
        with connect(router, source=(address, 0)) as peer:
            assert who(peer) == "b1"
            assert peer.getsockname()[0] == address
            (row,) = router.json("flows", "--client", address, "--state", "established")
            assert row["client"] == f"{address}:{peer.getsockname()[1]}"
