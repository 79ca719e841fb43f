# SPDX-License-Identifier: Apache-2.0
"""Sysctls of a namespace of its own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_sysctls_read_only
from xdp_router.adapters import sysctl
from xdp_router.adapters.sysctl import Change, SysctlError, Sysctls

RESERVED = "net.ipv4.ip_local_reserved_ports"
FORWARD = "net.ipv4.ip_forward"


@in_fresh_netns
def test_value_is_set_and_put_back() -> None:
    """A changed value holds while the object lives and is restored after it."""
    before = sysctl.read(FORWARD)
    other = "0" if before == "1" else "1"
    with Sysctls() as sysctls:
        sysctls.set(FORWARD, other)
        sysctls.set(FORWARD, other)
        assert sysctl.read(FORWARD) == other
    assert sysctl.read(FORWARD) == before


@in_fresh_netns
def test_somebody_elses_later_change_is_left_alone() -> None:
    """What an operator set meanwhile is not overwritten on exit."""
    name = "net.ipv4.ip_default_ttl"
    with Sysctls() as sysctls:
        sysctls.set(name, "61")
        with Sysctls() as operator:
            operator.set(name, "62")
            operator._old.clear()
    assert sysctl.read(name) == "62"


@in_fresh_netns
def test_reserved_ports_are_merged_and_only_ours_are_removed() -> None:
    """Ports reserved before, or meanwhile, by others stay reserved on exit."""
    with Sysctls() as others:
        others.set(RESERVED, "8080,40010-40012")
        ours = Sysctls()
        assert ours.reserve_ports(40000, 40020) == []
        assert sysctl.read(RESERVED) == "8080,40000-40020"
        others.set(RESERVED, "8080,9148,40000-40020")
        ours.restore()
        assert sysctl.read(RESERVED) == "8080,9148,40010-40012"


@in_fresh_netns
def test_empty_list_is_empty_again() -> None:
    """Where nothing was reserved nothing stays reserved."""
    assert sysctl.read(RESERVED) == ""
    with Sysctls() as sysctls:
        sysctls.reserve_ports(40000, 40999)
        assert sysctl.read(RESERVED) == "40000-40999"
    assert sysctl.read(RESERVED) == ""


@in_fresh_netns
def test_reserved_ports_are_not_given_out() -> None:
    """No connection of this host gets a probe port as its source port."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
    with Sysctls() as sysctls:
        sysctls.set("net.ipv4.ip_local_port_range", "40000 40003")
        sysctls.reserve_ports(40000, 40002)
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            assert first.getsockname()[1] == 40003
            with pytest.raises(OSError, match="in use"):
                second.bind(("127.0.0.1", 0))


@in_fresh_netns
def test_reserved_ports_count_for_both_families() -> None:
    """The list is called IPv4's, and IPv6 sockets get none of its ports either, bound or not."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
    with Sysctls() as sysctls, socket.create_server(("::1", 50_000), family=socket.AF_INET6):
        sysctls.set("net.ipv4.ip_local_port_range", "40000 40003")
        sysctls.reserve_ports(40000, 40002)
        with socket.socket(socket.AF_INET6) as first, socket.socket(socket.AF_INET6) as second:
            first.connect(("::1", 50_000))
            assert first.getsockname()[1] == 40003
            with pytest.raises(OSError, match="in use"):
                second.bind(("::1", 0))


@in_fresh_netns
def test_ipv6_listener_in_the_range_is_warned_about() -> None:
    """The same for a server that has IPv6 only."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
    with socket.create_server(("::1", 40_005), family=socket.AF_INET6), Sysctls() as sysctls:
        (warning,) = sysctls.reserve_ports(40_000, 40_010)
    assert "TCP port 40005" in warning


@in_fresh_netns
def test_listener_in_the_range_is_warned_about() -> None:
    """A local server on a probe port is named; one beside the range is not."""
    with socket.socket() as inside, socket.socket() as beside, Sysctls() as sysctls:
        inside.bind(("0.0.0.0", 40005))
        inside.listen()
        beside.bind(("0.0.0.0", 40011))
        beside.listen()
        warnings = sysctls.reserve_ports(40000, 40010)
    assert len(warnings) == 1
    assert "TCP port 40005" in warnings[0]


@in_fresh_netns
def test_ports_of_a_predecessor_are_given_back_with_ones_own() -> None:
    """Only those that are still reserved count."""
    Sysctls().set(RESERVED, "50,40000-40005")
    sysctls = Sysctls()
    assert sysctls.adopt_ports(range(40003, 40011)) == {40003, 40004, 40005}
    sysctls.reserve_ports(40004, 40010)
    assert sysctl.read(RESERVED) == "50,40000-40010"
    sysctls.restore()
    assert sysctl.read(RESERVED) == "50,40000-40002"


@in_fresh_netns
def test_changes_as_text() -> None:
    """They come back; a predecessor's are put back as one's own, if they still hold."""
    changes = [Change(FORWARD, "0", "1"), Change("net.ipv4.ip_default_ttl", "64", "60")]
    assert sysctl.parse_changes(sysctl.format_changes(changes)) == changes
    assert sysctl.parse_changes("") == []
    Sysctls().set(FORWARD, "1")
    sysctls = Sysctls()
    sysctls.adopt(changes)
    assert sysctls.changes == changes[:1]
    assert sysctls.restore() == changes[:1]
    assert sysctl.read(FORWARD) == "0"
    assert not sysctl.put_back(changes[1])
    assert not sysctl.put_back(Change("net.ipv4.conf.none.forwarding", "0", "1"))


@in_fresh_netns
def test_an_interface_with_a_dot() -> None:
    """VLAN interfaces are called so; and its values are one's own, not those of ``eth0``."""
    with IPRoute() as ipr:
        ipr.link("add", ifname="eth0.5", kind="veth", peer={"ifname": "peer"})
    assert sysctl.read(sysctl.of_interface("eth0.5", "forwarding")) == "0"
    assert sysctl.read(sysctl.of_interface("eth0.5", "disable_ipv6", ipv6=True)) == "0"


@in_fresh_netns
def test_unknown_sysctl_is_named() -> None:
    """Errors name the sysctl."""
    with pytest.raises(SysctlError, match=r"net\.ipv4\.no_such_thing"):
        sysctl.read("net.ipv4.no_such_thing")
    with pytest.raises(SysctlError, match=r"ip_default_ttl to 'x'"):
        Sysctls().set("net.ipv4.ip_default_ttl", "x")


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", set()), ("5", {5}), ("1-3,7", {1, 2, 3, 7}), ("9,1-2", {1, 2, 9})],
)
def test_port_lists_are_read_and_written(text: str, ports: set[int]) -> None:
    """The kernel's notation is understood and produced."""
    assert sysctl.parse_ports(text) == ports
    assert sysctl.parse_ports(sysctl.format_ports(ports)) == ports


@in_fresh_netns
def test_read_only_as_in_a_container() -> None:
    """Told with the command; what was set from outside needs no setting."""

    Path("/proc/sys", RESERVED.replace(".", "/")).write_text("40000-40003")
    assert not sysctl.read_only(RESERVED)
    make_sysctls_read_only()
    assert sysctl.read_only(RESERVED)
    sysctls = Sysctls()
    assert sysctls.reserve_ports(40000, 40003) == []
    with pytest.raises(SysctlError) as caught:
        sysctls.reserve_ports(40000, 40010)
    assert str(caught.value) == (
        f"cannot set sysctl {RESERVED} to '40000-40010': Read-only file system: set it from "
        f"outside: sysctl -w {RESERVED}=40000-40010"
    )
    sysctls.restore()
