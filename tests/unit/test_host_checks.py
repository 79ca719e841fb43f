# SPDX-License-Identifier: Apache-2.0
"""Findings that follow from an interface's facts; a NIC's facts are not to be had on veth."""

from __future__ import annotations

import dataclasses

import pytest

from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.host_checks import (
    NATIVE_MTU_MAX,
    HostWarning,
    InterfaceFacts,
    judge_interface,
    merge_uncertain,
)

NIC = LinkInfo(
    ifindex=2,
    name="eth0",
    mac=bytes.fromhex("020000000001"),
    mtu=1500,
    up=True,
    xdp_prog_id=0,
    xdp_mode="none",
    kind="",
    ethernet=True,
)
VETH = dataclasses.replace(NIC, kind="veth", lower=3)
PEER = dataclasses.replace(NIC, ifindex=3, name="peer0", kind="veth", lower=2)
QUIET_PEER = frozenset({"rx-gro"})


def codes(facts: InterfaceFacts, *, native: bool = True) -> list[str]:
    """Codes of the findings, each of which must name the interface and a mend."""
    found = judge_interface(facts, native=native)
    assert all(each.interface == "eth0" and each.text and each.mend for each in found)
    return [each.code for each in found]


@pytest.mark.parametrize(
    "features", [set(), {"rx-gro"}, {"rx-vlan-hw-parse"}, {"tx-checksum-ip-generic"}]
)
def test_an_ordinary_nic_is_fine(features: set[str]) -> None:
    """Software GRO, VLAN offload without VLANs and a NIC's own checksums give no finding."""
    assert codes(InterfaceFacts(NIC, frozenset(features))) == []


@pytest.mark.parametrize(
    ("feature", "code", "switch"),
    [("rx-lro", "lro_on", "lro off"), ("rx-gro-hw", "gro_hw_on", "rx-gro-hw off")],
)
def test_merging_in_hardware(feature: str, code: str, switch: str) -> None:
    """LRO and GRO_HW are found, with the switch; generic XDP turns them off by itself."""
    facts = InterfaceFacts(NIC, frozenset({feature}))
    assert codes(facts) == [code]
    assert judge_interface(facts)[0].mend == f"ethtool -K eth0 {switch}"
    assert codes(facts, native=False) == []


def test_merging_below() -> None:
    """GRO of a port is a finding with the port's name, unless XDP runs in the port's driver."""
    for kind, native, found in (
        ("bridge", True, ["gro_below"]),
        ("bridge", False, ["gro_below"]),
        ("vlan", True, ["gro_below"]),
        ("bond", False, ["gro_below"]),
        ("bond", True, []),
    ):
        facts = InterfaceFacts(dataclasses.replace(NIC, kind=kind), merging=("port1",))
        assert codes(facts, native=native) == found
    assert "ethtool -K port1 gro off" in judge_interface(facts, native=False)[0].mend


@pytest.mark.parametrize("native", [True, False])
def test_vlan_offload_matters_if_vlans_are_there(native: bool) -> None:
    """Stripped tags are a finding as soon as a VLAN interface lies on this one."""
    facts = InterfaceFacts(NIC, frozenset({"rx-vlan-hw-parse"}), vlans=("eth0.5", "eth0.6"))
    assert codes(facts, native=native) == ["vlan_offload_on"]
    assert "eth0.5, eth0.6" in judge_interface(facts)[0].text
    assert codes(InterfaceFacts(NIC, frozenset(), vlans=("eth0.5",))) == []


def test_mtu() -> None:
    """An MTU above a page's room is a finding for native XDP, at the limit it is not."""
    at_limit = dataclasses.replace(NIC, mtu=NATIVE_MTU_MAX)
    above = dataclasses.replace(NIC, mtu=NATIVE_MTU_MAX + 1)
    assert codes(InterfaceFacts(at_limit)) == []
    assert codes(InterfaceFacts(above)) == ["mtu_too_large"]
    assert str(NATIVE_MTU_MAX + 1) in judge_interface(InterfaceFacts(above))[0].text
    assert codes(InterfaceFacts(above), native=False) == []


def test_veth_peer_that_cannot_be_seen() -> None:
    """What is unknown is not claimed: the finding is uncertain and says where to look."""
    (found,) = judge_interface(InterfaceFacts(dataclasses.replace(VETH, lower_elsewhere=True)))
    assert found.code == "veth_peer_unseen"
    assert not found.certain
    assert "another network namespace" in found.text
    assert "tx off gro on" in found.mend


def test_uncertain_findings_are_merged() -> None:
    """One line for all interfaces that can't be looked behind; certain findings stay apart."""
    unseen = [HostWarning("unseen", name, "text", "mend", certain=False) for name in ("a", "b")]
    sure = [HostWarning("sure", name, "text", "mend") for name in ("a", "b")]
    merged = merge_uncertain([unseen[0], *sure, unseen[1]])
    assert merged == [dataclasses.replace(unseen[0], interface="a b"), *sure]


def test_veth_peer_checksum_offload() -> None:
    """Unfinished checksums of the other end break in both modes."""
    facts = InterfaceFacts(VETH, peer=PEER, peer_features=QUIET_PEER | {"tx-checksum-ip-generic"})
    assert codes(facts) == ["veth_peer_checksum_offload"]
    assert codes(facts, native=False) == ["veth_peer_checksum_offload"]
    assert judge_interface(facts)[0].mend == "ethtool -K peer0 tx off"


def test_veth_peer_without_napi() -> None:
    """GRO off at the other end is a finding unless native XDP runs there, or here generic does."""
    facts = InterfaceFacts(VETH, peer=PEER, peer_features=frozenset())
    assert codes(facts) == ["veth_peer_gro_off"]
    assert codes(facts, native=False) == []
    with_program = dataclasses.replace(PEER, xdp_prog_id=7, xdp_mode="native")
    assert codes(dataclasses.replace(facts, peer=with_program)) == []


def test_veth_mtu_is_the_other_ends() -> None:
    """The veth driver compares the other end's MTU."""
    large = dataclasses.replace(PEER, mtu=9000)
    (found,) = judge_interface(InterfaceFacts(VETH, peer=large, peer_features=QUIET_PEER))
    assert found.code == "mtu_too_large"
    assert "ip link set dev peer0" in found.mend
    own = dataclasses.replace(VETH, mtu=9000)
    assert codes(InterfaceFacts(own, peer=PEER, peer_features=QUIET_PEER)) == []
