# SPDX-License-Identifier: Apache-2.0
"""Offload switches do what they say, on the kernel's own veth."""

from __future__ import annotations

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns
from xdp_router.linux.ethtool import (
    Offload,
    active_features,
    channels,
    get_offload,
    set_offload,
    set_tag_insertion,
)


@pytest.mark.parametrize("offload", list(Offload))
@in_fresh_netns
def test_switches_are_independent(offload: Offload) -> None:
    """An offload reads back as it was set, and setting it back restores all the others."""
    with IPRoute() as netlink:
        netlink.link("add", ifname="v0", kind="veth", peer={"ifname": "v1"})
    before = {other: get_offload("v0", other) for other in Offload}
    set_offload("v0", offload, False)
    assert not get_offload("v0", offload)
    set_offload("v0", offload, True)
    assert get_offload("v0", offload)
    set_offload("v0", offload, before[offload])
    assert {other: get_offload("v0", other) for other in Offload} == before


@in_fresh_netns
def test_missing_interface_is_named() -> None:
    """The error names the interface."""
    with pytest.raises(OSError, match="nowhere0"):
        get_offload("nowhere0", Offload.GRO)


@in_fresh_netns
def test_features_by_name() -> None:
    """The features that are on go by the kernel's names, and follow the switches."""
    with IPRoute() as netlink:
        netlink.link("add", ifname="v0", kind="veth", peer={"ifname": "v1"})
    set_offload("v0", Offload.GRO, False)
    set_offload("v0", Offload.TX_CHECKSUM, True)
    assert "tx-checksum-ip-generic" in active_features("v0")
    assert "rx-gro" not in active_features("v0")
    set_offload("v0", Offload.GRO, True)
    set_offload("v0", Offload.TX_CHECKSUM, False)
    assert "tx-checksum-ip-generic" not in active_features("v0")
    assert "rx-gro" in active_features("v0")
    with pytest.raises(OSError, match="nowhere0"):
        active_features("nowhere0")


@in_fresh_netns
def test_channels() -> None:
    """The queues that a veth was made with are told."""
    with IPRoute() as netlink:
        netlink.link(
            "add", ifname="v0", kind="veth", num_rx_queues=2, num_tx_queues=3, peer={"ifname": "v1"}
        )
    found = channels("v0")
    assert (found.rx_max, found.rx, found.tx) == (2, 2, 3)


@in_fresh_netns
def test_tag_insertion() -> None:
    """The kernel, not the device, puts tags into frames, or the other way round; no other switch
    moves.
    """
    with IPRoute() as netlink:
        netlink.link("add", ifname="v0", kind="veth", peer={"ifname": "v1"})
    before = active_features("v0")
    assert "tx-vlan-hw-insert" in before
    set_tag_insertion("v0", False)
    assert active_features("v0") == before - {"tx-vlan-hw-insert"}
    set_tag_insertion("v0", True)
    assert active_features("v0") == before
    with pytest.raises(OSError, match="nowhere0"):
        set_tag_insertion("nowhere0", False)
