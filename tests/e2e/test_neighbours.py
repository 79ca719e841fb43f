# SPDX-License-Identifier: Apache-2.0
"""Neighbours and routes of the backends change while connections run; same-subnet clients."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import (
    dial,
    echo_intact,
    random_bytes,
    stream_to,
    who,
    who_answers,
)
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from xdp_router.lab import BackendSpec, Lab, LabSpec, Namespace, links
from xdp_router.lab.links import set_up, with_netlink

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2")))
B1 = SPEC.addresses.backends[0][0]
B2_SUBNET_HOST = "198.19.2.77"


@pytest.fixture(params=["native", "generic"])
def router(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[Router]:
    """A router of this test's own, in each mode."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        yield made.start(
            # Streams wait for a neighbour that is lost, however long that takes.
            calm_config(SPEC, keys="health = false"),
            "--xdp-mode",
            request.param,
        )


def down_reason(router: Router, backend: str) -> str | None:
    """Why a backend is down; None: it is up."""
    (row,) = (row for row in router.ask("backends") if row["name"] == backend)
    return None if row["up"] else row["reason"]


def wait_up(router: Router, backend: str) -> None:
    wait_for(lambda: down_reason(router, backend) is None, 12, f"{backend} is up")


def wait_down(router: Router, backend: str, *texts: str) -> None:
    """Down, and the reason has all of these words in it."""

    def look() -> bool:
        reason = down_reason(router, backend)
        return reason is not None and all(text in reason for text in texts)

    wait_for(look, 12, f"{backend} is down: {texts}")


def index(netlink: Any, name: str) -> int:
    return int(netlink.link_lookup(ifname=name)[0])


def intact(peer: socket.socket, size: int = 200_000) -> bool:
    """The stream goes on, each byte of it."""
    return echo_intact(peer, random_bytes(size))


def announce(backend: Namespace, mac: bytes, address: str) -> None:
    """A gratuitous ARP request, as a host sends that has taken over an address."""
    raw = socket.inet_aton(address)
    frame = b"\xff" * 6 + mac + b"\x08\x06" + bytes.fromhex("0001080006040001")
    frame += mac + raw + bytes(6) + raw

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.bind(("eth0", 0))
            sock.send(frame)

    backend.run(send)


def change_mac(backend: Namespace, mac: str) -> None:
    with_netlink(
        backend, lambda netlink: netlink.link("set", index=index(netlink, "eth0"), address=mac)
    )


def test_a_backend_gets_another_mac_and_says_so(router: Router) -> None:
    """By gratuitous ARP: the stream goes on at once."""
    backend = router.lab.backends[0]
    with stream_to(router, "b1") as peer:
        router.lab.router.run(lambda: _write("net/ipv4/conf/all/arp_accept", "1"))
        change_mac(backend, "02:58:52:aa:00:01")
        announce(backend, bytes.fromhex("025852aa0001"), B1)
        assert intact(peer)
        rows = {row["name"]: row for row in router.ask("backends")}
        assert rows["b1"]["next_hop_mac"] == "02:58:52:aa:00:01"


def _write(name: str, value: str) -> None:
    (Path("/proc/sys") / name).write_text(value)


def test_a_backend_gets_another_mac_in_silence(router: Router) -> None:
    """The kernel notices when it asks again: the stream goes on then."""
    backend = router.lab.backends[0]
    with stream_to(router, "b1") as peer:
        router.lab.router.run(lambda: _write("net/ipv4/neigh/be1/base_reachable_time_ms", "1000"))
        router.lab.router.run(lambda: _write("net/ipv4/neigh/be1/delay_first_probe_time", "1"))
        # The entry that is there has its timer; the next one goes by the new times.
        with_netlink(
            router.lab.router,
            lambda netlink: netlink.neigh("del", dst=B1, ifindex=index(netlink, "be1")),
        )
        assert intact(peer)
        change_mac(backend, "02:58:52:aa:00:02")

        def followed() -> bool:
            rows = {row["name"]: row for row in router.ask("backends")}
            return bool(rows["b1"]["next_hop_mac"] == "02:58:52:aa:00:02")

        wait_for(followed, 20, "the kernel has asked again")
        assert intact(peer)


def test_a_neighbour_goes_away_and_comes_back(router: Router) -> None:
    """Down with its reason, others go on, and it is not asked for more than once a second."""
    backend = router.lab.backends[0]
    with stream_to(router, "b1") as peer:
        _deafen(backend, True)
        with_netlink(
            router.lab.router,
            lambda netlink: netlink.neigh("del", dst=B1, ifindex=index(netlink, "be1")),
        )
        wait_down(router, "b1", "no ARP answer from 198.19.1.2 on be1")
        assert {who_answers(router) for _ in range(5)} == {"b2"}
        with _requests(backend) as tap:
            time.sleep(3)
            seen = 0
            with contextlib.suppress(BlockingIOError):
                while tap.recv(100):
                    seen += 1
        assert seen <= 8
        _deafen(backend, False)
        wait_up(router, "b1")
        assert intact(peer)
    stream_to(router, "b1").close()


def _deafen(backend: Namespace, deaf: bool) -> None:
    """No ARP from here on, or again."""
    with_netlink(
        backend,
        lambda netlink: netlink.link("set", index=index(netlink, "eth0"), arp=not deaf),
    )


@contextlib.contextmanager
def _requests(backend: Namespace) -> Iterator[socket.socket]:
    def tap() -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
        sock.bind(("eth0", 0x0806))
        sock.setblocking(False)
        return sock

    with backend.run(tap) as sock:
        yield sock


def second_wire(lab: Lab, name: str) -> None:
    """Another wire to the first backend, with a subnet of its own."""
    links.connect(
        links.End(lab.router, name, "02:58:52:bb:00:01", ("198.19.99.1/24",)),
        links.End(lab.backends[0], "eth9", "02:58:52:bb:00:02", ("198.19.99.2/24",)),
    )


def route(netlink: Any, how: str, **to: Any) -> None:
    netlink.route(how, dst=f"{B1}/32", **to)


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_a_route_moves_to_another_attached_interface(private_mounts: Path, mode: str) -> None:
    """There and back, by another gateway, too: the stream goes on each time."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as router:
        second_wire(lab, "alt1")
        names = (*lab.router_interfaces, "alt1")
        router.start(calm_config(SPEC), "--xdp-mode", mode, interfaces=names)
        with stream_to(router, "b1") as peer:
            with_netlink(lab.router, lambda n: route(n, "add", gateway="198.19.99.2"))
            # Its answers may come by either way.
            with_netlink(
                lab.backends[0], lambda n: n.route("replace", dst="default", gateway="198.19.99.1")
            )

            def via() -> str:
                (row,) = (row for row in router.ask("backends") if row["name"] == "b1")
                return str(row["interface"])

            wait_for(lambda: via() == "alt1", 10, "the path follows")
            assert intact(peer)
            with_netlink(lab.router, lambda n: route(n, "del", gateway="198.19.99.2"))
            wait_for(lambda: via() == "be1", 10, "the path follows back")
            assert intact(peer)


def test_a_route_moves_to_an_interface_that_is_not_attached(router: Router) -> None:
    """Down, and the reason names it; up when the route is back; the stream goes on."""
    lab = router.lab
    second_wire(lab, "alt1")
    with stream_to(router, "b1") as peer:
        with_netlink(lab.router, lambda n: route(n, "add", gateway="198.19.99.2"))
        wait_down(router, "b1", "its route leaves by interface alt1, which is not attached")
        assert {who_answers(router) for _ in range(5)} == {"b2"}
        with_netlink(lab.router, lambda n: route(n, "del", gateway="198.19.99.2"))
        wait_up(router, "b1")
        assert intact(peer)


def test_a_route_is_deleted(router: Router) -> None:
    """Down for want of a route; a new one brings it back, even by another gateway."""
    lab = router.lab
    subnet = "198.19.1.0/24"
    with stream_to(router, "b1") as peer:
        with_netlink(
            lab.router,
            lambda n: n.route("del", dst=subnet, oif=index(n, "be1"), scope=253, proto=2),
        )
        wait_down(router, "b1", f"no route to {B1}")
        with_netlink(
            lab.router,
            lambda n: n.route("add", dst=subnet, oif=index(n, "be1"), scope="link"),
        )
        wait_up(router, "b1")
        assert intact(peer)
    set_up(lab.router, "be1", False)
    wait_down(router, "b1")
    set_up(lab.router, "be1", True)
    wait_up(router, "b1")


def neighbour_of_b2(lab: Lab) -> None:
    """Clients come from b2's own subnet, too: a second address of b2 stands for them."""
    with_netlink(
        lab.backends[1],
        lambda n: n.addr("add", index=index(n, "eth0"), address=B2_SUBNET_HOST, prefixlen=24),
    )


def test_a_client_in_a_backends_subnet(router: Router) -> None:
    """That backend is passed over, counted, told once; explain and doctor have it."""
    lab = router.lab
    neighbour_of_b2(lab)
    wait_up(router, "b2")
    for _ in range(5):
        with dial(lab.backends[1], router.service, source=(B2_SUBNET_HOST, 0)) as peer:
            assert who(peer) == "b1"
            assert intact(peer, 50_000)
            port = peer.getsockname()[1]
    (line,) = router.events("client_beside_backend")
    assert (line["service"], line["backends"]) == ("web", ["b2"])
    assert "route to the client's subnet by this router" in line["mend"]
    assert router.ask("status")["engine"]["client_beside_backend"] == 5
    told = router.cli("explain", f"{B2_SUBNET_HOST}:{port}").stdout
    assert "b2 is in the client's subnet" in told
    assert "client_beside_backend" in router.cli("doctor", "--json").stdout
    assert router.events("decision")[-1]["unfit"] == {"b2": "beside_client"}


def test_a_backend_as_client_of_its_own_service(router: Router) -> None:
    """It gets the other one, also from XDP alone; with nobody else it is refused, and told why."""
    lab = router.lab
    for _ in range(3):
        with dial(lab.backends[0], router.service) as peer:
            assert who(peer) == "b2"
            assert intact(peer, 50_000)
    assert router.ask("status")["engine"]["client_is_backend"] == 3
    set_up(lab.router, "be2", False)
    wait_down(router, "b2")
    with pytest.raises(ConnectionRefusedError):
        dial(lab.backends[0], router.service)

    def told() -> bool:
        last = router.events("decision")[-1]
        return (last["reason"], last["unfit"]) == ("no_candidate", {"b1": "client_itself"})

    wait_for(told, 2, "the log line")
    assert who_answers(router) == "b1"
