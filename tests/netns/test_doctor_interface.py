# SPDX-License-Identifier: Apache-2.0
"""Findings about interfaces, on the kernel's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters.doctor_finding import Finding, Severity
from xdp_router.adapters.doctor_interface import OurLink, check_link, judge_queues
from xdp_router.adapters.host import link_info
from xdp_router.adapters.sysctl import Sysctls
from xdp_router.adapters.xdp_link import AttachMode, attach
from xdp_router.lab import xdp_stub
from xdp_router.linux.ethtool import Channels, Offload, set_offload


def _pair() -> None:
    with IPRoute() as netlink:
        netlink.link("add", ifname="v0", kind="veth", peer={"ifname": "v1"})
        for name in ("v0", "v1"):
            netlink.link("set", index=socket.if_nametoindex(name), state="up")
    set_offload("v1", Offload.TX_CHECKSUM, False)
    set_offload("v1", Offload.GRO, True)


def _bad(found: list[Finding]) -> dict[str, Severity]:
    return {each.code: each.severity for each in found if each.severity is not Severity.OK}


@in_fresh_netns
def test_no_place_for_xdp() -> None:
    """A name that does not exist and a loopback fail, and say so."""
    assert _bad(list(check_link("nope0", None))) == {"no_interface": Severity.FAIL}
    assert _bad(list(check_link("lo", None)))["not_ethernet"] is Severity.FAIL


@in_fresh_netns
def test_programs() -> None:
    """A foreign program fails, one of ours is in order, and one in generic mode is slow."""
    _pair()
    assert _bad(list(check_link("v0", None))) == {}
    program = xdp_stub.load_constant(xdp_stub.XDP_PASS)
    index = socket.if_nametoindex("v0")
    for mode, bad in ((AttachMode.NATIVE, {}), (AttachMode.GENERIC, {"generic_mode"})):
        link = attach(program, "v0", index, mode)
        prog_id = link_info("v0").xdp_prog_id
        assert _bad(list(check_link("v0", None))) == {"foreign_program": Severity.FAIL}
        ours = OurLink(Path("/pin"), index, prog_id)
        assert set(_bad(list(check_link("v0", ours)))) == set(bad)
        link.close()
    assert _bad(list(check_link("v0", OurLink(Path("/pin"), 0, 1)))) == {
        "program_missing": Severity.FAIL
    }
    os.close(program)


@in_fresh_netns
def test_what_attach_warns_of() -> None:
    """The warnings of attach and a strict rp_filter are findings."""
    _pair()
    set_offload("v1", Offload.TX_CHECKSUM, True)
    with Sysctls() as sysctls:
        sysctls.set("net.ipv4.conf.v0.rp_filter", "1")
        assert set(_bad(list(check_link("v0", None)))) == {
            "rp_filter",
            "veth_peer_checksum_offload",
        }


@pytest.mark.parametrize(
    ("queues", "bad"),
    [
        (Channels(4, 4, 4), False),
        (Channels(1, 4, 4), True),  # could have more
        (Channels(1, 4, 1), False),  # could not
        (Channels(4, 2, 4), True),
    ],
)
def test_queues(queues: Channels, bad: bool) -> None:
    """Too few queues for four CPUs are found, as far as there could be more."""
    assert (judge_queues("eth0", queues, 4).severity is Severity.WARN) == bad
