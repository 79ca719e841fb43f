# SPDX-License-Identifier: Apache-2.0
"""The segment that a client is taken to have sent again, of both families."""

from __future__ import annotations

import dataclasses

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet

from tests.support.small_router import flow_entries
from xdp_router.core import abi
from xdp_router.core.address import parse_addr
from xdp_router.core.model import FlowKey
from xdp_router.daemon.reply_paths import segment

MAC = bytes.fromhex("020000000c02")


@pytest.mark.parametrize(
    ("client", "service", "layer", "length"),
    [("198.18.0.2", "198.18.100.1", IP, 54), ("2001:db8::2", "2001:db8:100::1", IPv6, 74)],
)
def test_acknowledgement(client: str, service: str, layer: type, length: int) -> None:
    """An empty ACK from the client, with the numbers of its entry, to the interface's MAC."""
    made = next(e for e in flow_entries(1, 1).values() if e.direction is abi.Direction.FORWARD)
    flow = FlowKey(parse_addr(client), 40000, parse_addr(service), 80)
    entry = dataclasses.replace(
        made, new_saddr=flow.client_addr, new_daddr=flow.service_addr, seq_next=5000, ack=9000
    )
    family = abi.family_of(flow.service_addr)
    frame = segment(abi.pack_flow_key(flow), abi.pack_flow_entry(entry, family), MAC)
    assert len(frame) == length
    packet = Ether(frame)
    assert packet.dst == "02:00:00:00:0c:02"
    assert (packet[layer].src, packet[layer].dst) == (client, service)
    tcp = packet[TCP]
    assert (tcp.sport, tcp.dport, str(tcp.flags)) == (40000, 80, "A")
    assert (tcp.seq, tcp.ack) == (5000, 9000)
    assert len(packet[layer]) == length - 14


@pytest.mark.parametrize(
    ("client", "service", "layer", "length"),
    [("198.18.0.2", "198.18.100.1", IP, 42), ("2001:db8::2", "2001:db8:100::1", IPv6, 62)],
)
def test_datagram(client: str, service: str, layer: type, length: int) -> None:
    """Of a UDP flow, an empty datagram."""
    made = next(e for e in flow_entries(1, 1).values() if e.direction is abi.Direction.FORWARD)
    flow = FlowKey(parse_addr(client), 40000, parse_addr(service), 53, 17)
    entry = dataclasses.replace(made, new_saddr=flow.client_addr, new_daddr=flow.service_addr)
    family = abi.family_of(flow.service_addr)
    frame = segment(abi.pack_flow_key(flow), abi.pack_flow_entry(entry, family), MAC)
    packet = Ether(frame)
    assert (packet[layer].src, packet[layer].dst) == (client, service)
    assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].len) == (40000, 53, 8)
    assert len(frame) == length


@pytest.mark.parametrize(
    ("vlan", "tags"),
    [
        (abi.VLAN_KEEP, []),
        (abi.VLAN_NONE, []),
        (abi.VLAN_TAG | 100, [(Dot1Q, 100)]),
        (abi.VLAN_TAG | abi.VLAN_SERVICE | 4094, [(Dot1AD, 4094)]),
        (abi.VLAN_TAG | abi.VLAN_SERVICE | abi.VLAN_PUSH | 7, [(Dot1AD, 7), (Dot1Q, 0)]),
    ],
)
def test_tag_of_the_client(vlan: int, tags: list[tuple[type, int]]) -> None:
    """It has the tag that replies get: from the segment the program makes out theirs anew."""
    key, made = next(iter(flow_entries(1, 1).items()))
    frame = segment(key, abi.pack_flow_entry(made), MAC, vlan)
    packet: Packet = Ether(frame)
    for kind, number in tags:
        packet = packet.payload
        assert (type(packet), packet.vlan) == (kind, number)
    assert type(packet.payload) is IP
    backend = abi.VLAN_NONE if vlan & abi.VLAN_PUSH else abi.VLAN_TAG | 9
    if vlan:
        assert abi.vlan_to_client(frame, backend) == vlan
