# SPDX-License-Identifier: Apache-2.0
"""xdp_router.core.abi_events: records become events, whatever is in them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core import abi, model
from xdp_router.core.abi_events import is_probe_reply
from xdp_router.core.errors import AbiError
from xdp_router.core.events import Datagram, FirstPacket, FlowEstablished, ProbeReply, XdpDecided

KEY = model.FlowKey(0xC6120A01, 40001, 0xC6126401, 80)
EVENT = abi.EventHeader(1 << 50, KEY, 2, 3, 4, 0xDEADBEEF, 0, 7, 8, 9, 10, 11, 12, 13, 1 << 51)
FRAME = b"\x02\0\0\0\0\x01" + b"\x02\0\0\0\0\x02" + b"\x08\x00" + bytes(range(60))


def first_packet_record(**changes: Any) -> bytes:
    head = dataclasses.replace(
        EVENT, type=abi.EventType.FIRST_PACKET, frame_len=len(FRAME), **changes
    )
    return abi.pack_event(head, FRAME, abi.RECORD_SMALL)


def test_first_packet_is_decoded_with_its_frame() -> None:
    """A first-packet record gives the flow, the SYN's facts and exactly the frame."""
    expected = FirstPacket(KEY, 2, 4, 1 << 51, 0xDEADBEEF, 11, 10, FRAME)
    assert abi.decode_event(first_packet_record()) == expected
    assert abi.decode_event(memoryview(first_packet_record())) == expected


def test_a_later_datagram_is_decoded_with_its_frame() -> None:
    """The flow, where it came in, and exactly the frame."""
    key = dataclasses.replace(KEY, proto=17)
    head = dataclasses.replace(EVENT, type=abi.EventType.DATAGRAM, frame_len=len(FRAME), key=key)
    record = abi.pack_event(head, FRAME, abi.RECORD_SMALL)
    assert abi.decode_event(record) == Datagram(key, 2, 4, FRAME)


def test_probe_reply_is_decoded() -> None:
    """A probe reply's key reads backend to us; its time is XDP's."""
    head = dataclasses.replace(
        EVENT,
        key=model.FlowKey(0xC6120102, 8080, 0xC6120101, 61007),
        type=abi.EventType.PROBE_REPLY,
        detail=model.ProbeAnswer.RST,
    )
    assert abi.decode_event(abi.pack_event(head)) == ProbeReply(
        0xC6120102, 8080, 61007, 0xDEADBEEF, model.ProbeAnswer.RST, 1 << 50
    )
    assert is_probe_reply(abi.pack_event(head))
    assert not is_probe_reply(abi.pack_event(EVENT))
    assert not is_probe_reply(abi.pack_event(head)[:8])


def test_established_and_xdp_decided_are_decoded() -> None:
    """State changes carry what the decision record needs."""
    head = dataclasses.replace(EVENT, type=abi.EventType.ESTABLISHED)
    assert abi.decode_event(abi.pack_event(head)) == FlowEstablished(KEY, 3, 1 << 50, 13, 12)
    head = dataclasses.replace(
        EVENT,
        type=abi.EventType.XDP_DECIDED,
        detail=model.Mode.HASH,
        reason=model.Reason.RING_FULL,
    )
    assert abi.decode_event(abi.pack_event(head)) == XdpDecided(
        KEY, 2, 3, model.Mode.HASH, model.Reason.RING_FULL, 1 << 51, 1 << 50
    )
    pair = (model.Compared(3, 1 << 29, 7), model.Compared(9, 0, 1 << 31))
    head = dataclasses.replace(head, frame_len=abi.COMPARED_SIZE)
    decoded = abi.decode_event(abi.pack_event(head, abi.pack_compared(pair)))
    assert isinstance(decoded, XdpDecided)
    assert decoded.compared == pair


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ({"type": 0}, "type 0"),
        ({"type": 6}, "type 6"),
        ({"type": 5, "frame_len": 300}, "frame of 300"),
        ({"type": 5, "frame_len": 13}, "frame of 13"),
        ({"type": 1, "frame_len": 300}, "frame of 300"),
        ({"type": 1, "frame_len": 13}, "frame of 13"),
        ({"type": 2, "detail": 0}, "probe answer 0"),
        ({"type": 2, "detail": 6}, "probe answer 6"),
        ({"type": 4, "detail": 99}, "mode 99"),
        ({"type": 4, "detail": 0, "reason": 99}, "reason 99"),
        ({"type": 4, "detail": 3, "reason": 2, "frame_len": 23}, "23 bytes of what was compared"),
    ],
)
def test_records_with_unknown_numbers_are_refused(head: dict[str, int], complaint: str) -> None:
    """A record that this version does not understand raises AbiError, naming the number."""
    changes: dict[str, Any] = dict(head)
    record = abi.pack_event(dataclasses.replace(EVENT, **changes), b"", abi.RECORD_SMALL)
    with pytest.raises(AbiError, match=complaint):
        abi.decode_event(record)


@given(st.binary(max_size=400))
def test_any_bytes_give_an_event_or_the_documented_error(record: bytes) -> None:
    """Decoding never raises anything but AbiError."""
    try:
        abi.decode_event(record)
    except AbiError:
        pass


def test_each_number_is_the_reason_that_has_it() -> None:
    """Whatever the order that they are written down in."""
    for reason in model.Reason:
        head = dataclasses.replace(EVENT, type=4, detail=model.Mode.HASH, reason=reason)
        decided = abi.decode_event(abi.pack_event(head))
        assert isinstance(decided, XdpDecided)
        assert decided.reason is reason
