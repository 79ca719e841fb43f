# SPDX-License-Identifier: Apache-2.0
"""Ring buffer records of ``ebpf/abi.h``: bytes become events of the core."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from .abi_keys import (
    KEY6,
    Buffer,
    flow_key_from_bytes,
    pack_shared_key,
    read_fields,
    slot_values,
    unpack_addr,
)
from .abi_values import EventHeader, EventType
from .errors import AbiError
from .events import Datagram, FirstPacket, FlowEstablished, ProbeReply, XdpDecided
from .model import Compared, FlowKey, Mode, ProbeAnswer, Reason

_BEFORE_KIND = "=Q40s4IH"
_EVENT = Struct(_BEFORE_KIND + "4BHIIQ")
EVENT_SIZE = _EVENT.size
_COMPARED = Struct("=6I")
COMPARED_SIZE = _COMPARED.size
_KIND_AT = Struct(_BEFORE_KIND).size

_ETH_HEADER = 14
# For the hot functions: member look-ups and enum calls would cost as much as the rest.
_FIRST_PACKET, _PROBE_REPLY, _ESTABLISHED, _XDP_DECIDED, _DATAGRAM = map(int, EventType)
_MODES = {int(each): each for each in Mode}
_REASONS = {int(each): each for each in Reason}  # there may be gaps
_ANSWERS = tuple(ProbeAnswer)[: ProbeAnswer.DATAGRAM + 1]  # the rest is not XDP's


Decoded = FirstPacket | Datagram | ProbeReply | FlowEstablished | XdpDecided


def decode_event(record: Buffer) -> Decoded:
    """Event of one ring buffer record; a held packet's frame is copied out of it."""
    if len(record) < EVENT_SIZE:
        raise AbiError(f"event: record of {len(record)} bytes, expected at least {EVENT_SIZE}")
    (
        time_ns,
        key,
        service,
        backend,
        ifindex,
        seq,
        frame_len,
        kind,
        detail,
        reason,
        wscale,
        syn_data,
        fppl_ns,
        synack_us,
        seen_ns,
    ) = _EVENT.unpack_from(record)
    source, destination, sport, dport, proto, _ = KEY6.unpack(key)
    saddr, daddr = unpack_addr(source), unpack_addr(destination)
    if kind in (_FIRST_PACKET, _DATAGRAM):
        frame = bytes(record[EVENT_SIZE : EVENT_SIZE + frame_len])
        if len(frame) != frame_len or frame_len < _ETH_HEADER:
            raise AbiError(
                f"event: frame of {frame_len} bytes in a record of {len(record)}, "
                f"expected {_ETH_HEADER} to {len(record) - EVENT_SIZE}"
            )
        if kind == _DATAGRAM:
            flow = FlowKey(saddr, sport, daddr, dport, proto)
            return Datagram(flow, service, ifindex, frame)
        return FirstPacket(
            FlowKey(saddr, sport, daddr, dport, proto),
            service,
            ifindex,
            seen_ns,
            seq,
            syn_data,
            wscale,
            frame,
        )
    if kind == _PROBE_REPLY:
        if not 0 < detail < len(_ANSWERS):
            raise AbiError(f"event: probe answer {detail}, expected 1 to {len(_ANSWERS) - 1}")
        payload = bytes(record[EVENT_SIZE : EVENT_SIZE + frame_len])
        if len(payload) != frame_len:
            raise AbiError(f"event: payload of {frame_len} bytes in a record of {len(record)}")
        return ProbeReply(saddr, sport, dport, seq, _ANSWERS[detail], time_ns, proto, payload)
    if kind == _ESTABLISHED:
        return FlowEstablished(
            FlowKey(saddr, sport, daddr, dport, proto), backend, time_ns, synack_us, fppl_ns
        )
    if kind == _XDP_DECIDED:
        if detail not in _MODES or reason not in _REASONS:
            raise AbiError(f"event: mode {detail} or reason {reason} is unknown")
        return XdpDecided(
            FlowKey(saddr, sport, daddr, dport, proto),
            service,
            backend,
            _MODES[detail],
            _REASONS[reason],
            seen_ns,
            time_ns,
            _compared(record, frame_len) if frame_len else (),
        )
    raise AbiError(f"event: type {kind} is unknown, expected one of {[*map(int, EventType)]}")


def _compared(record: Buffer, size: int) -> tuple[Compared, ...]:
    if size != COMPARED_SIZE or len(record) < EVENT_SIZE + size:
        raise AbiError(
            f"event: {size} bytes of what was compared in a record of {len(record)}, "
            f"expected {COMPARED_SIZE}"
        )
    values = _COMPARED.unpack_from(record, EVENT_SIZE)
    return tuple(Compared(*values[which::2]) for which in (0, 1))


def pack_compared(pair: Sequence[Compared]) -> bytes:
    """``struct compared`` of two; for tests and replays."""
    one, other = pair
    return _COMPARED.pack(
        one.backend, other.backend, one.wait_ns, other.wait_ns, one.open, other.open
    )


def is_probe_reply(record: Buffer) -> bool:
    """Whether a record will decode to a ProbeReply; looks at its type alone."""
    return len(record) > _KIND_AT and record[_KIND_AT] == _PROBE_REPLY


def pack_event(value: EventHeader, frame: bytes = b"", size: int = 0) -> bytes:
    """Record as XDP writes it, padded with zeros to ``size``; for tests and replays."""
    time_ns, key, *rest = slot_values(value)
    return (_EVENT.pack(time_ns, pack_shared_key(key), *rest) + frame).ljust(size, b"\0")


def unpack_event_header(data: Buffer) -> EventHeader:
    """Read the head of a record without judging it."""
    fields = read_fields(_EVENT, data[:EVENT_SIZE], "event")
    return EventHeader(fields[0], flow_key_from_bytes(fields[1]), *fields[2:])
