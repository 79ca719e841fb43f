# SPDX-License-Identifier: Apache-2.0
"""Services of many ports, source affinity, limits and source rules, with real connections."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.clients import dial, receive, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.namespace import Namespace

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3")))
RANGE, WHOLE, AFFINE, LIMITED, DENIED, ALLOWED = (f"198.18.100.{n}" for n in range(11, 17))
PORTS = (8000, 8001, 8002)
HOST_PORT, HIDDEN_PORT = 2222, 3333
"""The router's own listeners at WHOLE: one that is left out, and one that is not."""
LIMIT = 3


def config() -> str:
    """A service for each test, beside the lab's."""
    servers = SPEC.addresses.backends
    lines = [calm_config(SPEC, 'closed_linger = "1s"\npending_idle = "2s"')]

    def service(name: str, address: str, *keys: str, own_ports: bool = False) -> None:
        lines.extend(["[[service]]", f'name = "{name}"', f'address = "{address}"', *keys])
        lines.append('deadline = "1s"')
        if own_ports:
            lines.append(f'probe = "tcp:{servers[0][1]}"')
        for number, (host, port) in enumerate(servers, 1):
            at = host if own_ports else f"{host}:{port}"
            lines.extend(["[[service.backend]]", f'name = "{name}{number}"', f'address = "{at}"'])

    service("range", f"{RANGE}:{PORTS[0]}-{PORTS[-1]}", own_ports=True)
    service("whole", WHOLE, f"except_ports = [{HOST_PORT}]")
    service("affine", f"{AFFINE}:80", 'affinity = "source"')
    service("limited", f"{LIMITED}:80", f"max_connections = {LIMIT}")
    service("denied", f"{DENIED}:80", f'deny = ["{SPEC.addresses.client}/32"]')
    service("allowed", f"{ALLOWED}:80", 'allow = ["198.18.0.0/16"]', 'deny = ["198.18.9.0/24"]')
    return "\n".join(lines) + "\n"


def own_address() -> None:
    """Have the router's host have WHOLE."""
    with IPRoute() as ipr:
        (loopback,) = ipr.link_lookup(ifname="lo")
        ipr.link("set", index=loopback, state="up")
        ipr.addr("add", index=loopback, address=WHOLE, prefixlen=32)


def greet(listener: socket.socket, text: str) -> None:
    """Answer each connection by its greeting, until the listener is closed."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(text.encode())

    threading.Thread(target=serve, daemon=True).start()


@contextlib.contextmanager
def listening(namespace: Namespace, port: int, text: str) -> Iterator[None]:
    """A server that says ``text``."""
    made = namespace.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("0.0.0.0", port))
    made.listen(64)
    greet(made, text)
    try:
        yield
    finally:
        made.shutdown(socket.SHUT_RDWR)
        made.close()


def greeting(router: Router, service: tuple[str, int]) -> str:
    """What the server at the other end says."""
    with dial(router.lab.client, service) as peer:
        return peer.recv(100).decode()


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """A router with those services; WHOLE is an address of its own host."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(routed_lab(private_mounts, SPEC, None))
        made.lab.router.run(own_address)
        for port, text in ((HOST_PORT, "the host"), (HIDDEN_PORT, "the host, hidden")):
            stack.enter_context(listening(made.lab.router, port, text))
        for index, backend in enumerate(made.lab.backends, 1):
            for port in PORTS:
                stack.enter_context(listening(backend, port, f"b{index}:{port}"))
        made.stop()
        made.start(config())
        yield made


def connections(router: Router, name: str) -> int:
    """How many a service has, as ``services`` tells."""
    return int(next(row["connections"] for row in router.json("services") if row["name"] == name))


def test_a_backend_takes_the_ports_of_its_range(router: Router) -> None:
    """Each port of a range comes to the same port of a backend; one beside it to nobody."""
    for port in PORTS:
        assert greeting(router, (RANGE, port)).endswith(f":{port}")
    with pytest.raises(OSError, match="."):  # refused, unreachable or silence: as the host has it
        dial(router.lab.client, (RANGE, PORTS[-1] + 1), timeout=1)
    row = next(each for each in router.json("services") if each["name"] == "range")
    assert row["address"] == f"{RANGE}:{PORTS[0]}-{PORTS[-1]}"


def test_a_whole_address_leaves_the_host_what_is_left_out(router: Router) -> None:
    """Any port comes to a backend; a listener of the host is reached where it is left out."""
    for port in (1, 4711, 65_535):
        with dial(router.lab.client, (WHOLE, port)) as peer:
            assert who(peer) in ("b1", "b2", "b3")
    assert greeting(router, (WHOLE, HOST_PORT)) == "the host"
    (warning,) = router.events("service_hides_listeners")
    assert f"ports {HIDDEN_PORT} of it" in warning["detail"]
    assert f"except_ports = [{HIDDEN_PORT}]" in warning["mend"]


def test_a_source_keeps_its_backend_over_a_restart(router: Router) -> None:
    """Flows of one address go to one backend, also under another daemon and without one."""
    first = _affine(router)
    assert {_affine(router) for _ in range(12)} == {first}
    router.stop(signal.SIGKILL)
    assert {_affine(router) for _ in range(3)} == {first}
    router.start(config())
    with router.counted() as rise:
        assert {_affine(router) for _ in range(6)} == {first}
        assert rise("affinity_used") == 6


def _affine(router: Router) -> str:
    with dial(router.lab.client, (AFFINE, 80)) as peer:
        return who(peer)


def test_a_limit_is_reached_and_left_again(router: Router) -> None:
    """So many connections and no more; closed ones make room, down to exactly none."""
    peers = [dial(router.lab.client, (LIMITED, 80)) for _ in range(LIMIT)]
    for peer in peers:
        peer.sendall(b"established")
        assert receive(peer, 11) == b"established"
    assert connections(router, "limited") == LIMIT
    with router.counted() as rise:
        with pytest.raises(ConnectionRefusedError):
            dial(router.lab.client, (LIMITED, 80))
        assert rise("flow_limit_reached") == 1
    peers.pop().close()
    wait_for(lambda: connections(router, "limited") == LIMIT - 1, 10, "one is forgotten")
    peers.append(dial(router.lab.client, (LIMITED, 80)))
    peers[-1].sendall(b"again")
    assert receive(peers[-1], 5) == b"again"
    for peer in peers:
        peer.close()
    wait_for(lambda: connections(router, "limited") == 0, 10, "all are forgotten")
    assert not router.events("usage_corrected")


def test_sources_are_denied_in_silence(router: Router) -> None:
    """A denied source gets no answer, an allowed one its connection."""
    with router.counted() as rise:
        with pytest.raises(TimeoutError):
            dial(router.lab.client, (DENIED, 80), timeout=0.5)
        assert rise("source_denied") == 1
    with dial(router.lab.client, (ALLOWED, 80)) as peer:
        assert who(peer) in ("b1", "b2", "b3")
