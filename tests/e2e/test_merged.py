# SPDX-License-Identifier: Apache-2.0
"""Segments that were merged before XDP saw them: what it does with them, and what mends it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.support.clients import connect, echo_intact, random_bytes
from tests.support.netns import running_lab, wait_for
from tests.support.router import router_in
from xdp_router.lab import BackendSpec, Lab, LabSpec, links
from xdp_router.linux.ethtool import Offload, set_offload

pytest_plugins = ("tests.support.netns",)


def _bridge(lab: Lab) -> None:
    """The router reaches its clients by a bridge, whose port is what was its interface."""

    def build(netlink: Any) -> None:
        netlink.link("add", ifname="br0", kind="bridge")
        bridge, port = (netlink.link_lookup(ifname=name)[0] for name in ("br0", "client0"))
        address = {"address": lab.addresses.client_router, "prefixlen": 24}
        netlink.addr("delete", index=port, **address)
        netlink.link("set", index=port, master=bridge)
        netlink.addr("add", index=bridge, **address)
        netlink.link("set", index=bridge, state="up")

    links.with_netlink(lab.router, build)


def _gro_of_the_port(lab: Lab, on: bool) -> None:
    lab.router.run(lambda: set_offload("client0", Offload.GRO, on))


def test_gro_below_a_bridge_is_warned_of(private_mounts: Path) -> None:
    """What a bridge's port merges is too long to be forwarded: warned of, counted, mended."""
    with running_lab(LabSpec((BackendSpec("b1"),))) as lab:
        _bridge(lab)
        with router_in(lab, private_mounts) as router:
            router.start(None, "--xdp-mode", "generic", interfaces=("br0", "be1"))
            (warning,) = router.events("gro_below")
            assert "ethtool -K client0 gro off" in warning["mend"]
            with router.counted() as counted, connect(router) as peer:
                peer.setblocking(False)
                # Its window opens by what arrives: what can be sent in one go is too little.
                with contextlib.suppress(BlockingIOError):
                    peer.send(bytes(100_000))
                wait_for(lambda: counted("too_big_dropped"), message="a merged one was dropped")
                assert counted("icmp_too_big") == 0, "the sender keeps to the MTU already"
            _gro_of_the_port(lab, on=False)
            with connect(router) as peer:
                assert echo_intact(peer, random_bytes(1_000_000))
