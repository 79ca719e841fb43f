# SPDX-License-Identifier: Apache-2.0
"""One lab with servers of every kind, and one router with a service for each of them by every
method and both families.

    with every_method_lab("segment") as lab, router_in(lab, private_mounts) as router:
        router.start(config(lab.spec), "--xdp-mode", "native")
        cell = Cell(router, WAYS["dsr"], 6, "udp")
        ask_by_udp(lab.client, cell.service, b"...")

``routed``: the router lies between clients and backends; ``segment``: all are at one switch.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.method_table import works
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, router_in
from tests.support.tap import Tap
from xdp_router.lab import BackendSpec, Lab, LabSpec, links
from xdp_router.lab.spec import Family, Kind, Method, Topology, endpoint_text

FAMILIES: tuple[Family, ...] = (4, 6)
PORT = 80
WIDE, MAPPED = range(70, 90), range(7000, 7100)
"""Ports of the services of many ports whose backends keep them, and have ``PORT`` for all."""
SERVERS: dict[str, tuple[Kind, int]] = {
    "echo": ("echo", 2),
    "hash": ("hash", 2),
    "quic": ("quic", 2),
    "stun": ("stun", 2),
    "iperf": ("iperf3", 1),
    "lone": ("echo", 2),
}
"""Their names, each with a number behind it; of what kind; how many. A measurement of iperf3 has
connections that belong together: one. Those that are alone are of one service only."""
HEARTBEAT_STALE_S = 5
BURST = 8
"""So many first packets at once are within budget."""

_ports = itertools.count(30_000)


@dataclass(frozen=True)
class Way:
    """How packets come to backends; ``other``: in an outer header of the other family."""

    name: str
    method: Method
    topology: Topology
    number: int
    other: bool = False

    @property
    def replies_pass_router(self) -> bool:
        """Whether backends answer through the router."""
        return self.method in ("nat", "fullnat")

    def outer(self, family: Family) -> Family:
        """The family of the backends' addresses."""
        return family if not self.other else FAMILIES[family == 4]


WAYS = {
    way.name: way
    for way in (
        Way("nat", "nat", "routed", 1),
        Way("fullnat", "fullnat", "routed", 2),
        Way("one-armed", "fullnat", "segment", 3),
        Way("dsr", "dsr", "segment", 4),
        Way("ipip", "ipip", "segment", 5),
        Way("ipip-other", "ipip", "segment", 6, other=True),
    )
}


@dataclass(frozen=True)
class Sort:
    """One sort of service: what protocol, which servers, how they are probed."""

    number: int
    protocol: str
    servers: str
    """The names of its servers, without their numbers."""
    probe: str
    answer: str
    """How ``explain`` calls the probe's answer."""
    keys: str = ""
    ports: range | None = None
    keeps_port: bool = True
    needs: str = ""
    """The row of the manual's table that says which methods have it; without, each of them."""

    def probe_keys(self, server: str) -> str:
        """Lines that say how a server is asked."""
        if self.probe != "udp":
            return f'probe = "{self.probe}"'
        # It begins with the server's name, so nobody else's answer is good.
        return f'probe = "udp"\nprobe_payload = "are you there?"\nprobe_answer = "{server} "'


LIMIT = 2
RULES = f"""
affinity = "source"
max_connections = {LIMIT}
allow = ["{{allowed}}"]
deny = ["{{denied}}"]
"""
SOURCES = {
    4: {"allowed": "198.18.0.0/16", "denied": "198.18.9.0/24"},
    6: {"allowed": "2001:db8::/32", "denied": "2001:db8:9::/48"},
}
DENIED = {4: "198.18.9.9", 6: "2001:db8:9::9"}
"""An address of the client, beside the one that it uses by itself."""

SORTS = {
    "tcp": Sort(1, "tcp", "echo", "syn", "synack", "icmp_echo = true"),
    "closed": Sort(1, "udp", "echo", f"tcp:{PORT}", "synack"),
    "udp": Sort(2, "udp", "hash", "udp", "datagram"),
    "quic": Sort(3, "udp", "quic", "icmp", "echo", "quic = true"),
    "stun": Sort(4, "udp", "stun", "stun", "stun"),
    "iperf-tcp": Sort(5, "tcp", "iperf", f"tcp:{PORT}", "synack"),
    "iperf-udp": Sort(5, "udp", "iperf", "icmp", "echo"),
    "wide-tcp": Sort(6, "tcp", "hash", f"tcp:{PORT}", "synack", ports=WIDE),
    "wide-udp": Sort(6, "udp", "hash", "icmp", "echo", ports=WIDE),
    "mapped-tcp": Sort(
        6,
        "tcp",
        "hash",
        "syn",
        "synack",
        ports=MAPPED,
        keeps_port=False,
        needs="many ports, one of the backend",
    ),
    "mapped-udp": Sort(
        6,
        "udp",
        "hash",
        "icmp",
        "echo",
        ports=MAPPED,
        keeps_port=False,
        needs="many ports, one of the backend",
    ),
    "ruled-tcp": Sort(7, "tcp", "echo", "syn", "synack", RULES),
    "ruled-udp": Sort(7, "udp", "hash", "icmp", "echo", RULES),
    "stateless": Sort(
        8,
        "tcp",
        "lone",
        "syn",
        "synack",
        "stateless = true\nevent_rate = 1",
        needs="stateless services",
    ),
}


def service_host(way: Way, sort: str, family: Family) -> str:
    """The address of a service."""
    number = f"{way.number}{SORTS[sort].number}"
    return f"198.18.100.{number}" if family == 4 else f"2001:db8:100::{number}"


def spec_of(topology: Topology) -> LabSpec:
    """Backends of every kind; those on a segment can be reached by every method."""
    used = {sort.servers for way in ways_of(topology) for sort in sorts_of(way).values()}
    servers = tuple(
        BackendSpec(f"{name}{number}", kind=kind, port=PORT)
        for name, (kind, count) in SERVERS.items()
        if name in used
        for number in range(1, count + 1)
    )
    # Backends of a tunnel have what those of the other methods need, and more.
    method: Method = "ipip" if topology == "segment" else "nat"
    return LabSpec(servers, method=method, topology=topology, service_port=PORT)


def ways_of(topology: Topology) -> list[Way]:
    """What can be tried there."""
    return [way for way in WAYS.values() if way.topology == topology]


def sorts_of(way: Way) -> dict[str, Sort]:
    """The sorts of services that its method has."""
    return {
        name: sort
        for name, sort in SORTS.items()
        if not sort.needs or works(sort.needs, way.method)
    }


def servers_of(name: str) -> str:
    """A server's name without its number."""
    return name.rstrip("0123456789")


@contextlib.contextmanager
def every_method_lab(topology: Topology) -> Iterator[Lab]:
    """The lab; its backends have the addresses of all services that are not translated."""
    with running_lab(spec_of(topology)) as lab:
        links.add_to_loopback(lab.client, DENIED.values())
        for server, namespace in zip(lab.spec.backends, lab.backends, strict=True):
            addresses = {
                service_host(way, sort, family)
                for way in ways_of(topology)
                for sort, of in sorts_of(way).items()
                for family in FAMILIES
                if not way.replies_pass_router and of.servers == servers_of(server.name)
            }
            links.add_to_loopback(namespace, sorted(addresses))
        yield lab


def config(spec: LabSpec, settings: str = "") -> str:
    """A service for each way, sort and family, each with all servers of its kind."""
    # Each flow has its own race, so that each shows what is answered now.
    lines = ["[router]", f'heartbeat_stale = "{HEARTBEAT_STALE_S}s"', 'coalesce_window = "0s"']
    lines += [f"event_burst = {BURST}", settings]
    for way in ways_of(spec.topology):
        for name, sort in sorts_of(way).items():
            for family in FAMILIES:
                lines += _service(spec, way, name, sort, family)
    return "\n".join(lines) + "\n"


def service_name(way: Way, sort: str, family: Family) -> str:
    """What the configuration calls a service."""
    return f"{way.name}-{sort}-{family}"


def _service(spec: LabSpec, way: Way, name: str, sort: Sort, family: Family) -> list[str]:
    title, host = service_name(way, name, family), service_host(way, name, family)
    address = endpoint_text(host, PORT)
    if sort.ports is not None:
        address = f"{address.removesuffix(str(PORT))}{sort.ports[0]}-{sort.ports[-1]}"
    lines = ["[[service]]", f'name = "{title}"', f'address = "{address}"']
    lines += [f'protocol = "{sort.protocol}"', f'forwarding = "{way.method}"']
    lines += ['deadline = "2s"', sort.keys.format(**SOURCES[family])]
    ends = spec.addresses_of(way.outer(family)).backends
    for server, (backend, port) in zip(spec.backends, ends, strict=True):
        if servers_of(server.name) == sort.servers:
            named = way.replies_pass_router and (sort.ports is None or not sort.keeps_port)
            at = endpoint_text(backend, port) if named else backend
            lines += ["[[service.backend]]", f'name = "{title}-{server.name}"']
            lines += [f'address = "{at}"', sort.probe_keys(server.name)]
    return lines


@dataclass(frozen=True)
class Cell:
    """One service of a running router, as its clients see it."""

    router: Router
    way: Way
    family: Family
    name: str

    @property
    def sort(self) -> Sort:
        """What sort it is of."""
        return SORTS[self.name]

    @property
    def service(self) -> tuple[str, int]:
        """Where clients go."""
        port = PORT if self.sort.keeps_port else MAPPED[50]
        return service_host(self.way, self.name, self.family), port

    @property
    def client(self) -> str:
        """Where they come from."""
        return self.router.lab.addresses_of(self.family).client

    def source(self) -> tuple[str, int]:
        """An address and port of the client that nobody has used."""
        return self.client, next(_ports)

    @property
    def denied(self) -> tuple[str, int]:
        """A source of the client that services with rules deny."""
        return DENIED[self.family], next(_ports)

    def flows(self, client: str) -> list[dict[str, Any]]:
        """Rows of ``flows --json`` of a client (``ADDRESS`` or ``ADDRESS:PORT``)."""
        rows = self.router.json("flows", "--client", client)
        return [row for row in rows if row["service"] == self.title]

    @property
    def title(self) -> str:
        """The service's name."""
        return service_name(self.way, self.name, self.family)

    def backend_mac(self, server: str) -> str:
        """The MAC of a server of the lab."""
        return links.mac(1, self._index(server) + 1, 2)

    def backend_address(self, server: str) -> str:
        """Where packets go to a server."""
        ends = self.router.lab.addresses_of(self.way.outer(self.family)).backends
        return endpoint_text(ends[self._index(server)][0], PORT)

    def _index(self, server: str) -> int:
        return [each.name for each in self.router.lab.spec.backends].index(server)


@dataclass
class Witness:
    """What one conversation has left: see ``watched``."""

    cell: Cell
    risen: dict[str, int]
    frames: list[bytes]

    def check(self, client: tuple[str, int], server: str) -> dict[str, Any]:
        """The flow's row, after it was seen that the way's packets took their way.

        That is: XDP itself forwarded them, to that server; it was raced by the declared kind of
        probe; and the answers came by whom the method says.
        """
        cell, way = self.cell, self.cell.way
        end = endpoint_text(*client)
        (row,) = cell.flows(end)
        backend = f"{cell.title}-{server}"
        assert (row["backend"], row["protocol"]) == (backend, cell.sort.protocol), row
        assert row["packets"] > 0, row
        assert (row["reply_packets"] > 0) == way.replies_pass_router, row
        assert bool(row["source_address"]) == (way.method == "fullnat"), row
        assert row["backend_address"] == cell.backend_address(server), row
        told = cell.router.ask("explain", client=f"{end}/{cell.sort.protocol}")
        assert told["backend"] == backend, told
        assert told["reason"] in ("race_won", "tie"), told
        answers = {each["backend"]: each["answer"] for each in told["candidates"]}
        assert len(answers) == SERVERS[cell.sort.servers][1], told
        assert answers[backend] == cell.sort.answer, told
        assert set(answers.values()) <= {cell.sort.answer, "lost"}, told
        for lost in ("handed_to_kernel", "no_path", "tail_call_missed", "fragment_dropped"):
            assert self.risen[lost] == 0, (lost, self.risen[lost])
        assert (self.risen["tunneled"] > 0) == (way.method == "ipip")
        sender = links.mac(0, 0, 1) if way.replies_pass_router else cell.backend_mac(server)
        assert self.senders() == {sender}, (self.senders(), sender)
        return dict(row)

    def senders(self) -> set[str]:
        """The MACs by which packets of the service have come to the client."""
        packed = ipaddress.ip_address(self.cell.service[0]).packed
        at = 26 if self.cell.family == 4 else 22
        return {
            frame[6:12].hex(":") for frame in self.frames if frame[at : at + len(packed)] == packed
        }


@contextlib.contextmanager
def watched(cell: Cell) -> Iterator[Witness]:
    """What counters did, and what came to the client, while the block ran."""
    before = cell.router.counters()
    witness = Witness(cell, {}, [])
    with contextlib.closing(cell.router.lab.client.run(lambda: Tap("eth0"))) as tap:
        yield witness
        witness.frames += tap.received()
    after = cell.router.counters()
    witness.risen.update({name: after[name] - before[name] for name in after})


@contextlib.contextmanager
def every_method_router(lab: Lab, private_mounts: Path, xdp_mode: str) -> Iterator[Router]:
    """The router of such a lab, all of whose backends are up."""
    text = config(lab.spec)
    count = text.count("[[service.backend]]")
    with router_in(lab, private_mounts) as router:
        router.start(text, "--xdp-mode", xdp_mode)
        wait_for(lambda: router.ask("status")["backends_up"] == count, 30, "all backends are up")
        yield router
