# SPDX-License-Identifier: Apache-2.0
"""What a reload leaves in the kernel is what a restart with the new file would have left."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.netns.test_app import Place, place, serve
from tests.support.bpf_programs import IdleLoader
from tests.support.fresh_netns import in_fresh_netns
from tests.support.netns import wait_for
from xdp_router.adapters.control import CommandError
from xdp_router.adapters.control_client import ControlClient
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.adapters.names import Names
from xdp_router.adapters.notes import Note
from xdp_router.core.config import Settings, config_from_flags, document_of_flags, parse_config
from xdp_router.core.model import Mode
from xdp_router.daemon import app
from xdp_router.daemon.app import Router
from xdp_router.daemon.attach_options import AttachOptions
from xdp_router.daemon.config_file import ConfigFile

pytest_plugins = ("tests.support.netns",)

HEAD = "[router]\nmax_flows = 1000\npending_flows = 4096\n"
# Nobody is there to answer probes: whether one was found ill already is not to be told.
WEB = """
[[service]]
health = false
name = "web"
address = "198.18.100.1:80"
fallback = "b2"
[[service.backend]]
name = "b1"
address = "198.18.1.2:8080"
[[service.backend]]
name = "b2"
address = "198.18.1.2:8081"
"""
WIDE = """
[[service]]
health = false
name = "wide"
address = "198.18.100.2:1000-2000"
except_ports = ["1100-1200"]
allow = ["198.18.0.0/16"]
deny = ["198.18.7.0/24"]
icmp_echo = true
[[service.backend]]
name = "w1"
address = "198.18.1.2"
probe = "tcp:22"
"""
LISTENER = """
[[listener]]
name = "gw"
type = "http"
address = "127.0.0.1:8443"
[[listener.backend]]
address = "198.18.1.2:8080"
"""
TAKEN_UP = """
[[service]]
name = "up"
address = "198.18.100.3:1000-2000"
except_ports = ["1100-1200"]
handler = "gateway"
listener = "gw"
"""
AS_TAKEN_UP = TAKEN_UP.replace("100.3:1000-2000", "100.1:80").replace("except", "# except")
BEFORE = HEAD + WEB
CHANGES = {
    "keys of all kinds": HEAD
    + "event_rate = 77\nicmp_rate = 5\nflow_idle = '9s'\nevent_burst = 9\n"
    + WEB.replace('b1"\n', 'first"\nweight = 5\nvlan = 7\nprobe = "tcp:99"\n').replace(
        "fallback", 'deadline = "9ms"\naffinity = "source"\norphans = "hash"\nfallback'
    ),
    "stateless": HEAD + WEB.replace("fallback", "stateless = true\nfallback"),
    "a backend more": HEAD + WEB + "[[service.backend]]\nname = 'b3'\naddress = '198.18.1.9:1'\n",
    "a backend less": HEAD + WEB[: WEB.rindex("[[")].replace('fallback = "b2"', ""),
    "another backend": HEAD + WEB.replace(":8081", ":9"),
    "a service more": HEAD + WEB + WIDE,
    "another service": HEAD + WIDE,
    "a shared backend": HEAD + WEB + WIDE.replace("198.18.1.2", "198.18.1.2:8080"),
    "fullnat": HEAD + WEB.replace("fallback", 'forwarding = "fullnat"\nfallback'),
    "dsr": HEAD
    + WEB.replace("fallback", 'forwarding = "dsr"\nfallback')
    .replace(":8080", ":80")
    .replace("1.2:8081", "1.3:80"),
    "affinity": HEAD + WEB.replace("fallback", 'affinity = "source"\nfallback'),
    "a probe": HEAD + WEB.replace('b1"\n', 'b1"\nprobe = "tcp:99"\n'),
    "snapshot": HEAD
    + WEB.replace("fallback", 'mode = "snapshot"\nsnapshot_age = "300ms"\nfallback'),
    "a control arm": HEAD + WEB.replace("fallback", "control_arm = 20\nfallback"),
    "a service more, of a mode": HEAD + WEB + WIDE.replace("icmp", 'mode = "snapshot"\nicmp'),
    "a mode": HEAD + WEB.replace("fallback", 'mode = "inline"\nsnapshot_age = "3s"\nfallback'),
    "a service more, of the gateway": HEAD + WEB + TAKEN_UP + LISTENER,
    "the same service, of the gateway": HEAD + WIDE + AS_TAKEN_UP + LISTENER,
    "a tag": HEAD + WEB.replace('b1"\n', 'b1"\nvlan = 7\n'),
}
FLOW = bytes([2, 0, 18, 198]) + bytes(12)


@pytest.fixture(autouse=True)
def idle_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No packet is sent here: what is in the maps does not hang on which program reads it."""
    monkeypatch.setattr(app, "make_loader", lambda _name: IdleLoader())


def router(where: Place, text: str, *, persist: bool = False) -> Router:
    """One that is configured by a file."""
    path = where.control.parent.parent / "router.toml"
    path.write_text(text)
    source = ConfigFile(path)
    options = AttachOptions(
        ("cl", "be"),
        None,
        "object",
        False,
        where.control,
        where.pins,
        persist=persist,
        source=source,
    )
    return Router(source.load(), options)


def ask(where: Place, command: str, **args: object) -> Any:
    with ControlClient(where.control) as client:
        return client.call(command, **args)


def plant_flow(running: Router, backend: int) -> None:
    """An established flow of that backend."""
    entry = time.monotonic_ns().to_bytes(8, "little") + bytes(48)
    entry += backend.to_bytes(4, "little") + bytes(68)
    running.state.maps.flow_table.insert_noexist(FLOW, entry)


def begin(where: Place, running: Router) -> None:
    """What both ways begin with: b1 has a flow, and b2 drains."""
    plant_flow(running, running.config.services[0].backends[0].id)
    ask(where, "drain", backend="b2")


def kernel_state(running: Router) -> dict[str, Any]:
    """All that was written, but for what tells the daemons apart."""
    maps = running.state.maps
    services = {}
    for endpoint, value in maps.services.items():
        table = maps.hash_tables.read(value.id, value.hash_active)
        services[endpoint] = (replace(value, hash_active=0), table if value.backend_count else ())
    control = replace(
        maps.control.read(),
        heartbeat_ns=0,
        resumed_ns=0,
        generation=0,
        probe_key=(0, 0),
        reinject_mark=0,
    )
    return {
        "services": services,
        "backends": dict(maps.backends.items()),
        "backend_index": dict(maps.backend_index.items()),
        "probe_index": maps.probe_index.items(),
        "names": Names(running.plane.maps["names"]).read(),
        "service_ranges": maps.service_ranges.items(),
        "source_rules": maps.source_rules.items(),
        "echo": maps.services.echo_addresses(),
        "taken up": maps.services.taken_up(),
        "local routes": running.steering.notes.read(Note.LOCAL_ROUTES),
        "interfaces": dict(maps.interfaces.items()),
        "picks": {
            service.id: table and set(table[1])
            for service in running.config.services
            for table in [maps.pick_tables.read(service.id)]
        },
        "control": control,
        "flow": maps.flow_table.read(FLOW) is not None,
    }


def settled(running: Router, retired: int) -> None:
    """Who has no flow is forgotten, each table is out."""
    wait_for(lambda: len(running.retirement) == retired, 20, "others have retired")
    wait_for(lambda: running.engine.tables_waiting == 0, 5, "all tables are published")
    backends = [each for service in running.config.services for each in service.backends]
    wait_for(lambda: all(each.id in running.network.paths for each in backends), 5, "paths")
    time.sleep(0.2)


def by_reload(where: Place, before: str, text: str) -> dict[str, Any]:
    """A router with a flow to b1, changed to ``text`` while it runs."""
    running, found = router(where, before), {}

    def change() -> None:
        begin(where, running)
        assert running.options.source is not None
        running.options.source.path.write_text(text)
        assert ask(where, "reload", dry_run=True)["changes"]
        assert running.config == parse_config(before, "")
        assert ask(where, "reload")["changes"]
        kept = next(
            (
                service
                for service in running.config.services
                if any(each.id == 0 for each in service.backends)
            ),
            None,
        )
        settled(running, 0 if kept else 1)
        assert ask(where, "reload")["changes"] == []
        found.update(kernel_state(running))

    asyncio.run(serve(running, change))
    return found


def by_restart(where: Place, before: str, text: str) -> dict[str, Any]:
    """The same by a daemon that takes over from one with the old file."""
    found: dict[str, Any] = {}
    first = router(where, before, persist=True)
    asyncio.run(serve(first, lambda: begin(where, first)))
    running = router(where, text)

    def look() -> None:
        settled(running, len(running.retirement))
        found.update(kernel_state(running))

    asyncio.run(serve(running, look))
    return found


@pytest.mark.parametrize("change", [*CHANGES, "both families"])
@in_fresh_netns
def test_the_same_as_after_a_restart(tmp_path: Path, bpffs: Path, change: str) -> None:
    """Every map says the same, whatever the change was, and the flow is where it was."""
    before, text = BEFORE, CHANGES.get(change, "")
    if not text:
        before = BEFORE.replace("198.18.100.1", "[2001:db8::1]").replace(
            "198.18.1.2:", "[2001:db8:1::2]:"
        )
        text = before.replace(":8081", ":9") + WIDE
    with place(tmp_path, bpffs) as where:
        reloaded = by_reload(where, before, text)
        restarted = by_restart(where, before, text)
        assert where.left_behind() == []
    assert reloaded.keys() == restarted.keys()
    for name, value in restarted.items():
        assert reloaded[name] == value, name
    assert reloaded["flow"]


def by_name(state: dict[str, Any]) -> dict[str, Any]:
    """The same without numbers, which say what was there before."""
    services, backends = state["names"]
    return {
        "services": {
            at: (
                replace(value, id=0, first_backend=0, fallback=0),
                services[value.id],
                backends.get(value.fallback),
                [backends[each] for each in table],
            )
            for at, (value, table) in state["services"].items()
        },
        "backends": {
            backends[number]: (replace(value, service=0), services[value.service])
            for number, value in state["backends"].items()
        },
        **{
            index: {at: (backends[one], services[two]) for at, (one, two) in state[index].items()}
            for index in ("backend_index", "probe_index")
        },
        "names": (sorted(services.values()), sorted(backends.values())),
        "source_rules": sorted(state["source_rules"].values()),
        **{name: state[name] for name in ("service_ranges", "echo", "interfaces", "control")},
    }


@in_fresh_netns
def test_after_many_changes_it_is_as_if_it_had_begun_so(tmp_path: Path, bpffs: Path) -> None:
    """Whatever was there in between; with nobody drained, and no flow left."""
    found: list[dict[str, Any]] = []
    chain = [*CHANGES.values(), BEFORE, *list(CHANGES.values())[::-2]]
    last = HEAD + WIDE.replace("198.18.1.2", "198.18.1.2:8080") + WEB
    with place(tmp_path, bpffs) as where:
        running = router(where, BEFORE)

        def change() -> None:
            assert running.options.source is not None
            for text in (*chain, last):
                running.options.source.path.write_text(text)
                ask(where, "reload")
            settled(running, 0)
            found.append(kernel_state(running))

        asyncio.run(serve(running, change))
        fresh = router(where, last)

        def look() -> None:
            settled(fresh, 0)
            found.append(kernel_state(fresh))

        asyncio.run(serve(fresh, look))
    changed, made = map(by_name, found)
    for name, value in made.items():
        assert changed[name] == value, name


@in_fresh_netns
def test_warnings_are_those_of_attach(
    tmp_path: Path, bpffs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new service whose address nobody answers for, limits out of reach: told as at the start."""
    with place(tmp_path, bpffs) as where:
        running = router(where, BEFORE)

        def change() -> None:
            capsys.readouterr()
            more = WIDE.replace("198.18.100.2:1000-2000", "198.18.0.77:1000-2000")
            text = BEFORE + more.replace("icmp_echo = true", "max_connections = 1000")
            text = text.replace("fallback =", "max_connections = 900\nfallback =")
            assert running.options.source is not None
            running.options.source.path.write_text(text)
            ask(where, "reload")

        asyncio.run(serve(running, change))
        told = capsys.readouterr().out
        assert "service_not_answered_for" in told
        assert "198.18.0.77" in told
        assert "max_connections_out_of_reach" in told


def refused(where: Place, running: Router, text: str) -> str:
    """Why a file is refused; nothing has changed then."""
    before = kernel_state(running)
    assert running.options.source is not None
    running.options.source.path.write_text(text)
    with pytest.raises(CommandError) as caught:
        ask(where, "reload")
    assert kernel_state(running) == before
    return str(caught.value)


@in_fresh_netns
def test_what_there_is_no_room_or_no_way_for(tmp_path: Path, bpffs: Path) -> None:
    """More than the tables take, IPv6, an address of the host: each is told with its mend."""
    with place(tmp_path, bpffs) as where:
        running = router(where, BEFORE)

        def change() -> None:
            many = "".join(
                f"[[service.backend]]\naddress = '198.18.1.2:{port}'\n" for port in range(1, 70)
            )
            assert refused(where, running, BEFORE + many) == (
                "the running data plane has room for 64 backends, those with open connections that "
                "are not configured any more included, and the configuration needs more: "
                "restart the daemon with --persist: it makes larger maps, and connections go on"
            )
            ipv6 = WEB.replace("198.18.100.1:80", "[2001:db8::1]:80")
            ipv6 = ipv6.replace("198.18.1.2:", "[2001:db8:1::2]:").replace('b1"', 'c1"')
            text = BEFORE + ipv6.replace('b2"', 'c2"').replace('"web"', '"web6"')
            assert "the first service or backend of IPv6" in refused(where, running, text)
            local = BEFORE.replace("198.18.1.2:8081", "198.18.0.1:8081")
            assert "b2 (198.18.0.1) is an address of this host" in refused(where, running, local)
            assert "max_flows 1000 -> 2000" in refused(
                where, running, BEFORE.replace("max_flows = 1000", "max_flows = 2000")
            )

        asyncio.run(serve(running, change))
        assert where.left_behind() == []


@in_fresh_netns
def test_a_mode_that_was_set_is_an_edit(tmp_path: Path, bpffs: Path) -> None:
    """It stays over other edits, and the next reload has the file's again."""
    with place(tmp_path, bpffs) as where:
        running = router(where, BEFORE)

        def modes() -> tuple[str, Mode]:
            (service,) = ask(where, "services")
            (value,) = (value for _, value in running.state.maps.services.items())
            return service["mode"], Mode(value.mode)

        def change() -> None:
            ask(where, "set_mode", service="web", mode="inline")
            assert modes() == ("inline", Mode.INLINE)
            ask(where, "backend", verb="set", name="b2", keys={"weight": 7})
            assert modes() == ("inline", Mode.INLINE)
            assert len(ask(where, "reload")["changes"]) == 2
            assert modes() == ("race", Mode.RACE)

        asyncio.run(serve(running, change))
        assert where.left_behind() == []


@in_fresh_netns
def test_a_router_that_was_configured_by_flags_has_no_file(tmp_path: Path, bpffs: Path) -> None:
    """It says so, and what to do; it may be edited all the same, but not saved."""
    flags = [("198.18.100.1:80", ["198.18.1.2:8080"])]
    with place(tmp_path, bpffs) as where:
        options = replace(where.router().options, document=document_of_flags(flags))
        running = Router(config_from_flags(flags, settings=Settings(max_flows=1000)), options)

        def refused(command: str, **args: object) -> str:
            with pytest.raises(CommandError) as caught:
                ask(where, command, **args)
            return str(caught.value)

        def change() -> None:
            assert "there is no file to read: attach with --config FILE" in refused("reload")
            edit = {"verb": "set", "name": "198.18.1.2:8080", "keys": {"weight": 3}}
            assert "there is no file to save it to" in refused("backend", save=True, **edit)
            assert ask(where, "backend", **edit)["changes"][0]["text"] == (
                "~ backend 198.18.1.2:8080 of 198.18.100.1:80/tcp: weight 1 -> 3"
            )
            assert running.state.backend_value(0).weight == 3
            assert refused("backend", **{**edit, "keys": {"weight": 0}}) == (
                "the configuration with this change: service.backend.weight: found 0, expected a "
                "whole number from 1 to 1000"
            )
            assert refused("service", verb="mend", name=5).startswith("service: expected verb (add")

        asyncio.run(serve(running, change))
        assert where.left_behind() == []


def test_no_map_is_forgotten_here() -> None:
    """A map that the daemon writes by the configuration is compared above, or named here."""
    compared = {"services", "backends", "backend_index", "hash_tables", "names", "service_ranges"}
    compared |= {"source_rules", "interfaces", "control", "pick_tables", "picks"}
    by_packets = {spec.name for spec in MAP_SPECS if spec.private} | {
        *("pending_flows", "pending_flows6", "flow_table", "flow_table6", "flood_flows"),
        *("flood_flows6", "fragments", "path_mtus", "quic_ids", "affinity", "usage"),
        *("usage_aged", "first_packet_events", "tokens", "prefix_tokens", "event_shares"),
        *("pressure", "counters", "notes"),
        "gateway_sockets",  # as the gateway has them
        *("backend_load", "backend_aged", "backend_signs", "traffic_ended", "traffic_aged"),
        "companions",
    }
    assert {spec.name for spec in MAP_SPECS} == compared | by_packets
