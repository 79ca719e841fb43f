# SPDX-License-Identifier: Apache-2.0
"""What the control socket answers, over a real engine and real maps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import cast as actors
from tests.support.cast import BACKENDS, T0, first, key, reply, sent
from tests.support.playbook import MS, US
from tests.support.small_router import SmallRouter, flow_entries, put_flow, small_router
from xdp_router.adapters.control import CommandError
from xdp_router.adapters.netlink import Path
from xdp_router.adapters.xdp_link import AttachMode
from xdp_router.core.config import RouterConfig
from xdp_router.core.engine import Engine
from xdp_router.core.events import (
    BindingWritten,
    FlowClosed,
    FlowEstablished,
    ProbeReplies,
    XdpDecided,
)
from xdp_router.core.model import NO_BACKEND, Mode, ProbeAnswer, Reason, SourcePrefix
from xdp_router.core.selection import build_table
from xdp_router.daemon.app import Router
from xdp_router.daemon.attachments import Attached
from xdp_router.daemon.event_feed import EventFeed
from xdp_router.daemon.latencies import Latencies
from xdp_router.daemon.service_watch import ServiceWatch
from xdp_router.daemon.traffic_keeper import TrafficKeeper
from xdp_router.daemon.views import Views, handlers

CLIENT = "198.18.0.1:1"
SEEN = T0 + 100 * US


def _raced(engine: Engine) -> None:
    """Client port 1 joined the race of port 9; backend 2 won, backend 1 refused."""
    engine.handle(first(9), T0)
    for number in (1, 2):
        engine.handle(sent(number, T0 + number * 10 * US), T0 + 30 * US)
    engine.handle(first(1, SEEN), SEEN)
    engine.handle(reply(1, T0 + 200 * US, ProbeAnswer.RST), T0 + 210 * US)
    engine.handle(reply(2, T0 + 420 * US), T0 + 430 * US)
    engine.handle(BindingWritten(key(1)), T0 + 450 * US)
    engine.handle(
        FlowEstablished(key(1), 2, T0 + 900 * US, synack_us=700, fppl_ns=360 * US), T0 + 910 * US
    )


class Stage:
    """A router as views see it, of real parts, and its views."""

    def __init__(self, small: SmallRouter) -> None:
        self.small = small
        self.engine = actors.engine(1, 2)
        path = Path(7, b"\2\0\0\0\0\xaa", b"\2\0\0\0\0\xbb", 0xC6120101)
        network = SimpleNamespace(
            paths={1: (None, "no ARP answer"), 2: (path, "")},
            interface_name={3: "wan0", 7: "be2"}.__getitem__,
            by_kernel={1},
        )
        self.router = SimpleNamespace(
            config=small.config,
            ready=True,
            started_s=0.0,
            engine=self.engine,
            attachments=[
                Attached("wan0", 3, AttachMode.GENERIC, ""),
                Attached("be9", 0, None, "it was deleted"),
            ],
            plane=small.plane,
            program_id=77,
            decisions=SimpleNamespace(total=5, by_service={0: 5}),
            network=network,
            handoff=SimpleNamespace(view=lambda ifindex: {"takes_xdp_frames": ifindex != 3}),
            state=small.state,
            service_watch=ServiceWatch(
                small.state.maps, small.config.services, small.config.settings
            ),
            forwarding=SimpleNamespace(off=()),
            retirement=SimpleNamespace(backends=()),
            ager=SimpleNamespace(flows=3, stateless=2, entries_of={4: 5, 6: 1}),
            executor=SimpleNamespace(counters={"reinject_failed": 2}),
            sender=SimpleNamespace(counters={"probe_sent": 4, "probe_bytes": 160}),
            scraper=SimpleNamespace(view=lambda backend, now_ns: None),
            feed=EventFeed(lambda _decision: {}),
            figures=SimpleNamespace(
                latencies=Latencies(small.config.services, small.state.maps.flows_of),
                traffic=TrafficKeeper(),
            ),
            loop=SimpleNamespace(bad_records=7, faults=8, late_max_ns=9_000_000),
            watcher=SimpleNamespace(overruns=9),
            health=SimpleNamespace(flows_ended=4),
            steering=SimpleNamespace(view=lambda service: None),
        )
        self.views = Views(cast(Router, self.router))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with small_router() as small:
        yield Stage(small)


def what(timeline: list[dict[str, Any]]) -> list[tuple[float, str]]:
    return [(line["t_us"], line["what"]) for line in timeline]


def test_every_command_is_answered_with_json(stage: Stage) -> None:
    """All handlers give what JSON can express."""
    _raced(stage.engine)
    made = handlers(cast(Router, stage.router))
    assert set(made) == {
        *("status", "services", "backends", "explain", "decisions", "events", "names")
    }
    for command, handler in made.items():
        args: Mapping[str, Any] = {"client": CLIENT, "clients": [CLIENT], "kind": "client"}
        answer = handler(args)
        if command == "decisions":
            answer = asyncio.run(answer)
        elif command in ("services", "backends", "events"):
            answer = list(answer)  # sent row by row
        assert json.loads(json.dumps(answer)) == answer


def test_status_is_one_look_at_everything(stage: Stage) -> None:
    """Readiness, interfaces with the mode they really have, sums, all counters in one place."""
    _raced(stage.engine)
    status = stage.views.status({})
    assert status["ready"] is True
    assert status["interfaces"] == [
        # as it is called now
        {"name": "wan0", "ifindex": 3, "mode": "generic", "ready": True, "reason": ""}
        | {"takes_xdp_frames": False},
        {"name": "be9", "ifindex": 0, "mode": "", "ready": False, "reason": "it was deleted"}
        | {"takes_xdp_frames": True},
    ]
    assert (status["services"], status["backends"], status["backends_up"]) == (1, 2, 2)
    assert (status["flows"], status["decisions_total"]) == (3, 5)
    assert status["flow_entries"] == {"flow_table": 5, "flow_table6": 1}
    assert (status["connections"], status["full"], status["over_budget"]) == (0, [], [])
    assert status["open_decisions"] == 1  # port 9: its binding was never answered for
    assert status["fppl_us"] == {"p50": 360.0, "p99": 360.0, "count": 1}
    assert status["engine"]["reinject_failed"] == 2
    assert status["engine"]["probe_sent"] == 4
    assert status["engine"]["decided_race"] == 1
    assert [status["engine"][name] for name in ("bad_records", "loop_faults")] == [7, 8]
    assert status["engine"]["netlink_overruns"] == 9
    assert (status["loader"], status["xdp_program_id"], status["pins"]) == ("object", 77, "")


def test_services_and_backends_tell_what_they_are(stage: Stage) -> None:
    """A backend without a path says why; one with says by where, and how it answers."""
    _raced(stage.engine)
    (service,) = stage.views.services({})
    assert service == {
        "name": "web",
        "address": "198.18.100.1:80",
        "protocol": "tcp",
        "mode": "race",
        "forwarding": "nat",
        "gateway": None,
        "fallback": "",
        "deadline_ms": 50.0,
        "backends": ["b1", "b2"],
        "decisions": 5,
        "open": 0,
        "connections": 0,
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
        "first_byte": {"fppl_share": None, "arms": {}, "control_arm": None},
    }
    lost, good = stage.views.backends({})
    assert (lost["reason"], lost["interface"], lost["rtt_us"]) == ("no ARP answer", "", None)
    assert (lost["path"], good["path"]) == ("kernel", "xdp")
    stage.router.network.by_kernel.clear()
    assert next(iter(stage.views.backends({})))["path"] == "none"
    assert (good["name"], good["service"], good["address"]) == ("b2", "web", "198.18.1.2:8080")
    assert (good["interface"], good["next_hop_mac"]) == ("be2", "02:00:00:00:00:aa")
    assert (good["rtt_us"], good["wins"], good["answers"]) == (400.0, 1, 1)


def test_explain_is_a_time_line(stage: Stage) -> None:
    """From first packet to first data, in microseconds since it was seen, in order."""
    _raced(stage.engine)
    put_flow(stage.small.maps, flow_entries(1, SEEN, seen_ns=SEEN))
    answer = stage.views.explain({"client": CLIENT})
    assert (answer["service"], answer["backend"]) == ("web", "b2")
    assert (answer["mode"], answer["reason"]) == ("race", "race_joined")
    assert answer["candidates"] == [
        {"backend": "b1", "rtt_us": 190.0, "answer": "rst", "tied": False},
        {"backend": "b2", "rtt_us": 400.0, "answer": "synack", "tied": False},
    ]
    assert what(answer["timeline"]) == [
        (-90.0, "probe"),
        (-80.0, "probe"),
        (0.0, "seen"),
        (100.0, "answer"),
        (320.0, "answer"),
        (330.0, "decided"),
        (360.0, "re-injected"),
        (700.0, "SYN-ACK"),
        (800.0, "established"),
        (1000.0, "first data"),
        (1500.0, "first data"),
    ]
    details = {line["what"]: line["detail"] for line in answer["timeline"]}
    assert details["seen"] == "first packet of web, held by XDP"
    assert details["probe"] == "SYN to b2 (race already running)"
    assert details["first data"] == "from b2"


def test_a_tie_is_explained(stage: Stage) -> None:
    """Both were as fast: the time line says that weights decided, between whom."""
    stage.engine.handle(first(1), T0)
    for number in (1, 2):
        stage.engine.handle(sent(number, T0 + number * US), T0 + 3 * US)
    answers = tuple(reply(number, T0 + 90 * US) for number in (1, 2))
    stage.engine.handle(ProbeReplies(answers), T0 + 100 * US)
    stage.engine.handle(BindingWritten(key(1)), T0 + 110 * US)
    answer = stage.views.explain({"client": CLIENT})
    assert answer["reason"] == "tie"
    assert [each["tied"] for each in answer["candidates"]] == [True, True]
    details = {line["what"]: line["detail"] for line in answer["timeline"]}
    assert details["decided"].endswith(", a tie of b1, b2 that weights decided")


def test_all_refused(stage: Stage) -> None:
    """The held packet runs through the program once more, and comes out as a RST."""
    stage.engine.handle(first(1), T0)
    for number in (1, 2):
        stage.engine.handle(sent(number, T0 + number * 10 * US), T0 + 30 * US)
        stage.engine.handle(reply(number, T0 + 200 * US, ProbeAnswer.RST), T0 + 210 * US)
    stage.engine.handle(BindingWritten(key(1)), T0 + 250 * US)
    answer = stage.views.explain({"client": CLIENT})
    assert answer["reason"] == "all_refused"
    details = {line["what"]: line["detail"] for line in answer["timeline"]}
    assert details["decided"].startswith("nobody (refused)")
    assert details["re-injected"] == "RST to the client"


def test_a_closed_flow_keeps_its_reply_time(stage: Stage) -> None:
    """When the entries are gone, what they told at the end is still known."""
    _raced(stage.engine)
    stage.engine.handle(FlowClosed(key(1), 1_400, T0 + 20 * MS), T0 + 20 * MS)
    lines = what(stage.views.explain({"client": CLIENT})["timeline"])
    assert lines[-2:] == [(1400.0, "first data"), (19_900.0, "closed")]


def test_another_flow_of_the_same_ports_lends_nothing(stage: Stage) -> None:
    """Entries in the table that belong to a later flow are not this decision's."""
    _raced(stage.engine)
    put_flow(stage.small.maps, flow_entries(1, SEEN, seen_ns=SEEN + 5 * MS))
    lines = what(stage.views.explain({"client": CLIENT})["timeline"])
    assert "first data" not in {name for _, name in lines}


def test_xdp_decided_by_itself(stage: Stage) -> None:
    """Not held, not re-injected: the time line says forwarded; refused has nobody to go to."""
    engine = stage.engine
    engine.handle(XdpDecided(key(1), 0, 1, Mode.HASH, Reason.RING_FULL, T0, T0), T0 + US)
    engine.handle(FlowEstablished(key(1), 1, T0 + 900 * US, 400, 500), T0 + MS)
    answer = stage.views.explain({"client": CLIENT})
    assert what(answer["timeline"]) == [
        (0.0, "seen"),
        (0.0, "decided"),
        (0.5, "forwarded"),
        (400.0, "SYN-ACK"),
        (900.0, "established"),
    ]
    assert answer["timeline"][0]["detail"] == "first packet of web"
    nobody = XdpDecided(key(2), 0, NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE, T0, T0)
    engine.handle(nobody, T0 + US)
    refused = stage.views.explain({"client": "198.18.0.1:2"})
    assert refused["backend"] == ""
    assert refused["timeline"][-1]["detail"].startswith("nobody (refused)")


def test_xdp_decided_on_the_retransmit_of_a_held_packet(stage: Stage) -> None:
    """The time line has the instant at which XDP decided, not when the daemon was told."""
    event = XdpDecided(key(1), 0, 1, Mode.HASH, Reason.DEADLINE, T0, T0 + 1000 * MS)
    stage.engine.handle(event, T0 + 1003 * MS)
    timeline = stage.views.explain({"client": CLIENT})["timeline"]
    assert what(timeline) == [(0.0, "seen"), (1_000_000.0, "decided")]
    assert timeline[0]["detail"] == "first packet of web, held by XDP"


def test_the_newest_decision_counts(stage: Stage) -> None:
    """A client that came back is explained by its last connection."""
    for instant, backend in ((T0, 1), (T0 + 9 * MS, 2)):
        event = XdpDecided(key(1), 0, backend, Mode.HASH, Reason.BUDGET, instant, instant)
        stage.engine.handle(event, instant)
    assert stage.views.explain({"client": CLIENT})["backend"] == "b2"


def test_the_newest_decision_counts_over_all_services(stage: Stage) -> None:
    """A client may talk to two services from one port: the later one is explained."""
    (web,) = stage.small.config.services
    own = replace(BACKENDS[0], id=3, name="b3", service=1)
    at = replace(web.endpoint, port=81)
    api = replace(web, id=1, name="api", endpoint=at, backends=(own,))
    stage.router.config = RouterConfig((web, api))
    stage.router.engine = Engine((web, api), actors.DEFAULTS, actors.sequence, build_table)
    to_api = replace(key(1), service_port=81)
    for instant, flow, service in ((T0, key(1), web), (T0 + MS, to_api, api)):
        event = XdpDecided(flow, service.id, NO_BACKEND, Mode.HASH, Reason.BUDGET, instant, instant)
        stage.router.engine.handle(event, instant)
    views = Views(cast(Router, stage.router))
    assert views.explain({"client": CLIENT})["service"] == "api"


def test_a_port_of_two_protocols(stage: Stage) -> None:
    """The one that is named is explained; without a name the newer one."""
    udp = replace(key(1), proto=17)
    for instant, flow, backend in ((T0, udp, 1), (T0 + MS, key(1), 2)):
        event = XdpDecided(flow, 0, backend, Mode.HASH, Reason.BUDGET, instant, instant)
        stage.engine.handle(event, instant)
    found = [stage.views.explain({"client": CLIENT + name}) for name in ("", "/tcp", "/udp")]
    assert [each["backend"] for each in found] == ["b2", "b2", "b1"]
    assert [each["protocol"] for each in found] == ["tcp", "tcp", "udp"]
    kept = asyncio.run(stage.views.decisions({"clients": [f"{CLIENT}/udp", "198.18.0.1:2/tcp"]}))
    assert list(kept) == [f"{CLIENT}/udp"]


def test_what_a_service_was_told_is_shown(stage: Stage) -> None:
    """Its lists by their number, its tunnels' sources as a prefix, what it answers."""
    (web,) = stage.small.config.services
    sources = (SourcePrefix(0xC6120000, 24, False), SourcePrefix(0xC6120080, 25, True))
    told = replace(web, sources=sources, affinity_ns=60 * 10**9, icmp_echo=True, quic=True)
    told = replace(told, tunnel_source=0xC612C800, tunnel_bits=8)
    stage.router.config = RouterConfig((told,))
    (row,) = Views(cast(Router, stage.router)).services({})
    assert (row["allow"], row["deny"], row["tunnel_source"]) == (1, 1, "198.18.200.0/24")
    assert (row["affinity_time_s"], row["icmp_echo"], row["quic"]) == (60.0, True, True)


@pytest.mark.parametrize(
    "client", ["198.18.0.1:2", "198.18.0.1:1/x", "", "nonsense", "198.18.0.1", "[::1]:5"]
)
def test_who_is_not_known_is_told(stage: Stage, client: str) -> None:
    """Never decided about, or not a client at all: an error for the operator."""
    with pytest.raises(CommandError):
        stage.views.explain({"client": client})


def test_candidates_of_many_clients_at_once(stage: Stage) -> None:
    """Those that are kept, by client; others are left out. The loop has its turn in between."""
    _raced(stage.engine)
    clients = [f"198.18.0.1:{port}" for port in range(1, 1001)]
    turns = 0

    async def main() -> dict[str, list[dict[str, Any]]]:
        nonlocal turns
        work = asyncio.create_task(stage.views.decisions({"clients": clients}))
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        return work.result()

    found = asyncio.run(main())
    assert set(found) == {CLIENT}
    assert [each["backend"] for each in found[CLIENT]] == ["b1", "b2"]
    assert turns > 5


@pytest.mark.parametrize("clients", [None, "all", {}, [f"198.18.0.1:{p}" for p in range(1, 2002)]])
def test_a_wrong_list_of_clients_is_refused(stage: Stage, clients: object) -> None:
    """Not a list, or too long a one."""
    with pytest.raises(CommandError, match="2000"):
        asyncio.run(stage.views.decisions({"clients": clients}))
