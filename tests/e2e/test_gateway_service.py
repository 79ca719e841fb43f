# SPDX-License-Identifier: Apache-2.0
"""Services with ``handler = "gateway"``: a client, the router, a gateway beside it, a backend."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.adapters.local_routes import LocalRoutes
from xdp_router.core.address import parse_addr
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1", kind="http"),))
TAKEN_UP = {4: ("198.18.100.1", 443), 6: ("2001:db8:100::9", 80)}
"""The first at the address of a service with backends, the second at one of its own."""
OTHER_PORT = 8081
READY_S = 40.0

CONFIG = f"""{calm_config(SPEC)}
[gateway]
workers = 2
drain_timeout = "1s"
access_log = false
[[listener]]
name = "web4"
type = "http"
address = "127.0.0.1:8443"
mode = "inline"
[[listener.backend]]
address = "198.19.1.2:8080"
[[listener]]
name = "web6"
type = "http"
address = "[::1]:8443"
mode = "inline"
[[listener.backend]]
address = "[2001:db8:19:1::2]:8080"
[[service]]
name = "up4"
address = "198.18.100.1:443"
handler = "gateway"
listener = "web4"
[[service]]
name = "up6"
address = "[2001:db8:100::9]:80"
handler = "gateway"
listener = "web6"
"""


class Gateway:
    """``xdp-routerd gateway`` in the router's namespace, with the control socket that the router
    looks for."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._log = router.directory / "gateway.log"
        self.control = router.control.with_name("gateway.sock")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Return when it serves; a gateway that runs hands over to it."""
        argv = [sys.executable, "-m", "xdp_router.daemon.main", "gateway"]
        argv += ["--config", str(self._router.config), "--control", str(self.control)]
        ready = self._ready()
        with self._log.open("ab") as log:
            self._processes.append(
                self._router.lab.router.spawn(
                    [*argv, "--log-format", "json"], stdout=log, stderr=log
                )
            )
        wait_for(lambda: self._ready() > ready, READY_S, "the gateway serves")

    def _ready(self) -> int:
        text = self._log.read_text() if self._log.exists() else ""
        lines = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
        return sum(line["event"] == "gateway_ready" for line in lines)

    def kill(self) -> None:
        """As a crash would."""
        process = self._processes.pop()
        process.kill()
        process.wait()

    def close(self) -> None:
        """Stop all of them."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(READY_S)


@contextlib.contextmanager
def taken_up(mounts: Path, *options: str) -> Iterator[tuple[Router, Gateway]]:
    """A router and a gateway that serves what the router takes up."""
    with routed_lab(mounts, SPEC, CONFIG, *options) as router:
        gateway = Gateway(router)
        try:
            gateway.start()
            wait_for(lambda: has_sockets(router) == [True, True], READY_S, "sockets are there")
            yield router, gateway
        finally:
            gateway.close()


def has_sockets(router: Router) -> list[bool]:
    """Of both services, whether connections are led to a socket."""
    rows = {row["name"]: row["gateway"] for row in router.ask("services")}
    return [rows[name]["sockets"] for name in ("up4", "up6")]


def dial(router: Router, family: int, where: tuple[str, int]) -> socket.socket:
    """A connection of the client's."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    peer = router.lab.client.socket(kind, socket.SOCK_STREAM)
    peer.settimeout(10)
    try:
        peer.connect(where)
    except OSError:
        peer.close()
        raise
    return peer


def get(router: Router, family: int, where: tuple[str, int] | None = None) -> bytes:
    """The answer of the backend behind the gateway, or behind another service. Raises OSError."""
    with dial(router, family, where or TAKEN_UP[family]) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: a.example.com\r\nConnection: close\r\n\r\n")
        found = b""
        while data := peer.recv(65536):
            found += data
        return found


def is_refused(router: Router, family: int, where: tuple[str, int]) -> bool:
    """Whether a connection is answered by a RST at once."""
    try:
        dial(router, family, where).close()
    except ConnectionRefusedError:
        return True
    return False


def local(router: Router) -> list[bool]:
    """Of both addresses, whether the router's host takes them."""

    def look() -> list[bool]:
        with LocalRoutes() as routes:
            return [routes.is_local(parse_addr(where[0])) for where in TAKEN_UP.values()]

    return router.lab.router.run(look)


def on_interfaces(router: Router) -> set[int]:
    """Addresses that the router's interfaces have."""

    def look() -> set[int]:
        with LocalRoutes() as routes:
            return routes.on_interfaces()

    return router.lab.router.run(look)


class Clients:
    """Connections one after the other, each with an answer; failures are kept."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._end = threading.Event()
        self.done = 0
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                answer = get(self._router, 4)
                if b" 200 " not in answer:
                    self.failed.append(repr(answer[:80]))
            except OSError as error:
                self.failed.append(repr(error))
            self.done += 1

    def some_more(self, count: int = 10) -> None:
        """Return when so many more have had their answer, or none."""
        wanted = self.done + count
        wait_for(lambda: self.done >= wanted, READY_S, "clients go on")


def test_connections_come_to_the_gateway(private_mounts: Path) -> None:
    """Both families, by no address of an interface; no other port is answered there."""
    with taken_up(private_mounts) as (router, gateway):
        before = router.counters()
        assert [b" 200 " in get(router, family) for family in (4, 6)] == [True, True]
        after = router.counters()
        assert after["gateway_steered"] - before["gateway_steered"] >= 2
        assert after["pass_gateway"] - before["pass_gateway"] >= 6
        assert not {parse_addr(where[0]) for where in TAKEN_UP.values()} & on_interfaces(router)
        assert local(router) == [True, True]

        shown = {row["name"]: row for row in router.json("services")}
        assert shown["up4"]["gateway"] | {"reason": ""} == shown["up4"]["gateway"]
        assert shown["up4"]["gateway"]["listener"] == "web4"
        assert shown["web"]["gateway"] is None
        assert "web4" in router.cli("services").stdout
        assert router.json("flows") == []
        doctor = router.run(
            [
                *(sys.executable, "-m", "xdp_router.cli.main", "--control", str(router.control)),
                *("--pins", str(router.pins), "doctor", "--json"),
            ]
        )
        findings = json.loads(doctor.stdout)["findings"]
        about = {each["subject"] for each in findings if each["severity"] != "ok"}
        assert not about & {"up4", "up6"}

        # The service with backends at one of the addresses is as it was.
        assert b" 200 " in get(router, 4, router.service)
        assert router.counters()["gateway_steered"] == after["gateway_steered"]

        # What else listens on this host is not to be found at these addresses.
        for family, kind, host in ((4, socket.AF_INET, "0.0.0.0"), (6, socket.AF_INET6, "::")):
            with router.lab.router.socket(kind, socket.SOCK_STREAM) as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind((host, OTHER_PORT))
                other.listen()
                near = router.lab.addresses_of(6 if family == 6 else 4).client_router
                dial(router, family, (near, OTHER_PORT)).close()
                assert is_refused(router, family, (TAKEN_UP[family][0], OTHER_PORT))
        assert router.counters()["taken_up_refused"] - after["taken_up_refused"] == 2

        # Nor at the service's own port while there is no gateway.
        with router.lab.router.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("0.0.0.0", TAKEN_UP[4][1]))
            other.listen()
            gateway.kill()
            wait_for(lambda: has_sockets(router) == [False, False], READY_S, "sockets are gone")
            assert is_refused(router, 4, TAKEN_UP[4])
            assert is_refused(router, 6, TAKEN_UP[6])
            gateway.start()
            wait_for(lambda: has_sockets(router) == [True, True], READY_S, "sockets are back")
            assert b" 200 " in get(router, 4)
        assert router.stop() == 0
        assert local(router) == [False, False]
        assert router.left_behind() == []


def test_restarts_of_either_lose_no_connection(private_mounts: Path) -> None:
    """A gateway that hands over, a daemon that is killed, one that takes over; then detach."""
    with taken_up(private_mounts) as (router, gateway):
        with Clients(router) as clients:
            clients.some_more()
            gateway.start()
            clients.some_more()
            router.stop(signal.SIGKILL)
            clients.some_more()
            router.start(CONFIG)
            clients.some_more()
            router.stop(signal.SIGKILL)
            clients.some_more()
        assert clients.failed == []
        assert b" 200 " in get(router, 6)
        router.close()
        assert local(router) == [False, False]
        assert router.left_behind() == []
        with pytest.raises(OSError, match="unreachable|No route"):
            get(router, 4)
