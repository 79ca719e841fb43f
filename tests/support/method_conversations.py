# SPDX-License-Identifier: Apache-2.0
"""What the tests of all methods do with a service: real stacks, both ways, compared by hash."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.clients import dial, echo_intact, random_bytes, who
from tests.support.every_method import BURST, LIMIT, Cell, Witness, servers_of, watched
from tests.support.iperf import iperf
from tests.support.quic_client import ask_by_quic
from tests.support.receipts import ask, ask_by_stun, ask_by_tcp, datagram_socket
from tests.support.udp_servers import UdpServer, echo
from xdp_router.lab import links
from xdp_router.lab.spec import endpoint_text

PATIENCE_S = 15.0
"""Of each step; undisturbed it takes milliseconds."""
BEHIND_S = 0.02
"""After so long a datagram no longer waits behind those that the daemon has sent: that one makes
its flow an established one."""
SILENCE_S = 0.2
"""Of who is never answered."""
DATAGRAMS = (0, 1, 2, 100, 999, 1200, 1350)
"""Their lengths: all fit into a tunnel."""
MEASURED = 1_000_000
OVER_BUDGET = 10
DATAGRAMS_MEASURED = 100
"""So few fit into a socket's buffer: none is lost if its reader gets no time."""


def speak_tcp(cell: Cell) -> None:
    """A connection whose bytes come back."""
    payload = random_bytes(200_000)
    with watched(cell) as seen:
        peer = dial(cell.router.lab.client, cell.service, timeout=PATIENCE_S)
        with peer:
            server = who(peer)
            assert echo_intact(peer, payload)
            client = peer.getsockname()[:2]
    row = seen.check(client, server)
    assert row["bytes"] > len(payload)
    if cell.way.replies_pass_router:
        assert row["reply_bytes"] > len(payload)


def speak_udp(cell: Cell) -> None:
    """Datagrams of all lengths, each answered by its hash."""
    with watched(cell) as seen:
        peer = datagram_socket(cell.router.lab.client, cell.service, timeout=PATIENCE_S)
        with peer:
            names = {ask(peer, random_bytes(length)) for length in DATAGRAMS}
            client = peer.getsockname()[:2]
    (server,) = names
    row = seen.check(client, server)
    assert row["packets"] == len(DATAGRAMS)
    assert row["state"] == "established"
    if cell.way.replies_pass_router:
        assert row["reply_packets"] == len(DATAGRAMS)


def speak_quic(cell: Cell) -> None:
    """A handshake whose hello is two datagrams, and a stream."""
    source = cell.source()
    with watched(cell) as seen:
        server = ask_by_quic(
            cell.router.lab.client, cell.service, random_bytes(20_000),
            source=source, timeout=PATIENCE_S,
        )  # fmt: skip
    row = seen.check(source, server)
    assert row["bytes"] > 20_000
    assert seen.risen["datagram_first"] == 1
    assert seen.risen["datagrams_over"] == seen.risen["deadline_passed"] == 0


def speak_stun(cell: Cell) -> None:
    """Binding requests: the server sees the client, or with ``fullnat`` the router."""
    source = cell.source()
    with watched(cell) as seen:
        answers = {
            ask_by_stun(cell.router.lab.client, cell.service, source=source, timeout=PATIENCE_S)
            for _ in range(3)
        }
    ((server, address),) = answers
    row = seen.check(source, server)
    assert row["packets"] == 3
    assert endpoint_text(*address) == (row["source_address"] or endpoint_text(*source))


def speak_wide_tcp(cell: Cell) -> None:
    """A connection to one of many ports."""
    source = cell.source()
    with watched(cell) as seen:
        server = ask_by_tcp(
            cell.router.lab.client, cell.service, random_bytes(50_000),
            source=source, timeout=PATIENCE_S,
        )  # fmt: skip
    assert seen.check(source, server)["bytes"] > 50_000


def measure_tcp(cell: Cell) -> None:
    """iperf3, up and down: what it sent has arrived, and the router has counted as much."""
    for direction in ("bytes", "reply_bytes"):
        former = {row["client"] for row in cell.flows(cell.client)}
        options = ["--length=16K", "--bitrate=200M", f"--bytes={MEASURED}"]
        if direction == "reply_bytes":
            options.append("--reverse")
        end = iperf(cell.router.lab.client, cell.service, *options)
        # The receiver stops when the sender has said on another connection that it is done: what
        # is still on its way then counts as sent only.
        sent, arrived = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
        assert sent >= MEASURED
        rows = [row for row in cell.flows(cell.client) if row["client"] not in former]
        assert len(rows) == 2, "iperf3 has one connection to speak about the other"
        counted = sum(row[direction] for row in rows)
        if direction == "bytes" or cell.way.replies_pass_router:
            assert 0 < arrived < counted < sent * 1.2
        else:
            assert counted == 0


def measure_udp(cell: Cell) -> None:
    """iperf3: no datagram is lost, and the router has counted all of them."""
    with answering_from(cell):
        end = iperf(
            cell.router.lab.client, cell.service, "--length=1200", "--bitrate=20M",
            f"--bytes={DATAGRAMS_MEASURED * 1200}", udp=True,
        )  # fmt: skip
    told = end["sum"]
    assert (told["lost_packets"], told["packets"]) == (0, DATAGRAMS_MEASURED)
    (row,) = cell.flows(cell.client)
    assert row["packets"] == DATAGRAMS_MEASURED + 1, "the first one says where the client is"
    assert row["bytes"] > told["bytes"]


@contextlib.contextmanager
def answering_from(cell: Cell) -> Iterator[None]:
    """A server that connects its UDP socket has the source that its route prefers."""
    lab = cell.router.lab
    if cell.way.topology == "routed":
        yield
        return
    index = [servers_of(each.name) for each in lab.spec.backends].index(cell.sort.servers)
    of = lab.addresses_of(cell.family)
    own = of.backends[index][0]
    subnet = str(ipaddress.ip_interface(f"{own}/{of.prefix_length}").network)
    source = own if cell.way.replies_pass_router else cell.service[0]
    links.subnet_route(lab.backends[index], "eth0", subnet, source=source)
    try:
        yield
    finally:
        lab.wiring.route_backend(index)


def speak_in_fragments(cell: Cell) -> None:
    """Datagrams that their senders cut, of the client and of the backend."""
    payload = random_bytes(4000)
    with contextlib.ExitStack() as undo:
        for server in udp_echoes(cell):
            undo.enter_context(server)
        undo.enter_context(room_for_tunnel(cell))
        seen = undo.enter_context(watched(cell))
        peer = undo.enter_context(
            datagram_socket(cell.router.lab.client, cell.service, timeout=PATIENCE_S)
        )
        # What follows the first fragment of a packet that is held is lost, so that one is short.
        for sent in (b"short", payload, payload[::-1]):
            peer.send(sent)
            assert peer.recv(5000) == sent
        client = peer.getsockname()[:2]
    (row,) = cell.flows(endpoint_text(*client))
    seen.check(client, row["backend"].rpartition("-")[2])
    assert seen.risen["fragment_first"] == (4 if cell.way.replies_pass_router else 2)
    assert seen.risen["fragment_followed"] >= 2 * seen.risen["fragment_first"]
    assert seen.risen["fragment_unknown"] == 0


def udp_echoes(cell: Cell) -> Iterator[UdpServer]:
    """UDP servers beside the TCP ones of the backends."""
    lab = cell.router.lab
    ends = lab.addresses_of(cell.family).backends
    family = socket.AF_INET if cell.family == 4 else socket.AF_INET6
    for index, (host, port) in enumerate(ends):
        if servers_of(lab.spec.backends[index].name) == cell.sort.servers:
            sock = lab.backends[index].socket(family, socket.SOCK_DGRAM)
            sock.bind((host if cell.way.replies_pass_router else cell.service[0], port))
            yield UdpServer(sock, echo, longest=5000)


@contextlib.contextmanager
def room_for_tunnel(cell: Cell) -> Iterator[None]:
    """The client cuts its packets so that they fit into an outer header."""
    host = cell.service[0]
    route = {
        "dst": f"{host}/{32 if cell.family == 4 else 128}",
        "gateway": cell.router.lab.addresses_of(cell.family).client_router,
        "metrics": {"mtu": 1400},
    }
    client = cell.router.lab.client
    links.with_netlink(client, lambda netlink: netlink.route("add", **route))
    try:
        yield
    finally:
        links.with_netlink(client, lambda netlink: netlink.route("del", **route))


def keep_rules_tcp(cell: Cell) -> None:
    """Connections of one source go together, up to the limit; whoever is denied hears nothing."""
    lab, service = cell.router.lab, cell.service
    with watched(cell) as seen, contextlib.ExitStack() as undo:
        names = []
        for _ in range(LIMIT):
            peer = undo.enter_context(dial(lab.client, service, timeout=PATIENCE_S))
            names.append(who(peer))
            assert echo_intact(peer, b"established")
        with pytest.raises(ConnectionRefusedError):
            dial(lab.client, service, timeout=PATIENCE_S)
        with pytest.raises(TimeoutError):
            dial(lab.client, service, source=cell.denied, timeout=SILENCE_S)
    _check_rules(cell, seen, names)


def keep_rules_udp(cell: Cell) -> None:
    """The same of flows of datagrams."""
    lab, service = cell.router.lab, cell.service
    with watched(cell) as seen, contextlib.ExitStack() as undo:
        names = []
        for _ in range(LIMIT):
            peer = undo.enter_context(datagram_socket(lab.client, service, timeout=PATIENCE_S))
            names.append(ask(peer, b"one"))
            time.sleep(BEHIND_S)
            names += [ask(peer, b"two"), ask(peer, b"three")]
        peer = undo.enter_context(datagram_socket(lab.client, service, timeout=PATIENCE_S))
        peer.send(b"one more")
        with pytest.raises(ConnectionRefusedError):
            peer.recv(100)
        source = cell.denied
        peer = undo.enter_context(
            datagram_socket(lab.client, service, source=source, timeout=SILENCE_S)
        )
        peer.send(b"anybody?")
        with pytest.raises(TimeoutError):
            peer.recv(100)
    _check_rules(cell, seen, names)


def _check_rules(cell: Cell, seen: Witness, names: list[str]) -> None:
    assert len(set(names)) == 1, names
    rows = [row for row in cell.flows(cell.client) if row["state"] != "refused"]
    assert sorted(row["decision"]["reason"] for row in rows)[:-1] == ["affinity"] * (LIMIT - 1)
    assert len(rows) == LIMIT
    assert seen.risen["affinity_used"] == LIMIT - 1
    assert seen.risen["flow_limit_reached"] == 1
    assert seen.risen["source_denied"] >= 1


def outgrow_budget(cell: Cell) -> None:
    """Connections that have no entry at first, since they are over budget, but have one later."""
    lab, payload = cell.router.lab, random_bytes(5000)
    with watched(cell) as seen, contextlib.ExitStack() as undo:
        for _ in range(OVER_BUDGET + 2 * BURST):
            peer = undo.enter_context(dial(lab.client, cell.service, timeout=PATIENCE_S))
            assert who(peer).startswith(cell.sort.servers)
            assert echo_intact(peer, payload)
    assert seen.risen["stateless_forwarded"] >= OVER_BUDGET
    assert seen.risen["stateless_promoted"] >= OVER_BUDGET
    assert seen.risen["stateless_replied"] >= OVER_BUDGET
    assert seen.risen["orphan_reset"] == 0
    assert seen.senders() == {links.mac(0, 0, 1)}
    rows = cell.flows(cell.client)
    assert len(rows) == OVER_BUDGET + 2 * BURST
    hashed = [row for row in rows if row["decision"]["reason"] == "stateless"]
    assert len(hashed) >= OVER_BUDGET
    assert all(row["bytes"] > len(payload) < row["reply_bytes"] for row in hashed)
