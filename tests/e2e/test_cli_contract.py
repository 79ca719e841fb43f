# SPDX-License-Identifier: Apache-2.0
"""What an operator sees: keys of --json, tables, filters, time line, exit codes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import connect, who
from tests.support.netns import wait_for
from tests.support.own_service import OwnService, config, own_service
from tests.support.router import Router, drop_privileges_argv, routed_lab
from xdp_router.adapters.control import CommandError
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec(
    (
        BackendSpec("b1"),
        BackendSpec("b2", delay_ns=5_000_000),
        BackendSpec("b3", delay_ns=20_000_000),
    ),
    client_addresses=2,
)
FLOW_KEYS = (
    *("client", "service", "protocol", "backend", "backend_address", "source_address"),
    *("state", "packets", "bytes", "reply_packets", "reply_bytes", "age_s", "idle_s", "decision"),
)
READ_COMMANDS = ["status", "services", "backends", "flows", "counters"]


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    with routed_lab(private_mounts, SPEC, config(SPEC, fallback="b2")) as started:
        yield started


@pytest.fixture(scope="module")
def own(router: Router) -> Iterator[OwnService]:
    with own_service(router) as service:
        yield service


@pytest.fixture(scope="module")
def peer(router: Router) -> Iterator[socket.socket]:
    """A connection that has carried data both ways."""
    with connect(router) as connected:
        assert who(connected) == "b1"
        yield connected


@pytest.fixture(scope="module")
def client(peer: socket.socket) -> str:
    """Its client as ADDR:PORT."""
    host, port = peer.getsockname()
    return f"{host}:{port}"


def test_status(router: Router, peer: socket.socket) -> None:
    """status --json says that packets are handled, where, how, and how much."""
    row = router.json("status")
    assert row["ready"] is True
    assert row["pid"] == router.pid
    assert (row["services"], row["backends"], row["backends_up"]) == (2, 6, 6)
    assert row["loader"] == "object"
    assert [(link["name"], link["mode"]) for link in row["interfaces"]] == [
        (name, "native") for name in router.lab.router_interfaces
    ]
    links = router.links()
    assert {link["ifindex"] for link in row["interfaces"]} == {
        link.ifindex for link in links.values()
    }
    assert {link.xdp_prog_id for link in links.values()} == {row["xdp_program_id"]}
    assert row["decisions_total"] >= 1
    assert row["fppl_us"]["count"] >= 1
    assert row["engine"]["races_won"] >= 1


def test_services(router: Router, peer: socket.socket) -> None:
    """services --json has each service as it is configured, and its number of decisions."""
    web, own = router.json("services")
    address, port = router.service
    assert web.pop("decisions") >= 1
    assert web.pop("connections") >= web.pop("open") >= 1
    assert web == {
        "name": "web",
        "address": f"{address}:{port}",
        "protocol": "tcp",
        "mode": "race",
        "forwarding": "nat",
        "gateway": None,
        "fallback": "b2",
        "deadline_ms": 1000.0,
        "backends": ["b1", "b2", "b3"],
        "max_connections": None,
        "except_ports": [],
        "affinity": "none",
        "affinity_time_s": None,
        "quic": False,
        "icmp_echo": False,
        "allow": 0,
        "deny": 0,
        "tunnel_source": "",
        "stateless": {"enabled": False, "for_s": 0.0, "why": "", "forwarded": 0},
        "flood": {
            "mode": "flood_flows",
            "obstacle": "",
            "active": False,
            "since_s": None,
            "reason": "",
        },
        "first_byte": web["first_byte"],
    }
    assert set(web["first_byte"]) == {"fppl_share", "arms", "control_arm"}
    assert web["first_byte"]["arms"]["mode"]["established"] >= 1
    assert (own["name"], own["fallback"], own["backends"]) == ("own", "", ["o1", "o2", "o3"])


def test_open_is_without_what_is_closing(router: Router, peer: socket.socket) -> None:
    """A connection that was closed is no open one, though it has its place for a while."""

    def web() -> tuple[int, int]:
        (row,) = [each for each in router.json("services") if each["name"] == "web"]
        return row["open"], row["connections"]

    with connect(router) as second:
        who(second)
        before = web()
    wait_for(lambda: web()[0] == before[0] - 1, 8, "it is not open any more")
    assert web()[1] == before[1]
    title, row, *_ = router.cli("services").stdout.splitlines()
    assert title.split()[-1] == "OPEN"
    assert row.split()[-1] == str(web()[0])


def test_backends(router: Router, peer: socket.socket) -> None:
    """backends --json has state, path, weight and what probing has shown."""
    rows = {row["name"]: row for row in router.json("backends")}
    assert set(rows) == {"b1", "b2", "b3", "o1", "o2", "o3"}
    first = rows["b1"]
    assert (first["service"], first["address"]) == ("web", "198.19.1.2:8080")
    assert (first["up"], first["reason"], first["interface"]) == (True, "", "be1")
    assert (first["next_hop_mac"], first["weight"]) == ("02:58:52:01:01:02", 1)
    assert (first["wins"] >= 1, first["answers"] >= 1) == (True, True)
    assert 0 < first["rtt_us"] < 5_000

    def measured() -> bool:
        slow = {row["name"]: row["rtt_us"] or 0 for row in router.ask("backends")}
        return slow["b2"] >= 5_000 and slow["b3"] >= 20_000

    wait_for(measured, 5, "answers that came after the race was won are measured too")


def test_flows(router: Router, client: str) -> None:
    """flows --json has the keys of the contract, with the candidates that the daemon keeps."""

    def complete() -> bool:
        (row,) = router.json("flows", "--client", client)
        candidates = row["decision"]["candidates"]
        return len([each for each in candidates if each["rtt_us"]]) == 3

    wait_for(complete, 5, "three measured candidates")
    (row,) = router.json("flows", "--client", client)
    assert set(row) >= set(FLOW_KEYS)
    assert (row["service"], row["protocol"], row["state"]) == ("web", "tcp", "established")
    assert (row["backend"], row["backend_address"]) == ("b1", "198.19.1.2:8080")
    assert row["packets"] >= 3
    assert row["reply_packets"] >= 2
    assert row["bytes"] > 0
    assert row["reply_bytes"] > 0
    assert row["age_s"] >= row["idle_s"] >= 0
    decision = row["decision"]
    assert (decision["mode"], decision["reason"]) == ("race", "race_won")
    assert decision["latency_us"] > 0
    assert [each["backend"] for each in decision["candidates"]] == ["b1", "b2", "b3"]
    rtts = [each["rtt_us"] for each in decision["candidates"]]
    assert rtts == sorted(rtts)


def test_decisions_of_the_control_socket(router: Router, client: str) -> None:
    """decisions: the candidates of each client that is known, nothing about others."""
    found = router.ask("decisions", clients=[client, "198.18.0.99:1"])
    assert set(found) == {client}
    assert {each["backend"] for each in found[client]} == {"b1", "b2", "b3"}
    assert {tuple(each) for each in found[client]} == {("backend", "rtt_us", "answer", "tied")}
    for wrong in ("no list", ["no address"], ["198.18.0.2:1"] * 2001):
        with pytest.raises(CommandError):
            router.ask("decisions", clients=wrong)


def test_flow_filters(router: Router, own: OwnService, peer: socket.socket, client: str) -> None:
    """Each filter of flows keeps what it names; together they narrow."""
    other = router.lab.addresses.clients[1]
    with connect(router, source=(other, 0)) as second, own.connection() as (third, _):
        who(second)
        clients = {
            name: "{}:{}".format(*each.getsockname())
            for name, each in (("second", second), ("third", third))
        }

        def found(*args: str) -> set[str]:
            rows = router.json("flows", "--state", "established", *args)
            return {row["client"] for row in rows}

        everyone = {client, *clients.values()}
        assert found() == everyone
        assert found("--client", client) == {client}
        assert found("--client", other) == {clients["second"]}
        assert found("--service", "own") == {clients["third"]}
        assert found("--backend", "b1") == {client, clients["second"]}
        assert found("--backend", "198.19.1.2") == everyone
        assert found("--backend", "198.19.1.2:9000") == {clients["third"]}
        assert found("--backend", "b1", "--client", other) == {clients["second"]}
        assert found("--service", "nothing") == set()
        limited = router.cli("flows", "--limit", "1", "--json")
        assert len(json.loads(limited.stdout)) == 1
        assert "more than 1 flows" in limited.stderr


def test_explain_is_an_ordered_time_line(router: Router, client: str) -> None:
    """explain tells the first packet's story in order, from seen to first data."""

    def complete() -> bool:
        explained = router.json("explain", client)
        return len([step for step in explained["timeline"] if step["what"] == "answer"]) == 3

    wait_for(complete, 5, "three answers")
    explained = router.json("explain", client)
    assert (explained["client"], explained["service"], explained["protocol"]) == (
        *(client, "web", "tcp"),
    )
    assert (explained["backend"], explained["mode"]) == ("b1", "race")
    timeline = explained["timeline"]
    times = [step["t_us"] for step in timeline]
    assert times == sorted(times)
    assert times[0] == 0
    what = [step["what"] for step in timeline]
    assert what[0] == "seen"
    assert what.count("probe") == 3

    def first(name: str, detail: str = "") -> int:
        return next(
            index
            for index, step in enumerate(timeline)
            if step["what"] == name and detail in step["detail"]
        )

    story = [
        *(first("seen"), first("probe", "b1"), first("answer", "b1"), first("decided")),
        *(first("re-injected"), first("SYN-ACK"), first("established")),
        *(first("first data", "client"), first("first data", "b1")),
    ]
    assert story == sorted(story), what
    # Late answers are told as well, after the decision that they could not change.
    assert first("decided") < first("answer", "b3")
    text = router.cli("explain", client).stdout
    assert all(word in text for word in ("seen", "probe", "decided", "re-injected", "first data"))


def test_counters(router: Router, peer: socket.socket) -> None:
    """counters --json has every counter of the data plane, also those that are 0."""
    data = router.json("counters")
    assert data["first_packet"] >= 1
    assert data["promoted"] >= 1
    assert data["ring_full"] == 0
    assert "ring_full" in router.cli("counters", "--all").stdout


@pytest.mark.parametrize("command", READ_COMMANDS)
def test_tables_are_for_people(router: Router, peer: socket.socket, command: str) -> None:
    """Without --json each read command prints a table, exit code 0, nothing on stderr."""
    done = router.cli(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 2
    assert not done.stdout.startswith(("{", "["))


def test_exit_codes(router: Router, client: str) -> None:
    """0: done; 1: failed, with one line on stderr; 2: wrong usage."""
    assert router.cli("explain", client).returncode == 0
    unknown = router.cli("explain", "198.18.0.99:1")
    assert unknown.returncode == 1
    assert "no decision about 198.18.0.99:1 is kept" in unknown.stderr
    for wrong in (["explain", "198.18.0.2"], ["flows", "--limit", "0"], ["no-such-command"]):
        assert router.cli(*wrong).returncode == 2


@pytest.mark.parametrize("command", ["status", "flows"])
def test_ordinary_user_is_told_to_use_sudo(router: Router, command: str) -> None:
    """The control socket and the pins are root's: others get one line, and exit code 1."""
    paths = ["--control", str(router.control), "--pins", str(router.pins)]
    done = router.run(drop_privileges_argv("xdp_router.cli.main", [*paths, command]))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "sudo" in done.stderr or "as root" in done.stderr, done.stderr
