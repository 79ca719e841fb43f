# SPDX-License-Identifier: Apache-2.0
"""Races by every kind of probe, decided by what real stacks and servers answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import dial, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from tests.support.udp_servers import UdpServer, echo, stun_answer
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

MS = 1_000_000
SPEC = LabSpec((BackendSpec("b1", delay_ns=5 * MS), BackendSpec("b2")))
HOST = "198.18.100.2"
HEALTH = 9100
"""Where a server listens that is asked by ``tcp:PORT``."""

SERVICES = {
    81: 'probe = "icmp"',
    82: f'probe = "tcp:{HEALTH}"',
    83: 'probe = "stun"',
    84: 'probe = "udp"\nprobe_payload = "ping"\nprobe_answer = "hex:70696e67"',
    85: 'probe = "udp"\nprobe_payload = "ping"\nprobe_answer = "pong"',
    86: f'probe = "tcp-connect:{HEALTH}"',
    87: f'probe = "http:{HEALTH}"\nprobe_path = "/up"\nprobe_host = "shop.example"',
    88: f'probe = "http:{HEALTH}"\nprobe_status = "204"',
}
"""By port; each has both backends, ``NAME-PORT``."""

GOOD = {81: "echo", 82: "synack", 83: "stun", 84: "datagram", 86: "connected", 87: "http"}
ASKED = {
    81: "echo request",
    82: f"SYN (port {HEALTH})",
    83: "STUN request",
    84: "datagram",
    86: f"connection (port {HEALTH})",
    87: f"HEAD request (port {HEALTH})",
}

SAID = {
    81: "echo reply",
    82: "SYN-ACK",
    83: "STUN answer",
    84: "datagram",
    86: "connection",
    87: "HTTP answer",
}


def _config() -> str:
    # Each connection has its own race, so that each shows what is answered now.
    lines = [calm_config(SPEC, 'coalesce_window = "0s"')]
    for port, probe in SERVICES.items():
        lines += ["[[service]]", f'name = "s{port}"', f'address = "{HOST}:{port}"']
        lines += ['deadline = "1s"', probe]
        for backend, (address, at) in zip(SPEC.backends, SPEC.addresses.backends, strict=True):
            lines += ["[[service.backend]]", f'name = "{backend.name}-{port}"']
            lines += [f'address = "{address}:{at}"']
            if port == 85 and backend.name == "b1":
                lines += ['probe = "icmp"']
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    with routed_lab(private_mounts, SPEC, _config()) as made:
        yield made


@contextlib.contextmanager
def udp_servers(router: Router, answer: Any, *names: str) -> Iterator[None]:
    """A UDP server at these backends, on the port of their TCP one."""
    with contextlib.ExitStack() as undo:
        for index, (backend, end) in enumerate(
            zip(SPEC.backends, SPEC.addresses.backends, strict=True)
        ):
            if backend.name in names:
                sock = router.lab.backends[index].socket(socket.AF_INET, socket.SOCK_DGRAM)
                sock.bind(end)
                undo.enter_context(UdpServer(sock, answer))
        yield


@contextlib.contextmanager
def web_servers(router: Router, status: str = "200 OK") -> Iterator[list[bytes]]:
    """HTTP servers at the backends; what they were asked."""
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer, contextlib.suppress(OSError):
                    asked.append(peer.recv(2048))
                    peer.sendall(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())

    with listeners(router) as made, contextlib.ExitStack() as undo:
        for each in made:
            each.setblocking(True)
            thread = threading.Thread(target=serve, args=(each,))
            thread.start()
            undo.callback(thread.join, 5)
            undo.callback(each.shutdown, socket.SHUT_RDWR)
        yield asked


@contextlib.contextmanager
def listeners(router: Router) -> Iterator[list[socket.socket]]:
    """TCP servers beside the backends, which are asked and see no connection."""
    with contextlib.ExitStack() as undo:
        made = []
        for namespace in router.lab.backends:
            made.append(undo.enter_context(contextlib.closing(namespace.socket())))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made[-1].bind(("0.0.0.0", HEALTH))
            made[-1].listen()
            made[-1].setblocking(False)
        yield made


def raced(router: Router, port: int) -> tuple[str, dict[str, Any]]:
    """Who answers a new connection, and why: the row of ``explain``, all answers in it."""
    with dial(router.lab.client, (HOST, port)) as peer:
        winner = who(peer)
        host, own = peer.getsockname()

        def told() -> dict[str, Any]:
            row: dict[str, Any] = router.ask("explain", client=f"{host}:{own}")
            return row

        wait_for(
            lambda: all(each["answer"] != "lost" for each in told()["candidates"]),
            5, "all candidates have answered",
        )  # fmt: skip
        return winner, told()


def answers(row: dict[str, Any]) -> dict[str, str]:
    """What each backend answered."""
    return {each["backend"].partition("-")[0]: each["answer"] for each in row["candidates"]}


@pytest.mark.parametrize("port", list(GOOD), ids=list(GOOD.values()))
def test_the_nearer_backend_wins(router: Router, port: int) -> None:
    """Asked so, both answer; the one without 5 ms of delay gets the connection."""
    with contextlib.ExitStack() as undo:
        if port in (82, 86):
            undo.enter_context(listeners(router))
        elif port == 87:
            undo.enter_context(web_servers(router))
        elif port in (83, 84):
            how = stun_answer if port == 83 else echo
            undo.enter_context(udp_servers(router, how, "b1", "b2"))
        winner, row = raced(router, port)
    assert winner == "b2"
    assert row["reason"] == "race_won"
    assert answers(row) == {"b1": GOOD[port], "b2": GOOD[port]}
    rtt = {each["backend"]: each["rtt_us"] for each in row["candidates"]}
    assert rtt[f"b1-{port}"] > max(5_000, rtt[f"b2-{port}"])
    told = {(step["what"], step["detail"].partition(", RTT")[0]) for step in row["timeline"]}
    for name in ("b1", "b2"):
        assert ("probe", f"{ASKED[port]} to {name}-{port}") in told
        assert ("answer", f"{name}-{port}: {SAID[port]}") in told


def test_what_is_asked_by_syn_sees_no_connection(router: Router) -> None:
    """``tcp:PORT``: the probe ends in XDP, as every other SYN probe does."""
    with listeners(router) as made:
        raced(router, 82)
        for each in made:
            with pytest.raises(BlockingIOError):
                each.accept()


@pytest.mark.parametrize("port", [83, 84], ids=["stun", "udp"])
def test_a_closed_port_loses_at_once(router: Router, port: int) -> None:
    """Though it is nearer: the ICMP error is no answer, and explain names it."""
    how = stun_answer if port == 83 else echo
    with udp_servers(router, how, "b1"):
        winner, row = raced(router, port)
    assert winner == "b1"
    assert answers(row) == {"b1": GOOD[port], "b2": "unreachable"}


def test_a_refused_tcp_port_loses_at_once(router: Router) -> None:
    """``tcp:PORT`` without a listener: both refuse, and so is the client."""
    with pytest.raises(ConnectionRefusedError):
        dial(router.lab.client, (HOST, 82))


def test_a_web_server_is_asked_what_is_configured(router: Router) -> None:
    """The path, by HEAD, and the host; another status than the expected one does not win."""
    with web_servers(router) as asked:
        raced(router, 87)
        assert len(asked) == 2
        for request in asked:
            line, *fields = request.decode().split("\r\n")
            assert line == "HEAD /up HTTP/1.1"
            assert {"Host: shop.example", "Connection: close"} <= set(fields)
        _, row = raced(router, 88)
        assert answers(row) == {"b1": "unexpected", "b2": "unexpected"}
        assert row["reason"] == "deadline"
    with web_servers(router, "204 No Content"):
        assert raced(router, 88)[0] == "b2"


def test_no_connection_of_a_probe_is_left(router: Router) -> None:
    """The server sees it come and go; nothing of ours waits."""
    with listeners(router) as made:
        raced(router, 86)
        for each in made:
            each.settimeout(2)
            peer, _ = each.accept()
            peer.settimeout(2)
            with peer, pytest.raises(ConnectionResetError):
                peer.recv(1)


def test_another_answer_than_expected_does_not_win(router: Router) -> None:
    """Its backend has a kind of its own; the nearer one says something else."""
    with udp_servers(router, echo, "b2"):
        winner, row = raced(router, 85)
    assert winner == "b1"
    assert answers(row) == {"b1": "echo", "b2": "unexpected"}


def test_backends_tell_what_they_are_asked(router: Router) -> None:
    """In ``backends``, as the configuration calls it."""
    kinds = {row["name"]: row["probe"] for row in router.json("backends")}
    assert kinds["b1"] == "syn"
    assert kinds["b1-82"] == f"tcp:{HEALTH}"
    assert {name: kinds[name] for name in ("b1-85", "b2-85")} == {"b1-85": "icmp", "b2-85": "udp"}


def test_answers_are_counted_by_kind(router: Router) -> None:
    """Each ends in XDP: the kernel gets none of them."""
    with router.counted() as rose, udp_servers(router, echo, "b1", "b2"):
        raced(router, 81)
        raced(router, 84)
        assert (rose("probe_echo"), rose("probe_datagram")) == (2, 2)
