# SPDX-License-Identifier: Apache-2.0
"""VLAN interfaces as netlink tells of them, in messages as the kernel writes them."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from xdp_router.adapters.host import LinkInfo, link_from_message
from xdp_router.adapters.paths import BackendRouteError, Path, Resolution, Tag, require_attached
from xdp_router.adapters.paths import tag_of as tag_of

MAC = b"\2\0\0\0\0\1"
BELOW = LinkInfo(3, "eth0", MAC, 1500, True, 0, "", "", True)
VLAN = replace(BELOW, ifindex=9, name="eth0.7", kind="vlan", lower=3, vlan=7)
ADDR = 0xC6120102


def attribute(kind: int, data: bytes) -> bytes:
    """One netlink attribute, padded."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def new_link(protocol: bytes = b"\x81\x00", kind: bytes = b"vlan\0") -> LinkInfo:
    """What comes of RTM_NEWLINK about ``eth0.7@eth0``."""
    data = attribute(1, struct.pack("=H", 7)) + attribute(5, protocol)  # IFLA_VLAN_ID, _PROTOCOL
    info = attribute(1, kind) + attribute(2, data)  # IFLA_INFO_KIND, _DATA
    body = struct.pack("=BxHiII", 0, 1, 9, 0x10043, 0)  # struct ifinfomsg
    body += attribute(3, b"eth0.7\0") + attribute(1, MAC)  # IFLA_IFNAME, IFLA_ADDRESS
    body += attribute(4, struct.pack("=I", 1500)) + attribute(5, struct.pack("=I", 3))  # MTU, LINK
    body += attribute(18, info)  # IFLA_LINKINFO
    message = struct.pack("=IHHII", 16 + len(body), 16, 0, 0, 0) + body
    (parsed,) = MarshalRtnl().parse(message)
    return link_from_message(parsed)


def test_the_message_of_a_vlan_interface() -> None:
    """Its tag and the interface below are in there."""
    link = new_link()
    assert (link.name, link.kind, link.vlan, link.lower) == ("eth0.7", "vlan", 7, 3)


def test_other_tags_and_other_kinds() -> None:
    """A tag of 802.1ad is another one, and a link of another kind has none."""
    assert new_link(protocol=b"\x88\xa8").vlan == 0
    assert new_link(kind=b"macvlan\0").vlan == 0


def test_the_way_past_it() -> None:
    """Frames leave by the interface below, with the tag."""
    assert tag_of(VLAN, {3: BELOW, 9: VLAN}) == Tag(3, 7)
    path = Path(9, MAC, MAC, ADDR, below=Tag(3, 7)).by_interface_below()
    assert (path.ifindex, path.vlan, path.below) == (3, 7, None)


@pytest.mark.parametrize(
    "links",
    [
        {9: VLAN},
        {3: replace(BELOW, mac=b"\2\0\0\0\0\2")},
        {3: replace(BELOW, vlan=5, kind="vlan", lower=2)},
        {3: replace(BELOW, ethernet=False)},
    ],
    ids=["elsewhere", "another MAC", "another VLAN interface", "not Ethernet"],
)
def test_no_way_past_it(links: dict[int, LinkInfo]) -> None:
    """What XDP there would not take for ours, or with another tag, is no way."""
    assert tag_of(VLAN, links) is None


def test_no_way_past_what_is_none() -> None:
    """An interface of another kind, or one whose lower is in another namespace."""
    assert tag_of(BELOW, {3: BELOW}) is None
    assert tag_of(replace(VLAN, lower_elsewhere=True), {3: BELOW}) is None


def test_attach_takes_the_interface_below() -> None:
    """It is enough that this one is attached; with neither, the interface of the route is named."""
    found = Resolution(ADDR, None, "", 9, "eth0.7", ADDR, below=Tag(3, 7))
    require_attached([found], {3}, {ADDR: "b1"})
    require_attached([found], {9}, {ADDR: "b1"})
    with pytest.raises(BackendRouteError, match="add eth0.7 to the attach"):
        require_attached([found], {4}, {ADDR: "b1"})
