# SPDX-License-Identifier: Apache-2.0
"""Hand-off where services have IPv6: which family's settings count, and what is set for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bpf.test_handoff import CAN, Stage, staged, takes_frames
from tests.support.cast import service
from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters import sysctl
from xdp_router.adapters.notes import Note, Notes
from xdp_router.core import abi
from xdp_router.core.address import parse_endpoint
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.model import Backend, Forwarding, KernelHandoff, Service
from xdp_router.daemon.handoff import Handoff
from xdp_router.daemon.host_changes import HostChanges

IPV6 = dataclasses.replace(service(0), id=1, endpoint=parse_endpoint("[2001:db8:100::1]:80"))
CAN6 = abi.IF_HANDOFF_FORWARD6 | abi.IF_HANDOFF_REPLY6
ALL = "net.ipv6.conf.all.forwarding"


def handoff(
    stage: Stage,
    *services: Service,
    mode: KernelHandoff = KernelHandoff.CHECK,
    retired: Sequence[Backend] = (),
) -> Handoff:
    """One that has other services than the stage's own."""
    state = stage.wired.router.state
    notes = Notes(stage.wired.router.plane.maps["notes"])
    config = RouterConfig(services, Settings(kernel_handoff=mode))
    return Handoff(config, HostChanges(notes), state, stage.network, lambda: stage.links, retired)


def write(name: str, value: int) -> None:
    Path("/proc/sys", name.replace(".", "/")).write_text(str(value))


@in_fresh_netns
@pytest.mark.parametrize("ipv4", [0, 1])
@pytest.mark.parametrize("ipv6", [0, 1])
def test_each_family_of_the_services_has_its_own_flags(ipv4: int, ipv6: int) -> None:
    """The kernel takes over what it forwards, and nothing of the other family; XDP, ``status`` and
    the backends are told by family."""
    with staged(forwarding=ipv4) as stage:
        write(ALL, ipv6)
        able = {4: (ipv4, CAN), 6: (ipv6, CAN6)}
        egress = stage.wired.backend.ifindex
        for services, families in (
            ((service(2),), (4,)),
            ((IPV6,), (6,)),
            ((service(2), IPV6), (4, 6)),
        ):
            made = handoff(stage, *services)
            made.look()
            flags = abi.IF_NO_XMIT
            for family in families:
                flags |= able[family][1] if able[family][0] else 0
                assert bool(made.unusable(egress, {egress}, family)) is not bool(able[family][0])
            assert stage.flags() == (flags,) * 2
            view = made.view(egress)
            assert view["kernel_forwards"] is all(able[family][0] for family in families)
            assert view["kernel_families"] == {
                f"ipv{family}": dict.fromkeys(("forwards", "replies"), bool(able[family][0]))
                for family in families
            }


@in_fresh_netns
@pytest.mark.parametrize("own", [4, 6])
def test_a_source_of_ours_is_asked_of_its_family_alone(own: int) -> None:
    """What the kernel would do with it says nothing of nat in the other family."""
    with staged(forwarding=1) as stage:
        write(ALL, 1)
        write("net.ipv4.conf.cl.rp_filter", 1)  # drops what bears a service's address there
        takes_frames("cl", stage)
        fullnat = {own: Forwarding.FULLNAT}
        six = Backend(9, "six", parse_endpoint("[2001:db8::9]:80"), 1)
        web, web6 = (
            dataclasses.replace(made, forwarding=fullnat.get(family, Forwarding.NAT))
            for family, made in ((4, service(2)), (6, dataclasses.replace(IPV6, backends=(six,))))
        )
        made = handoff(stage, web, web6)
        made.look()
        egress = stage.wired.backend.ifindex
        assert bool(made.unusable(egress, {egress}, 4)) is (own == 4)
        assert not made.unusable(egress, {egress}, 6)


@in_fresh_netns
def test_a_family_that_only_old_flows_have() -> None:
    """Backends of a former configuration still have flows, whose packets the kernel may get."""
    with staged(forwarding=1) as stage:
        write(ALL, 1)
        made = handoff(
            stage, service(2), retired=[Backend(9, "old", parse_endpoint("[2001:db8::9]:80"), 1)]
        )
        made.look()
        assert stage.flags() == (CAN | CAN6 | abi.IF_NO_XMIT,) * 2


@in_fresh_netns
def test_what_is_set() -> None:
    """With "set": the interfaces' own switch, noted; it goes back. All others stay as they are."""
    if not sysctl.exists("net.ipv6.conf.all.force_forwarding"):
        pytest.skip("before Linux 6.17 there is no switch of one interface")
    with staged(forwarding=1) as stage:
        write(ALL, 0)
        made = handoff(stage, IPV6, mode=KernelHandoff.SET)
        made.look()
        assert stage.flags() == (CAN6 | abi.IF_NO_XMIT,) * 2
        assert sysctl.read(ALL) == "0"
        names = [f"net.ipv6.conf.{name}.force_forwarding" for name in ("cl", "be")]
        assert [sysctl.read(name) for name in names] == ["1", "1"]
        noted = Notes(stage.wired.router.plane.maps["notes"]).read(Note.SYSCTLS)
        assert noted.splitlines() == [f"{name} 0 1" for name in names]
        changes = HostChanges(Notes(stage.wired.router.plane.maps["notes"]), adopted=True)
        changes.interface_gone("be")
        changes.restore(Path("/nonexistent"), Path("/nonexistent/own"))
        assert [sysctl.read(name) for name in names] == ["0", "1"]
