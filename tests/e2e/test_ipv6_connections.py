# SPDX-License-Identifier: Apache-2.0
"""TCP connections over IPv6 through the router as an operator runs it."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import wait_for_ipv6
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, router_in
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.namespace import Namespace
from xdp_router.linux.ethtool import Offload, set_offload

pytest_plugins = ("tests.support.netns",)

SERVICE = "2001:db8:100::1", 443
CLIENT = "2001:db8:c::2"
CONFIG = """
[router]
heartbeat_stale = "2s"
[[service]]
name = "web6"
address = "[2001:db8:100::1]:443"
deadline = "1s"
[[service.backend]]
name = "b1"
address = "[2001:db8:1::2]:8443"
[[service.backend]]
name = "b2"
address = "[2001:db8:2::2]:8443"
[[service]]
name = "web4"
address = "{service}"
deadline = "1s"
[[service.backend]]
name = "old"
address = "{backend}"
"""


def give_ipv6(namespace: Namespace, addresses: dict[str, str], gateway: str = "") -> None:
    """Addresses (/64) by interface, usable at once; a default route."""

    def run() -> None:
        conf = Path("/proc/sys/net/ipv6/conf")
        for name in ("all", "default", *addresses):
            (conf / name / "accept_dad").write_text("0")
            (conf / name / "disable_ipv6").write_text("0")
        with IPRoute() as ipr:
            for name, address in addresses.items():
                (index,) = ipr.link_lookup(ifname=name)
                ipr.addr("add", index=index, address=address, prefixlen=64)
                wait_for_ipv6(ipr, index)
            if gateway:
                ipr.route("replace", dst="default", gateway=gateway, family=socket.AF_INET6)

    namespace.run(run)


@contextlib.contextmanager
def server(namespace: Namespace, address: str, name: str) -> Iterator[None]:
    """Says its name and what it got, until the client has no more to say."""
    with namespace.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, 8443))
        listener.listen(64)

        def talk(peer: socket.socket, client: str) -> None:
            with contextlib.suppress(OSError), peer:
                peer.sendall(f"{name} {client}\n".encode())
                while data := peer.recv(65536):
                    peer.sendall(data)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, where = listener.accept()
                    threading.Thread(target=talk, args=(peer, where[0]), name=name).start()

        thread = threading.Thread(target=serve, name=name)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """A lab with IPv6 beside its IPv4, two servers, and the router attached."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(running_lab(LabSpec((BackendSpec("b1"), BackendSpec("b2")))))
        near = {"client0": "2001:db8:c::1", "be1": "2001:db8:1::1", "be2": "2001:db8:2::1"}
        give_ipv6(lab.router, near)
        give_ipv6(lab.client, {"eth0": CLIENT}, "2001:db8:c::1")
        for number, namespace in enumerate(lab.backends, 1):
            address = f"2001:db8:{number}::2"
            give_ipv6(namespace, {"eth0": address}, f"2001:db8:{number}::1")
            stack.enter_context(server(namespace, address, f"b{number}"))
        placed = stack.enter_context(router_in(lab, private_mounts))
        service, backend = (
            f"{addr}:{port}" for addr, port in (placed.service, lab.addresses.backends[0])
        )
        yield placed.start(CONFIG.format(service=service, backend=backend))


def connect(router: Router) -> socket.socket:
    """A client's connection to the IPv6 service."""
    handle = router.lab.client.socket(socket.AF_INET6)
    handle.settimeout(5)
    handle.connect(SERVICE)
    return handle


def up(router: Router) -> list[str]:
    """Names of the IPv6 backends that get connections."""
    return [row["name"] for row in router.json("backends") if row["up"] and "[" in row["address"]]


def test_backends_are_up(router: Router) -> None:
    """Found by neighbour discovery, shown in brackets."""
    wait_for(lambda: up(router) == ["b1", "b2"], message="both are up")
    rows = router.json("backends")[:2]
    assert [row["address"] for row in rows] == ["[2001:db8:1::2]:8443", "[2001:db8:2::2]:8443"]


def test_a_connection(router: Router) -> None:
    """The backend sees the client's own address; data goes both ways; commands tell of it."""
    with connect(router) as handle:
        client = f"[{CLIENT}]:{handle.getsockname()[1]}"
        name, seen = handle.makefile("rb").readline().decode().split()
        assert name in ("b1", "b2")
        assert seen == CLIENT
        sent = bytes(range(256)) * 4096
        writer = threading.Thread(target=handle.sendall, args=(sent,))
        writer.start()
        got = b""
        while len(got) < len(sent):
            got += handle.recv(65536)
        writer.join()
        assert got == sent
        (row,) = router.json("flows", "--client", client)
        assert (row["client"], row["backend"], row["state"]) == (client, name, "established")
        (row,) = router.json("flows", "--client", CLIENT, "--state", "established")
        told = router.json("explain", client)
        assert (told["client"], told["backend"]) == (client, name)
        assert told["reason"] in ("race_won", "race_joined")


def test_many_connections(router: Router) -> None:
    """Each one is served, and those of IPv4 beside them."""
    for _ in range(50):
        assert who_answers(router) in ("b1", "b2")
        with router.lab.client.connect(router.service) as handle:
            handle.sendall(b"x")
            assert handle.recv(1)
    counters = router.counters()
    assert counters["pass_no_ipv6"] == 0
    assert counters["orphan_reset"] == 0


def who_answers(router: Router) -> str:
    with connect(router) as handle:
        return handle.makefile("rb").readline().decode().split()[0]


def test_a_backend_that_is_gone(router: Router) -> None:
    """Nobody answers neighbour solicitations for it: it is down with that reason, the other one
    serves; it comes back by itself."""
    backend = router.lab.backends[0]

    def address(what: str) -> None:
        with IPRoute() as ipr:
            (index,) = ipr.link_lookup(ifname="eth0")
            ipr.addr(what, index=index, address="2001:db8:1::2", prefixlen=64)

    def forget() -> None:
        with IPRoute() as ipr:
            (index,) = ipr.link_lookup(ifname="be1")
            ipr.neigh("del", dst="2001:db8:1::2", ifindex=index, family=socket.AF_INET6)

    backend.run(lambda: address("del"))
    router.lab.router.run(forget)
    wait_for(lambda: up(router) == ["b2"], 10, "b1 is down")
    row = router.json("backends")[0]
    assert row["reason"] == "no neighbour advertisement from 2001:db8:1::2 on be1"
    assert {who_answers(router) for _ in range(5)} == {"b2"}
    backend.run(lambda: address("add"))
    backend.run(lambda: default_route("2001:db8:1::1"))
    wait_for(lambda: up(router) == ["b1", "b2"], 10, "b1 is up again")


def default_route(gateway: str) -> None:
    """Which the kernel takes away with the address that it leads by."""
    with IPRoute() as ipr:
        ipr.route("replace", dst="default", gateway=gateway, family=socket.AF_INET6)


def test_the_daemon_is_killed_and_followed(router: Router) -> None:
    """An open connection goes on without a daemon and with the next one; new ones, too."""
    with connect(router) as handle:
        answer = handle.makefile("rb")
        assert answer.readline()
        router.stop(signal.SIGKILL)
        handle.sendall(b"alone\n")
        assert answer.readline() == b"alone\n"
        heartbeat = 2.2
        time.sleep(heartbeat)
        assert who_answers(router) in ("b1", "b2")
        router.start(router.config.read_text())
        handle.sendall(b"followed\n")
        assert answer.readline() == b"followed\n"
        wait_for(lambda: up(router) == ["b1", "b2"], message="both are up")
        assert who_answers(router) in ("b1", "b2")


def test_the_kernel_takes_over(router: Router) -> None:
    """Backends that XDP cannot send to are down while the kernel does not forward IPv6, with the
    mend; with it the kernel forwards, and held first packets, too, arrive."""

    def gro(on: bool) -> None:
        for namespace in router.lab.backends:
            namespace.run(lambda: set_offload("eth0", Offload.GRO, on))

    def forwarding(value: str) -> None:
        path = Path("/proc/sys/net/ipv6/conf/all/forwarding")
        router.lab.router.run(lambda: path.write_text(value))

    wait_for(lambda: up(router) == ["b1", "b2"], message="both are up")
    forwarding("0")
    gro(False)
    wait_for(lambda: up(router) == [], 10, "none is up")
    reason = router.json("backends")[0]["reason"]
    assert "IPv6 forwarding is off on client0" in reason
    assert "sysctl -w net.ipv6.conf." in reason
    forwarding("1")
    wait_for(lambda: up(router) == ["b1", "b2"], 10, "the kernel takes over")
    before = router.counters()["handed_to_kernel"]
    with connect(router) as handle:
        answer = handle.makefile("rb")
        assert answer.readline()
        handle.sendall(b"by the kernel\n")
        assert answer.readline() == b"by the kernel\n"
        client = f"[{CLIENT}]:{handle.getsockname()[1]}"
        assert router.json("explain", client)["reason"] == "race_won"
    assert router.counters()["handed_to_kernel"] > before
    gro(True)
