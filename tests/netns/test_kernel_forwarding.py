# SPDX-License-Identifier: Apache-2.0
"""What is said of the kernel's forwarding is what this kernel does, over all settings."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire
from xdp_router.adapters.host import Rtnl
from xdp_router.adapters.kernel_forwarding import (
    Obstacle,
    forward_obstacles,
    how_to_mend,
    mend,
    own_changes,
    read_facts,
    reply_obstacles,
    source_route,
)
from xdp_router.adapters.sysctl import SysctlError
from xdp_router.core.address import parse_addr

CLIENT, BACKEND = "198.18.0.2", "198.18.1.2"
SERVICE, OTHER = "198.18.100.1", "198.18.100.2"
BE = "be.7"  # a dot, as VLAN interfaces have


def write(interface: str, key: str, value: int) -> None:
    Path("/proc/sys/net/ipv4/conf", interface, key).write_text(str(value))


def forwards(ipr: IPRoute, wire: Wire, source: str, target: str) -> bool:
    """The kernel's own verdict about a packet that came in by a wire."""
    try:
        ipr.route("get", dst=target, src=source, iif=wire.near)
    except NetlinkError:
        return False
    return True


def wires(ipr: IPRoute) -> tuple[Wire, Wire]:
    ipr.link("set", index=1, state="up")
    write("default", "rp_filter", 0)
    write("all", "rp_filter", 0)
    client = make_wire(ipr, "cl", "198.18.0.1", CLIENT)
    return client, make_wire(ipr, BE, "198.18.1.1", BACKEND)


def replies(addrs: tuple[str, ...] = (SERVICE,)) -> tuple[Obstacle, ...]:
    with Rtnl() as rtnl:
        sources = [source_route(rtnl, parse_addr(addr)) for addr in addrs]
        index = rtnl.link(BE).ifindex
    return tuple(reply_obstacles(read_facts(BE, index), sources))


@in_fresh_netns
def test_requests() -> None:
    """Forwarding on the interface that they come in by, and nothing else, decides."""
    with IPRoute() as ipr:
        client, _ = wires(ipr)
        for here, there in itertools.product((0, 1), repeat=2):
            write("cl", "forwarding", here)
            write(BE, "forwarding", there)
            obstacles = forward_obstacles(read_facts("cl", client.near))
            assert (not obstacles) == forwards(ipr, client, CLIENT, BACKEND) == bool(here)
            if obstacles:
                assert mend(obstacles[0].changes) == "sysctl -w net.ipv4.conf.cl.forwarding=1"


PLACES = ("nowhere", "by a route", "by this side", "local", "local on this side")


@in_fresh_netns
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("addressed", [True, False])
def test_replies(place: str, addressed: bool) -> None:
    """Where the service address is, and three sysctls of two interfaces: nothing is said to be
    forwarded that the kernel drops; of the rest only what a mend need not cover."""
    with IPRoute() as ipr:
        _, backend = wires(ipr)
        if place == "by a route":
            ipr.route("add", dst="default", gateway=CLIENT)
        elif place == "by this side":
            ipr.route("add", dst="default", gateway=BACKEND)
        elif place != "nowhere":
            index = 1 if place == "local" else backend.near
            ipr.addr("add", index=index, address=SERVICE, prefixlen=32)
        if not addressed:
            ipr.addr("del", index=backend.near, address="198.18.1.1", prefixlen=24)
        both = stricter = 0
        for forwarding, local_all, local, rp_all, rp in itertools.product(
            (0, 1), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2)
        ):
            write(BE, "forwarding", forwarding)
            write("all", "accept_local", local_all)
            write(BE, "accept_local", local)
            write("all", "rp_filter", rp_all)
            write(BE, "rp_filter", rp)
            said = not replies()
            done = forwards(ipr, backend, SERVICE, CLIENT)
            both += done and said
            stricter += done and not said
            assert done or not said, (forwarding, local_all, local, rp_all, rp)
        assert both >= 3
        # A strict rp_filter lets pass what is local on that very side: not relied upon.
        assert stricter == 0 or place == "local on this side" or not addressed


@in_fresh_netns
@pytest.mark.parametrize("place", ["nowhere", "by a route", "local"])
def test_the_mend_mends(place: str) -> None:
    """After its commands the kernel forwards, and nothing more is said."""
    with IPRoute() as ipr:
        _, backend = wires(ipr)
        if place == "by a route":
            ipr.route("add", dst="default", gateway=CLIENT)
        elif place == "local":
            ipr.addr("add", index=1, address=SERVICE, prefixlen=32)
        for rp_all, rp in ((0, 1), (1, 0), (2, 1), (0, 0)):
            write(BE, "forwarding", 0)
            write(BE, "accept_local", 0)
            write("all", "rp_filter", rp_all)
            write(BE, "rp_filter", rp)
            found = replies()
            assert found
            for name, value in (change for each in found for change in each.changes):
                path = name.translate(str.maketrans("./", "/."))
                Path("/proc/sys", path).write_text(value)
            assert not replies()
            assert forwards(ipr, backend, SERVICE, CLIENT)


@in_fresh_netns
def test_what_may_be_set() -> None:
    """Only the interface's own sysctls; if those are not enough, none of them."""
    with IPRoute() as ipr:
        _, backend = wires(ipr)
        write("all", "rp_filter", 1)
        facts = read_facts(BE, backend.near)
        found = replies()
        assert [name for name, _ in own_changes(BE, forward_obstacles(facts))] == [
            "net.ipv4.conf.be/7.forwarding"
        ]
        assert any("conf.all" in each.mend for each in found)
        assert own_changes(BE, found) == ()


@in_fresh_netns
def test_texts_name_cause_and_addresses() -> None:
    """Interface, service addresses, and what the kernel does."""
    with IPRoute() as ipr:
        wires(ipr)
        for addr in (SERVICE, OTHER):
            ipr.addr("add", index=1, address=addr, prefixlen=32)
        write(BE, "forwarding", 1)
        (found,) = replies((SERVICE, OTHER))
        assert found.text == (
            f"service address {SERVICE} (and 1 others) is an address of this host, and "
            f"accept_local is off on {BE}: the kernel drops replies that bear it as their source"
        )
        assert found.mend == "sysctl -w net.ipv4.conf.be/7.accept_local=1"


@in_fresh_netns
def test_an_interface_that_is_gone() -> None:
    """An error that names the sysctl."""
    with pytest.raises(SysctlError, match=r"net\.ipv4\.conf\.none\."):
        read_facts("none", 99)


def test_every_obstacle_says_what_to_do() -> None:
    """None is made without; what mends several is said once each, commands before words."""
    with pytest.raises(ValueError, match="nothing is said that mends it"):
        Obstacle("so it is", ())
    forwarding = Obstacle("off", (("net.a", "1"),))
    gone = Obstacle("gone", (), "ip link show a")
    assert gone.mend == "ip link show a"
    both = [gone, forwarding, forwarding, Obstacle("off", (("net.b", "2"),)), gone]
    assert how_to_mend(both) == "sysctl -w net.a=1 net.b=2; ip link show a"
    assert how_to_mend(()) == ""
