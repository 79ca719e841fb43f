# SPDX-License-Identifier: Apache-2.0
"""Probes of each kind, read by scapy; which answers belong to a probe, and what they say."""

from __future__ import annotations

import dataclasses
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.packet import Packet

from xdp_router.core.abi_values import EndpointKind
from xdp_router.core.events import ProbeReply
from xdp_router.core.model import Backend, Endpoint, Probe, ProbeAnswer, ProbeKind
from xdp_router.core.probe_kinds import (
    ANSWER_SEEN,
    judge,
    message_of,
    parse_echo_reply,
    probe_noun,
    probed_beside,
    probed_endpoint,
)
from xdp_router.core.stun import BINDING_ERROR, BINDING_SUCCESS, COOKIE

V6 = 0x20010DB8 << 96
ADDRESSES = st.integers(1, 0xFFFF_FFFE) | st.integers(0, 0xFFFF_FFFF).map(lambda low: V6 | low)
PORTS = st.integers(1, 65_535)
U32 = st.integers(0, 0xFFFF_FFFF)
NEAR = {False: 0xC6120101, True: V6 | 1}
FAR = {False: 0xC6120102, True: V6 | 2}
FAMILIES = pytest.mark.parametrize("is_v6", [False, True])


def backend(probe: Probe, addr: int = FAR[False], port: int = 3478) -> Backend:
    """A UDP backend that is probed so."""
    return Backend(1, "b1", Endpoint(addr, port, 17), 0, probe=probe)


def near_of(addr: int) -> int:
    """Our address of the same family."""
    return NEAR[addr >= 1 << 32]


def read(target: Backend, probe_port: int, seq: int) -> Packet:
    """A probe as scapy finds it in a packet whose checksum it would compute itself."""
    addr = target.endpoint.addr
    message = message_of(target, near_of(addr))
    sent = message.build(probe_port, seq)
    assert len(sent) == message.length
    names: dict[str, Any] = {"src": str(ip_address(near_of(addr))), "dst": str(ip_address(addr))}
    head = (
        IPv6(nh=message.protocol, hlim=64, **names)
        if addr >= 1 << 32
        else IP(proto=message.protocol, **names)
    )
    packet = head.__class__(bytes(head / sent))
    again = packet.copy()
    for layer in ("chksum", "cksum"):
        if layer in again.payload.fields:
            delattr(again.payload, layer)
    # scapy computes what it is not given: the checksum was right.
    assert bytes(again.payload) == sent
    return packet.payload


@FAMILIES
@given(probe_port=PORTS, seq=U32)
def test_echo_request(is_v6: bool, probe_port: int, seq: int) -> None:
    """Identifier is the probe port, the payload begins with the number."""
    found = read(backend(Probe(ProbeKind.ICMP), FAR[is_v6]), probe_port, seq)
    assert isinstance(found, ICMPv6EchoRequest if is_v6 else ICMP)
    assert (found.type, found.code) == ((128 if is_v6 else 8), 0)
    assert (found.id, found.seq) == (probe_port, seq >> 16)
    assert bytes(found)[8:] == seq.to_bytes(4, "big") + bytes(4)


@given(addr=ADDRESSES, port=PORTS, probe_port=PORTS, seq=U32)
def test_stun_request(addr: int, port: int, probe_port: int, seq: int) -> None:
    """A binding request in a datagram; the transaction id begins with the number."""
    found = read(backend(Probe(ProbeKind.STUN), addr, port), probe_port, seq)
    assert isinstance(found, UDP)
    assert (found.sport, found.dport, found.len) == (probe_port, port, 28)
    body = bytes(found)[8:]
    assert body[:8] == bytes.fromhex("00010000") + COOKIE.to_bytes(4, "big")
    assert body[8:12] == seq.to_bytes(4, "big")


@given(addr=ADDRESSES, probe_port=PORTS, seq=U32, payload=st.binary(max_size=512))
def test_datagram(addr: int, probe_port: int, seq: int, payload: bytes) -> None:
    """The configured payload and nothing else; a checksum of 0 would be none."""
    found = read(backend(Probe(ProbeKind.UDP, payload=payload), addr), probe_port, seq)
    assert isinstance(found, UDP)
    assert (found.sport, found.dport) == (probe_port, 3478)
    assert bytes(found)[8:] == payload
    assert found.chksum != 0


def test_a_datagram_whose_checksum_comes_out_as_0() -> None:
    """It is sent as ffff, which means the same and is not "no checksum" (RFC 768)."""
    probe = backend(Probe(ProbeKind.UDP, payload=bytes(2)))
    plain = message_of(probe, NEAR[False]).build(61_000, 0)
    payload = plain[6:8]  # adds what was missing
    made = message_of(backend(Probe(ProbeKind.UDP, payload=payload)), NEAR[False])
    assert made.build(61_000, 0)[6:8] == b"\xff\xff"


def test_syn_is_built_elsewhere() -> None:
    """It is a segment of its own, in adapters/probe_socket.py."""
    with pytest.raises(ValueError, match="'b1' is probed by syn"):
        message_of(backend(Probe()), NEAR[False])


@pytest.mark.parametrize(
    ("probe", "addr", "endpoint", "name", "noun"),
    [
        (Probe(), FAR[False], Endpoint(FAR[False], 3478, 6), "syn", "SYN"),
        (
            Probe(port=22),
            FAR[True],
            Endpoint(FAR[True], 22, 6),
            "tcp:22",
            "SYN (port 22)",
        ),
        (Probe(ProbeKind.ICMP), FAR[False], Endpoint(FAR[False], 0, 1), "icmp", "echo request"),
        (Probe(ProbeKind.ICMP), FAR[True], Endpoint(FAR[True], 0, 58), "icmp", "echo request"),
        (Probe(ProbeKind.STUN), FAR[False], Endpoint(FAR[False], 3478, 17), "stun", "STUN request"),
        (Probe(ProbeKind.UDP), FAR[True], Endpoint(FAR[True], 3478, 17), "udp", "datagram"),
    ],
)
def test_what_is_probed(probe: Probe, addr: int, endpoint: Endpoint, name: str, noun: str) -> None:
    """Address, port and protocol that an answer comes from, and the words for it."""
    assert probed_endpoint(backend(probe, addr)) == endpoint
    assert probe.name == name
    assert probe_noun(probe) == noun


def test_what_xdp_has_to_know_beside_the_backends() -> None:
    """Where nobody but probes goes, and STUN servers; one that is asked in two ways is none."""
    tcp = Backend(2, "web", Endpoint(FAR[False], 80), 0)
    others = [
        backend(Probe(ProbeKind.ICMP)),
        backend(Probe(ProbeKind.ICMP), port=99),
        backend(Probe(ProbeKind.STUN)),
        backend(Probe(ProbeKind.STUN), port=53),
        backend(Probe(ProbeKind.UDP), port=53),
        dataclasses.replace(tcp, probe=Probe(port=22)),
        dataclasses.replace(tcp, probe=Probe(port=80)),
        dataclasses.replace(tcp, probe=Probe(ProbeKind.UDP)),
    ]
    host = FAR[False]
    assert probed_beside([tcp, *others]) == {
        (Endpoint(host, 0, 1), EndpointKind.PROBE): others[0],
        (Endpoint(host, 3478, 17), EndpointKind.STUN): others[2],
        (Endpoint(host, 22, 6), EndpointKind.PROBE): others[5],
        (Endpoint(host, 80, 17), EndpointKind.PROBE): others[7],
    }


# Answers


@FAMILIES
@given(probe_port=PORTS, seq=U32, bit=st.integers(0, 8 * 16 - 1))
def test_an_echo_reply_is_the_request_with_another_type(
    is_v6: bool, probe_port: int, seq: int, bit: int
) -> None:
    """Port and number are found again; with one bit changed they are others, or none."""
    request = message_of(backend(Probe(ProbeKind.ICMP), FAR[is_v6]), NEAR[is_v6])
    message = request.build(probe_port, seq)
    reply = bytes([129 if is_v6 else 0]) + message[1:]
    assert parse_echo_reply(reply, request.protocol) == (probe_port, seq)
    changed = bytearray(reply)
    changed[bit // 8] ^= 1 << bit % 8
    if bit // 8 in (2, 3) or bit // 8 >= 12:
        return  # the checksum is the stack's affair, the last four bytes are nobody's
    try:
        assert parse_echo_reply(bytes(changed), request.protocol) != (probe_port, seq)
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"", "0 bytes"),
        (bytes(15), "15 bytes"),
        (bytes(17), "17 bytes"),
        (b"\x08" + bytes(15), "type 8"),
        (b"\x00\x01" + bytes(14), "code 1"),
        (bytes(6) + b"\x00\x01" + bytes(8), "sequence number 1"),
    ],
)
def test_what_is_no_echo_reply_of_a_probe(message: bytes, said: str) -> None:
    """Cut, longer, a request, or with a sequence number that its payload does not have."""
    with pytest.raises(ValueError, match=said):
        parse_echo_reply(message, 1)


SEQ, PORT = 0xA1B2C3D4, 61_000


def reply(answer: ProbeAnswer, *, proto: int, **rest: Any) -> ProbeReply:
    """An answer from the probed endpoint to the probe's port."""
    return ProbeReply(FAR[False], 3478, PORT, rest.pop("seq", SEQ), answer, 1, proto, **rest)


@pytest.mark.parametrize(
    ("probe", "answer", "proto"),
    [
        (Probe(), ProbeAnswer.SYNACK, 6),
        (Probe(port=22), ProbeAnswer.RST, 6),
        (Probe(), ProbeAnswer.UNREACHABLE, 6),
        (Probe(ProbeKind.ICMP), ProbeAnswer.ECHO, 1),
        (Probe(ProbeKind.ICMP), ProbeAnswer.UNREACHABLE, 58),
    ],
)
def test_a_number_must_be_the_probes(probe: Probe, answer: ProbeAnswer, proto: int) -> None:
    """All 32 bits of it, nonce and hash."""
    assert judge(probe, SEQ, reply(answer, proto=proto)) is answer
    for bit in range(32):
        assert judge(probe, SEQ, reply(answer, proto=proto, seq=SEQ ^ 1 << bit)) is None


def _stun(kind: int = BINDING_SUCCESS, body: bytes = b"") -> bytes:
    request = message_of(backend(Probe(ProbeKind.STUN)), NEAR[False]).build(PORT, SEQ)[8:]
    return kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + request[4:] + body


def stun_says(payload: bytes) -> ProbeAnswer | None:
    """What comes of a datagram for a STUN probe."""
    event = reply(ProbeAnswer.DATAGRAM, proto=17, seq=0, payload=payload)
    return judge(Probe(ProbeKind.STUN), SEQ, event)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (_stun(), ProbeAnswer.STUN),
        (_stun(body=bytes.fromhex("002000080001a147e112a643")), ProbeAnswer.STUN),
        (_stun(body=bytes.fromhex("80220050") + bytes(80))[:ANSWER_SEEN], ProbeAnswer.STUN),
        (_stun(body=bytes.fromhex("80220050") + bytes(80))[:60], None),
        (_stun(BINDING_ERROR, bytes.fromhex("0009000400000401")), ProbeAnswer.STUN),
        (_stun(BINDING_ERROR, bytes.fromhex("0009000400000500")), ProbeAnswer.UNEXPECTED),
        (_stun(BINDING_ERROR, bytes.fromhex("0009000400000300")), ProbeAnswer.UNEXPECTED),
        (_stun(BINDING_ERROR), None),
        (_stun(0x0001), None),
        (_stun()[:19], None),
        (b"", None),
    ],
)
def test_stun_answers(payload: bytes, said: ProbeAnswer | None) -> None:
    """A success, or an error of a server at work, is good; what is no STUN belongs to nothing."""
    assert stun_says(payload) is said


def test_a_stun_answer_has_the_probes_transaction_id() -> None:
    """Each of its 96 bits, and each of the cookie's."""
    good = _stun()
    for bit in range(4 * 8, 20 * 8):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        assert stun_says(bytes(changed)) is None, bit


@pytest.mark.parametrize(
    ("expected", "payload", "said"),
    [
        (b"", b"", ProbeAnswer.DATAGRAM),
        (b"", b"anything", ProbeAnswer.DATAGRAM),
        (b"PONG", b"PONG 7", ProbeAnswer.DATAGRAM),
        (b"PONG", b"PON", ProbeAnswer.UNEXPECTED),
        (b"PONG", b"busy", ProbeAnswer.UNEXPECTED),
    ],
)
def test_datagrams_begin_with_what_is_expected(
    expected: bytes, payload: bytes, said: ProbeAnswer
) -> None:
    """Nothing expected: any answer. Another one does not win, and refuses nothing either."""
    event = reply(ProbeAnswer.DATAGRAM, proto=17, seq=0, payload=payload)
    assert judge(Probe(ProbeKind.UDP, answer=expected), SEQ, event) is said


@pytest.mark.parametrize("kind", [ProbeKind.STUN, ProbeKind.UDP])
def test_a_closed_udp_port_is_told_by_its_ports_alone(kind: ProbeKind) -> None:
    """An ICMP error need quote no more than eight bytes of a datagram."""
    event = reply(ProbeAnswer.UNREACHABLE, proto=17, seq=0)
    assert judge(Probe(kind), SEQ, event) is ProbeAnswer.UNREACHABLE
