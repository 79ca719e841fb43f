# SPDX-License-Identifier: Apache-2.0
"""What a probe of each kind is: what is asked, what is sent behind the IP header, what answers.

All kinds share one numbering: a probe has a port from ``probe_ports`` and a 32-bit number of
:mod:`probe_sequence`, whose low 24 bits are a keyed hash. XDP recognises by the hash:

    kind  port                   number
    syn   TCP source port        TCP sequence number
    icmp  echo identifier        first 4 bytes of the 8 of payload; its high half: sequence number
    stun  UDP source port        first 4 bytes of the transaction id
    tcp-connect, http: neither; a connection of the kernel's has its own
    udp   UDP source port        nowhere: somebody else's protocol has no room for it

The hash is over the endpoint that is probed, which with ICMP has port 0.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Protocol

from .abi_values import EndpointKind
from .address import ICMP, ICMPV6, icmp_protocol
from .checksum import checksum, ones_sum, pseudo_sum
from .events import ProbeReply
from .model import Backend, Endpoint, Probe, ProbeAnswer, ProbeKind
from .stun import TRANSACTION_BYTES, binding_request, parse_binding_answer

TCP, UDP = 6, 17

ANSWER_SEEN = 64
"""Bytes of a datagram's payload that XDP hands on."""

_ECHO = struct.Struct("!BBHHHI4x")
_ECHO_REQUEST = {ICMP: 8, ICMPV6: 128}
_ECHO_REPLY = {ICMP: 0, ICMPV6: 129}
_UDP = struct.Struct("!HHHH")
_NOUNS = {
    ProbeKind.SYN: "SYN",
    ProbeKind.ICMP: "echo request",
    ProbeKind.STUN: "STUN request",
    ProbeKind.UDP: "datagram",
    ProbeKind.CONNECT: "connection",
    ProbeKind.HTTP: "HEAD request",
}
_REFUSALS = (ProbeAnswer.RST, ProbeAnswer.UNREACHABLE)


def probed_endpoint(backend: Backend) -> Endpoint:
    """What a backend's probes are addressed to, and its answers come from."""
    endpoint, probe = backend.endpoint, backend.probe
    if probe.kind is ProbeKind.ICMP:
        return Endpoint(endpoint.addr, 0, icmp_protocol(endpoint.addr))
    protocol = UDP if probe.kind in (ProbeKind.STUN, ProbeKind.UDP) else TCP
    return Endpoint(endpoint.addr, probe.port or endpoint.port, protocol)


def probed_beside(
    backends: Collection[Backend],
) -> dict[tuple[Endpoint, EndpointKind], Backend]:
    """What XDP takes answers from beside the backends' own endpoints, and whose STUN's."""
    # Answers of a server that is asked in both ways cannot all be STUN's.
    plain = {probed_endpoint(each) for each in backends if each.probe.kind is ProbeKind.UDP}
    found: dict[tuple[Endpoint, EndpointKind], Backend] = {}
    for backend in backends:
        probed = probed_endpoint(backend)
        if backend.probe.kind is ProbeKind.STUN and probed not in plain:
            found.setdefault((probed, EndpointKind.STUN), backend)
        elif probed != backend.endpoint:
            found.setdefault((probed, EndpointKind.PROBE), backend)
    return found


def probe_noun(probe: Probe) -> str:
    """What is sent, in a sentence."""
    noun = _NOUNS[probe.kind]
    return f"{noun} (port {probe.port})" if probe.port else noun


# What is sent


class Message(Protocol):
    """A kind's probes to one endpoint, from one address, but for port and number."""

    protocol: int
    length: int
    """Bytes behind the IP header, of each of them."""

    def build(self, probe_port: int, seq: int) -> bytes:
        """What stands behind the IP header of one probe."""


class EchoRequest:
    """ICMP and ICMPv6 echo requests (RFC 792, RFC 4443)."""

    __slots__ = ("_base", "_type", "length", "protocol")

    def __init__(self, source: int, destination: int) -> None:
        self.protocol = icmp_protocol(destination)
        self.length = _ECHO.size
        self._type = _ECHO_REQUEST[self.protocol]
        self._base = self._type << 8
        if self.protocol == ICMPV6:
            self._base += pseudo_sum(source, destination, ICMPV6, self.length)

    def build(self, probe_port: int, seq: int) -> bytes:
        """One request: the probe port is its identifier, ``seq`` its payload."""
        high = seq >> 16
        total = self._base + probe_port + high + high + (seq & 0xFFFF)
        return _ECHO.pack(self._type, 0, checksum(total), probe_port, high, seq)


def parse_echo_reply(message: bytes, protocol: int) -> tuple[int, int]:
    """Probe port and number of an echo reply, from behind the IP header. Raise ValueError."""
    if len(message) != _ECHO.size:
        raise ValueError(f"echo reply of {len(message)} bytes, expected {_ECHO.size}")
    kind, code, _, probe_port, high, seq = _ECHO.unpack(message)
    if (kind, code) != (_ECHO_REPLY[protocol], 0):
        raise ValueError(f"ICMP type {kind}, code {code}, expected an echo reply")
    if high != seq >> 16:
        raise ValueError(f"echo sequence number {high}, expected {seq >> 16} as in its payload")
    return probe_port, seq


class _Datagrams:
    """UDP (RFC 768) from a probe port."""

    __slots__ = ("_base", "_port", "length", "protocol")

    def __init__(self, source: int, destination: int, port: int, payload_bytes: int) -> None:
        self.protocol = UDP
        self.length = _UDP.size + payload_bytes
        self._port = port
        # The length counts twice: in the pseudo header and in UDP's own.
        self._base = pseudo_sum(source, destination, UDP, self.length) + port + self.length

    def _datagram(self, probe_port: int, payload: bytes, payload_sum: int) -> bytes:
        total = checksum(self._base + probe_port + payload_sum) or 0xFFFF  # 0 would mean: none
        return _UDP.pack(probe_port, self._port, self.length, total) + payload


class StunRequest(_Datagrams):
    """STUN binding requests."""

    __slots__ = ()

    def __init__(self, source: int, destination: int, port: int) -> None:
        super().__init__(source, destination, port, len(binding_request(_transaction(0, 0))))

    def build(self, probe_port: int, seq: int) -> bytes:
        """One request, in a datagram."""
        payload = binding_request(_transaction(probe_port, seq))
        return self._datagram(probe_port, payload, ones_sum(payload))


class Datagram(_Datagrams):
    """The same payload in each datagram: who has asked is in its source port alone."""

    __slots__ = ("_payload", "_sum")

    def __init__(self, source: int, destination: int, port: int, payload: bytes) -> None:
        super().__init__(source, destination, port, len(payload))
        self._payload = payload
        self._sum = ones_sum(payload)

    def build(self, probe_port: int, seq: int) -> bytes:
        """One datagram; ``seq`` is not in it."""
        return self._datagram(probe_port, self._payload, self._sum)


def _transaction(probe_port: int, seq: int) -> bytes:
    return (seq << 16 | probe_port).to_bytes(6, "big") + bytes(TRANSACTION_BYTES - 6)


def message_of(backend: Backend, source: int) -> Message:
    """A backend's probes from an address. Raise ValueError for SYN and connections: they are none
    of these."""
    to, kind = probed_endpoint(backend), backend.probe.kind
    if kind is ProbeKind.ICMP:
        return EchoRequest(source, to.addr)
    if kind is ProbeKind.STUN:
        return StunRequest(source, to.addr, to.port)
    if kind is ProbeKind.UDP:
        return Datagram(source, to.addr, to.port, backend.probe.payload)
    raise ValueError(f"backend {backend.name!r} is probed by {kind.value}")


# What answers


def judge(probe: Probe, seq: int, event: ProbeReply) -> ProbeAnswer | None:
    """What an answer from the probed endpoint to an outstanding probe's port says; None: it
    does not belong to that probe."""
    if event.answer is ProbeAnswer.UNREACHABLE and event.proto == UDP:
        # A datagram is quoted by 8 bytes at least, which hold nothing but its ports.
        return ProbeAnswer.UNREACHABLE
    if probe.kind is ProbeKind.STUN:
        return _stun_answer(seq, event)
    if probe.kind is ProbeKind.UDP:
        good = event.payload.startswith(probe.answer)
        return ProbeAnswer.DATAGRAM if good else ProbeAnswer.UNEXPECTED
    return event.answer if event.seq == seq else None


def _stun_answer(seq: int, event: ProbeReply) -> ProbeAnswer | None:
    try:
        found = parse_binding_answer(event.payload, cut=len(event.payload) == ANSWER_SEEN)
    except ValueError:
        return None
    if found.transaction != _transaction(event.probe_port, seq):
        return None
    return ProbeAnswer.STUN if found.is_willing else ProbeAnswer.UNEXPECTED


def is_refusal(answer: ProbeAnswer) -> bool:
    """Whether a candidate that answers so has refused."""
    return answer in _REFUSALS
