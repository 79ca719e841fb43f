# SPDX-License-Identifier: Apache-2.0
"""What is said of the kernel's IPv6 forwarding is what this kernel does with real packets."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6

from tests.support.frames import Hop, ethernet
from tests.support.fresh_netns import (
    Wire,
    enter_netns,
    in_fresh_netns,
    make_wire,
    open_netns,
    wait_for_ipv6,
)
from xdp_router.adapters.host import mac_bytes
from xdp_router.adapters.kernel_forwarding import mend, own_changes
from xdp_router.adapters.kernel_forwarding_ipv6 import InterfaceFacts, obstacles, read_facts
from xdp_router.adapters.sysctl import SysctlError

CLIENT, BACKEND, SERVICE = "2001:db8:c::2", "2001:db8:1::2", "2001:db8:100::1"
CL = "cl.7"  # a dot, as VLAN interfaces have
CONF = Path("/proc/sys/net/ipv6/conf")
Forwards = Callable[[str], bool]


def write(interface: str, key: str, value: int) -> None:
    (CONF / interface / key).write_text(str(value))


def _open_at(wire: Wire, interface: str) -> socket.socket:
    here = open_netns()
    try:
        enter_netns(wire.far_ns)
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
        opened.bind((interface, 0x86DD))
        opened.settimeout(0.1)
        return opened
    finally:
        enter_netns(here)
        os.close(here)


@contextlib.contextmanager
def wires() -> Iterator[tuple[IPRoute, Wire, Forwards]]:
    """Two wires; and whether a packet from a source comes through, client's to backend's."""
    with IPRoute() as ipr, contextlib.ExitStack() as undo:
        ipr.link("set", index=1, state="up")
        client = make_wire(ipr, CL, "2001:db8:c::1", CLIENT)
        backend = make_wire(ipr, "be", "2001:db8:1::1", BACKEND)
        for wire in (client, backend):
            undo.callback(os.close, wire.far_ns)
        far_mac = "02:00:00:00:01:02"
        backend.far_link(address=far_mac)
        ipr.neigh(*("set",), dst=BACKEND, lladdr=far_mac, ifindex=backend.near, state="permanent")
        near = ipr.link("get", index=client.near)[0].get_attr("IFLA_ADDRESS")
        hop = Hop(b"\2\0\0\0\0\7", mac_bytes(near))
        sender = undo.enter_context(_open_at(client, f"{CL}p"))
        tap = undo.enter_context(_open_at(backend, "bep"))
        number = itertools.count(1)

        def forwards(source: str) -> bool:
            port = next(number)
            packet = IPv6(src=source, dst=BACKEND, hlim=9) / UDP(sport=port, dport=9)
            sender.send(ethernet(hop, bytes(packet), proto=0x86DD))
            while True:
                try:
                    got = IPv6(tap.recv(2048)[14:])
                except TimeoutError:
                    return False
                if got.hlim == 8 and UDP in got and got[UDP].sport == port:
                    return True

        yield ipr, client, forwards


@in_fresh_netns
def test_all_settings() -> None:
    """Forwarding of all interfaces, or of this one by force, and IPv6 not off there; its own
    ``forwarding`` decides nothing. The kernel does what is said."""
    with wires() as (_, _, forwards):
        forces = (0, 1) if (CONF / CL / "force_forwarding").exists() else (0,)
        switches = ((0, 1), (0, 1), forces, (0, 1))
        for everywhere, own, forced, disabled in itertools.product(*switches):
            write("all", "forwarding", everywhere)
            write(CL, "forwarding", own)
            if len(forces) > 1:
                write(CL, "force_forwarding", forced)
            write(CL, "disable_ipv6", disabled)
            said = not obstacles(read_facts(CL))
            assert said == bool((everywhere or forced) and not disabled)
            assert forwards(CLIENT) == said, (everywhere, own, forced, disabled)


@in_fresh_netns
@pytest.mark.parametrize("place", ["nowhere", "by a route", "local", "local on this side"])
def test_replies(place: str) -> None:
    """A service's address is a source like any other, wherever it is."""
    with wires() as (ipr, client, forwards):
        if place == "by a route":
            ipr.route("add", dst="default", gateway=BACKEND, family=10)
        elif place != "nowhere":
            index = 1 if place == "local" else client.near
            ipr.addr("add", index=index, address=SERVICE, prefixlen=128)
            wait_for_ipv6(ipr, index)
        write("all", "forwarding", 1)
        assert obstacles(read_facts(CL)) == []
        assert forwards(SERVICE)


@in_fresh_netns
def test_the_mend_mends() -> None:
    """After its commands the kernel forwards; they are about that interface only. That IPv6 is
    off there is an operator's will, and nothing that is changed without one."""
    if not (CONF / "all/force_forwarding").exists():
        pytest.skip("before Linux 6.17 there is no mend for one interface")
    with wires() as (_, _, forwards):
        write("all", "forwarding", 0)
        found = obstacles(read_facts(CL))
        assert own_changes(CL, found) == found[0].changes
        write(CL, "disable_ipv6", 1)
        found = obstacles(read_facts(CL))
        changes = [change for each in found for change in each.changes]
        assert [name for name, _ in changes] == [
            "net.ipv6.conf.cl/7.disable_ipv6",
            "net.ipv6.conf.cl/7.force_forwarding",
        ]
        assert own_changes(CL, found) == ()
        for name, value in changes:
            Path("/proc/sys", name.translate(str.maketrans("./", "/."))).write_text(value)
        assert obstacles(read_facts(CL)) == []
        assert forwards(CLIENT)


def test_a_kernel_without_the_switch() -> None:
    """There all interfaces have to forward: said with what that does, and not done for anybody."""
    (found,) = obstacles(InterfaceFacts("eth0", present=True))
    assert found.mend == "sysctl -w net.ipv6.conf.all.forwarding=1"
    assert "accept_ra=2" in found.text
    assert own_changes("eth0", [found]) == ()


def test_a_kernel_without_ipv6() -> None:
    """It has no sysctl that would help, and is booted otherwise."""
    (found,) = obstacles(InterfaceFacts("eth0", present=False))
    assert "without IPv6" in found.text
    assert mend(found.changes) == ""
    assert found.mend == "boot it without ipv6.disable=1"
    assert own_changes("eth0", [found]) == ()


@in_fresh_netns
def test_an_interface_that_is_gone() -> None:
    """An error that names the sysctl."""
    with pytest.raises(SysctlError, match=r"net\.ipv6\.conf\.none\."):
        read_facts("none")
