# SPDX-License-Identifier: Apache-2.0
"""The frames of probes that are no SYNs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_frames import MessageTarget, probe_target
from xdp_router.adapters.probe_socket import ProbeTarget
from xdp_router.core.model import Backend, Endpoint, Probe, ProbeKind
from xdp_router.core.probe_kinds import message_of

V6 = 0x20010DB8 << 96
KINDS = (
    Probe(ProbeKind.ICMP),
    Probe(ProbeKind.STUN),
    Probe(ProbeKind.UDP, payload=b"ping"),
    Probe(ProbeKind.UDP, payload=b"odd"),
)


def _backend(addr: int, probe: Probe) -> Backend:
    return Backend(1, "b1", Endpoint(addr, 3478, 17), 0, probe=probe)


def _path(source: int) -> Path:
    return Path(7, b"\x02\x00\x00\x00\x00\x02", b"\x02\x00\x00\x00\x00\x01", source)


@pytest.mark.parametrize("probe", KINDS, ids=lambda probe: probe.kind.value)
def test_ipv4(probe: Probe) -> None:
    """To the next hop's MAC; DF, TTL 64, id 0, a right checksum, no options; then the message."""
    backend = _backend(0xC6120102, probe)
    target = probe_target(_path(0xC6120101), backend)
    assert target.ifindex == 7
    frame = bytes(target.probe(61_001, 0xA1B2C3D4))
    message = message_of(backend, 0xC6120101)
    assert frame[34:] == message.build(61_001, 0xA1B2C3D4)
    read = Ether(frame)
    ip = read[IP]
    assert (read.dst, read.src) == ("02:00:00:00:00:02", "02:00:00:00:00:01")
    assert (ip.src, ip.dst, ip.proto) == ("198.18.1.1", "198.18.1.2", message.protocol)
    assert (ip.ihl, ip.tos, ip.id, ip.ttl, str(ip.flags)) == (5, 0, 0, 64, "DF")
    assert ip.len == len(frame) - 14
    del ip.chksum
    assert bytes(read)[:34] == frame[:34]


@pytest.mark.parametrize("probe", KINDS, ids=lambda probe: probe.kind.value)
def test_ipv6(probe: Probe) -> None:
    """The same, with the header of RFC 8200 and no extension header."""
    backend = _backend(V6 | 2, probe)
    frame = bytes(probe_target(_path(V6 | 1), backend).probe(61_001, 0xA1B2C3D4))
    message = message_of(backend, V6 | 1)
    assert frame[54:] == message.build(61_001, 0xA1B2C3D4)
    read = Ether(frame)
    ip = read[IPv6]
    assert read.type == 0x86DD
    assert (ip.src, ip.dst, ip.nh) == ("2001:db8::1", "2001:db8::2", message.protocol)
    assert (ip.version, ip.tc, ip.fl, ip.hlim) == (6, 0, 0, 64)
    assert ip.plen == len(frame) - 54


def test_a_frame_stays_as_it_is_when_the_next_one_is_made() -> None:
    """Nobody has to send it first."""
    target = probe_target(_path(0xC6120101), _backend(0xC6120102, KINDS[0]))
    assert isinstance(target, MessageTarget)
    one = target.probe(61_001, 1)
    other = target.probe(61_002, 2)
    assert one != other
    assert one == target.probe(61_001, 1)


@pytest.mark.parametrize(("probe", "port"), [(Probe(), 3478), (Probe(port=22), 22)])
def test_syn_goes_to_the_probed_port(probe: Probe, port: int) -> None:
    """The backend's own, or the one that is named."""
    target = probe_target(_path(0xC6120101), _backend(0xC6120102, probe))
    assert isinstance(target, ProbeTarget)
    assert bytes(target.probe(61_001, 5)) == bytes(
        ProbeTarget(_path(0xC6120101), 0xC6120102, port).probe(61_001, 5)
    )


def test_a_message_may_have_a_tag() -> None:
    """Four bytes more in front of the same packet."""
    backend = _backend(0xC6120102, Probe(ProbeKind.ICMP))
    path = _path(0xC6120101)
    plain, tagged = (
        bytes(probe_target(each, backend).probe(61_000, 7))
        for each in (path, replace(path, vlan=7))
    )
    assert tagged == plain[:12] + b"\x81\x00\x00\x07" + plain[12:]
