# SPDX-License-Identifier: Apache-2.0
"""Detaching what a daemon that is gone has left, on real links and pins."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import SMALL, IdleLoader, real_loader
from tests.support.fresh_netns import enter_netns, in_fresh_netns, make_wire, open_netns
from tests.support.netns import wait_for
from xdp_router.adapters import socket_lookup, sysctl, xdp_link
from xdp_router.adapters.bpf_maps import Control
from xdp_router.adapters.dataplane import DataPlane, NoInstance
from xdp_router.adapters.host import link_info
from xdp_router.adapters.local_routes import LocalRoutes, parse_addresses
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pins import find_instances, instance_dir, link_pin
from xdp_router.adapters.sysctl import Change
from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.detach import detach_interfaces

pytest_plugins = ("tests.support.netns",)

S = 1_000_000_000


def leave_behind(
    pins: Path,
    *interfaces: str,
    beat_ago_ns: int | None = None,
    notes: Mapping[Note, str] | None = None,
) -> None:
    """Attach, pin, and go, as a daemon that is killed."""
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(pins, interfaces))
    if beat_ago_ns is not None:
        control = Control(plane.maps["control"])
        control.write(control.read())
        control.beat(time.monotonic_ns() - beat_ago_ns, 0)
    for note, text in (notes or {}).items():
        Notes(plane.maps["notes"]).write(note, text)
    assert plane.pin_dir is not None
    for name in interfaces:
        link = xdp_link.attach(plane.entry, name, link_info(name).ifindex, None)
        link.pin(link_pin(plane.pin_dir, name))
        link.close()
    plane.close()


@contextlib.contextmanager
def beating(pin_dir: Path) -> Iterator[None]:
    """A daemon's heart."""
    plane, end = DataPlane.open(pin_dir), threading.Event()
    control = Control(plane.maps["control"])
    control.write(control.read())

    def beat() -> None:
        while not end.wait(0.01):
            control.beat(time.monotonic_ns(), 0)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        yield
    finally:
        end.set()
        heart.join()
        plane.close()


def program_on(interface: str) -> int:
    return link_info(interface).xdp_prog_id


@in_fresh_netns
def test_links_and_pins_go(bpffs: Path) -> None:
    """All interfaces of the data plane are freed, also those not named; each step is told."""
    with IPRoute() as ipr:
        for name in ("eth0", "eth1.5"):
            make_wire(ipr, name, None, None)
        leave_behind(bpffs, "eth0", "eth1.5", beat_ago_ns=5 * S)
        assert program_on("eth0")
        said = list(detach_interfaces(["eth0", "eth1.5"], bpffs))
        where = instance_dir(bpffs, ["eth0", "eth1.5"])
        assert said == ["eth0: detached", "eth1.5: detached", f"{where}: removed"]
        assert (program_on("eth0"), program_on("eth1.5")) == (0, 0)
        assert find_instances(bpffs) == []


@in_fresh_netns
def test_from_another_namespace(bpffs: Path) -> None:
    """Where the links are is no matter: a pin is enough."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0")
        here = open_netns()
        wire = make_wire(ipr, "away", None, None)
        enter_netns(wire.far_ns)
        assert "eth0: detached" in list(detach_interfaces(["eth0"], bpffs))
        enter_netns(here)
        assert program_on("eth0") == 0


def reserve_as_a_daemon() -> dict[Note, str]:
    """Reserve ports beside an operator's, and note what was added."""
    operator = sysctl.Sysctls()
    operator.set(sysctl.RESERVED_PORTS, "61005,8080")
    ours = sysctl.format_ports(sysctl.ports_to_reserve(61_000, 61_010))
    sysctl.Sysctls().reserve_ports(61_000, 61_010)
    assert sysctl.read(sysctl.RESERVED_PORTS) == "8080,61000-61010"
    return {Note.RESERVED_PORTS: ours, Note.NETNS: sysctl.namespace_id()}


@in_fresh_netns
def test_reserved_ports_are_given_back(bpffs: Path) -> None:
    """Those that the daemon had added; what was, or has been since, the operator's stays."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0", notes=reserve_as_a_daemon())
        said = list(detach_interfaces(["eth0"], bpffs))
        assert "ports 61000-61004,61006-61010: no longer reserved" in said
        assert sysctl.read(sysctl.RESERVED_PORTS) == "8080,61005"


@in_fresh_netns
def test_ports_of_another_namespace_are_left_and_told(bpffs: Path) -> None:
    """The sysctl that this thread sees is not the daemon's: the operator learns where to look."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0", notes=reserve_as_a_daemon())
        away = make_wire(ipr, "away", None, None)
        enter_netns(away.far_ns)
        others = sysctl.Sysctls()
        others.set(sysctl.RESERVED_PORTS, "61001")
        (line,) = [each for each in detach_interfaces(["eth0"], bpffs) if "ports" in each]
        assert "still reserved, in the network namespace of the daemon" in line
        assert "ip_local_reserved_ports" in line
        assert sysctl.read(sysctl.RESERVED_PORTS) == "61001"


@in_fresh_netns
def test_sysctls_are_put_back(bpffs: Path) -> None:
    """Those that still are as the daemon set them; elsewhere they are only told."""
    ours, operators = "net.ipv4.conf.eth0.forwarding", "net.ipv4.conf.eth0.rp_filter"
    changes = [Change(ours, "0", "1"), Change(operators, "1", "2")]
    changes.append(Change("net.ipv4.conf.gone.forwarding", "0", "1"))
    noted = {Note.SYSCTLS: sysctl.format_changes(changes), Note.NETNS: sysctl.namespace_id()}
    with IPRoute() as ipr:
        wire = make_wire(ipr, "eth0", None, None)
        for namespace in (wire.far_ns, None):
            leave_behind(bpffs, "eth0", notes=noted)
            values = sysctl.Sysctls()
            values.set(ours, "1")
            values.set(operators, "0")
            here = open_netns()
            if namespace is not None:
                enter_netns(namespace)
            said = [line for line in detach_interfaces(["eth0"], bpffs) if "conf" in line]
            enter_netns(here)
            left = "left as it is: somebody has changed it since"
            if namespace is not None:
                there = "in the network namespace of the daemon; it was 0"
                assert said[0] == f"{ours}: still 1, {there}"
                assert sysctl.read(ours) == "1"
            else:
                assert said[:2] == [f"{ours}: 0 again", f"{operators}: {left}"]
                assert (sysctl.read(ours), sysctl.read(operators)) == ("0", "0")
            assert len(said) == 3


@in_fresh_netns
def test_the_stale_control_socket_goes(bpffs: Path, tmp_path: Path) -> None:
    """Nobody listens: removed. Somebody does, or it is no socket: left alone."""
    stale, live, file = (tmp_path / name for name in ("stale.sock", "live.sock", "file"))
    file.touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    with IPRoute() as ipr, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(live))
        listener.listen()
        make_wire(ipr, "eth0", None, None)
        for path in (stale, live, file, tmp_path / "none.sock"):
            leave_behind(bpffs, "eth0", notes={Note.CONTROL_SOCKET: str(path)})
            said = list(detach_interfaces(["eth0"], bpffs))
            assert (f"{path}: removed" in said) is (path == stale)
            assert find_instances(bpffs) == []
    assert not stale.exists()
    assert live.exists()
    assert file.exists()


@in_fresh_netns
def test_an_interface_that_is_gone(bpffs: Path) -> None:
    """Its pin is removed all the same."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0")
        ipr.link("del", index=wire.near)
        assert list(detach_interfaces(["eth0"], bpffs))[-1].endswith("removed")
        assert find_instances(bpffs) == []


@in_fresh_netns
def test_a_running_daemon_is_left_alone(bpffs: Path) -> None:
    """Refused with what to do; nothing has changed."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0", beat_ago_ns=0)
        (instance,) = find_instances(bpffs)
        with beating(instance.path), pytest.raises(XdpRouterError, match="eth0: its daemon is run"):
            list(detach_interfaces(["eth0"], bpffs))
        assert program_on("eth0")
        assert len(find_instances(bpffs)) == 1


@in_fresh_netns
def test_a_daemon_that_was_killed_just_now(bpffs: Path) -> None:
    """No sign of life follows its last one: it is not taken for one that runs."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0", beat_ago_ns=0)
        assert list(detach_interfaces(["eth0"], bpffs))[-1].endswith("removed")
        assert not program_on("eth0")


@in_fresh_netns
@pytest.mark.parametrize(
    "left", ["no control", "only links", "only control", "no notes", "nothing"]
)
def test_pins_that_are_half_gone(bpffs: Path, left: str) -> None:
    """A shutdown, or a detach, was cut short: the rest goes, and another one can attach."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        leave_behind(bpffs, "eth0", beat_ago_ns=0 if left == "no control" else 5 * S)
        (found,) = find_instances(bpffs)
        for pin in list(found.path.iterdir()):
            link = pin.name.startswith("link_")
            if (
                left == "nothing"
                or pin.name == left.removeprefix("no ")
                or (left == "only links" and not link)
                or (left == "only control" and pin.name != "control")
            ):
                pin.unlink()
        assert list(detach_interfaces(["eth0"], bpffs))[-1].endswith("removed")
        # The kernel detaches a link that lost its last pin a moment later.
        wait_for(lambda: program_on("eth0") == 0, 2)
        assert find_instances(bpffs) == []
        leave_behind(bpffs, "eth0")
        list(detach_interfaces(["eth0"], bpffs))


def test_nothing_is_attached_there(bpffs: Path) -> None:
    """The interface is named, and which ones there are."""
    with pytest.raises(NoInstance, match=r"eth9: no data plane.*attached: none"):
        list(detach_interfaces(["eth9"], bpffs))
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0"]))
    with pytest.raises(NoInstance, match=r"eth9.*attached: eth0"):
        list(detach_interfaces(["eth9"], bpffs))
    plane.unpin()
    plane.close()


@in_fresh_netns
def test_what_was_taken_up_is_given_back(bpffs: Path) -> None:
    """Addresses are local no more, if they are still so by us; the program's link is detached,
    whoever holds it. In another network namespace they are named, and left."""
    text = "198.18.100.9 2001:db8:100::9"
    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        make_wire(netlink, "v0", None, None)
        with LocalRoutes() as routes:
            assert [routes.add(addr) for addr in parse_addresses(text)] == [True, True]
            notes = {Note.LOCAL_ROUTES: text, Note.NETNS: sysctl.namespace_id()}
            leave_behind(bpffs, "v0", notes=notes)
            pin_dir = instance_dir(bpffs, ["v0"])
            plane = DataPlane.open(pin_dir)
            program = socket_lookup.load(real_loader("object"), plane.maps)
            plane.hold_lookup(socket_lookup.attach(program))
            assert (pin_dir / "lookup_link").exists()
            held = DataPlane.open(pin_dir)
            said = list(detach_interfaces(["v0"], bpffs))
            assert "198.18.100.9: no longer local" in said
            assert "2001:db8:100::9: no longer local" in said
            assert not any(routes.is_local(addr) for addr in parse_addresses(text))
            assert not socket_lookup.is_attached(held.lookup_link)
            held.close()
            plane.close()
            os.close(program)
            assert not pin_dir.exists()

            assert all(routes.add(addr) for addr in parse_addresses(text))
            leave_behind(bpffs, "v0", notes={**notes, Note.NETNS: "net:[1]"})
            said = list(detach_interfaces(["v0"], bpffs))
            assert any(line.startswith(f"{text}: still local, in the network") for line in said)
            assert all(routes.is_local(addr) for addr in parse_addresses(text))
