# SPDX-License-Identifier: Apache-2.0
"""Ring buffer records of ``ebpf/abi.h``: bytes become events of the core."""

from __future__ import annotations

from struct import Struct

from .abi_keys import KEY, Buffer, flow_key_from_bytes, pack_flow_key, read_fields, slot_values
from .abi_values import EventHeader, EventType
from .errors import AbiError
from .events import FirstPacket, FlowEstablished, ProbeReply, XdpDecided
from .model import FlowKey, Mode, ProbeAnswer, Reason

_EVENT = Struct("=Q16s4IH4BHIIQ")
EVENT_SIZE = _EVENT.size

_ETH_HEADER = 14
# For the hot functions: member look-ups and enum calls would cost as much as the rest.
_FIRST_PACKET, _PROBE_REPLY, _ESTABLISHED, _XDP_DECIDED = map(int, EventType)
_MODES = tuple(Mode)
_REASONS = tuple(Reason)
_ANSWERS = tuple(ProbeAnswer)


def decode_event(record: Buffer) -> FirstPacket | ProbeReply | FlowEstablished | XdpDecided:
    """Event of one ring buffer record; a first packet's frame is copied out of it."""
    if len(record) < 64:
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
    saddr, daddr, sport, dport, proto, _ = KEY.unpack(key)
    if kind == _FIRST_PACKET:
        frame = bytes(record[64 : 64 + frame_len])
        if len(frame) != frame_len or frame_len < _ETH_HEADER:
            raise AbiError(
                f"event: frame of {frame_len} bytes in a record of {len(record)}, "
                f"expected {_ETH_HEADER} to {len(record) - EVENT_SIZE}"
            )
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
        return ProbeReply(saddr, sport, dport, seq, _ANSWERS[detail], time_ns)
    if kind == _ESTABLISHED:
        return FlowEstablished(
            FlowKey(saddr, sport, daddr, dport, proto), backend, time_ns, synack_us, fppl_ns
        )
    if kind == _XDP_DECIDED:
        if detail >= len(_MODES) or reason >= len(_REASONS):
            raise AbiError(f"event: mode {detail} or reason {reason} is unknown")
        return XdpDecided(
            FlowKey(saddr, sport, daddr, dport, proto),
            service,
            backend,
            _MODES[detail],
            _REASONS[reason],
            seen_ns,
            time_ns,
        )
    raise AbiError(f"event: type {kind} is unknown, expected one of {[*map(int, EventType)]}")


def pack_event(value: EventHeader, frame: bytes = b"", size: int = 0) -> bytes:
    """Record as XDP writes it, padded with zeros to ``size``; for tests and replays."""
    time_ns, key, *rest = slot_values(value)
    return (_EVENT.pack(time_ns, pack_flow_key(key), *rest) + frame).ljust(size, b"\0")


def unpack_event_header(data: Buffer) -> EventHeader:
    """Read the head of a record without judging it."""
    fields = read_fields(_EVENT, data[:EVENT_SIZE], "event")
    return EventHeader(fields[0], flow_key_from_bytes(fields[1]), *fields[2:])
