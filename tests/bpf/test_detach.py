# SPDX-License-Identifier: Apache-2.0
"""Detaching what a daemon that is gone has left, on real links and pins."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import SMALL, real_loader
from tests.support.fresh_netns import enter_netns, in_fresh_netns, make_wire, open_netns
from xdp_router.adapters import xdp_link
from xdp_router.adapters.bpf_maps import Control
from xdp_router.adapters.dataplane import (
    DataPlane,
    NoInstance,
    find_instances,
    instance_dir,
    link_pin,
)
from xdp_router.adapters.host import link_info
from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.detach import detach_interfaces

pytest_plugins = ("tests.support.netns",)

S = 1_000_000_000


def leave_behind(pins: Path, *interfaces: str, beat_ago_ns: int | None = None) -> None:
    """Attach, pin, and go, as a daemon that is killed."""
    plane = DataPlane.create(real_loader("object"), SMALL, instance_dir(pins, interfaces))
    if beat_ago_ns is not None:
        control = Control(plane.maps["control"])
        control.write(control.read())
        control.beat(time.monotonic_ns() - beat_ago_ns, 0)
    assert plane.pin_dir is not None
    for name in interfaces:
        link = xdp_link.attach(plane.entry, name, link_info(name).ifindex, None)
        link.pin(link_pin(plane.pin_dir, name))
        link.close()
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
        with pytest.raises(XdpRouterError, match="eth0: its daemon is running: stop it"):
            list(detach_interfaces(["eth0"], bpffs))
        assert program_on("eth0")
        assert len(find_instances(bpffs)) == 1


def test_nothing_is_attached_there(bpffs: Path) -> None:
    """The interface is named, and which ones there are."""
    with pytest.raises(NoInstance, match=r"eth9: no data plane.*attached: none"):
        list(detach_interfaces(["eth9"], bpffs))
    plane = DataPlane.create(real_loader("object"), SMALL, instance_dir(bpffs, ["eth0"]))
    with pytest.raises(NoInstance, match=r"eth9.*attached: eth0"):
        list(detach_interfaces(["eth9"], bpffs))
    plane.unpin()
    plane.close()
