# SPDX-License-Identifier: Apache-2.0
"""Records of answers to probes: of each kind, of each family, and those that are cut."""

from __future__ import annotations

import dataclasses

import pytest

from xdp_router.core import abi
from xdp_router.core.errors import AbiError
from xdp_router.core.events import ProbeReply
from xdp_router.core.model import NO_BACKEND, FlowKey, ProbeAnswer

HOST, US = 0xC6120102, 0xC6120101
HOST6, US6 = 0x20010DB8 << 96 | 2, 0x20010DB8 << 96 | 1
HEAD = abi.EventHeader(
    time_ns=1 << 50,
    key=FlowKey(HOST, 3478, US, 61_007, 17),
    service=0,
    backend=NO_BACKEND,
    ifindex=3,
    seq=0,
    frame_len=0,
    type=abi.EventType.PROBE_REPLY,
    detail=ProbeAnswer.DATAGRAM,
    reason=0,
    wscale=0,
    syn_data=0,
    fppl_ns=0,
    synack_us=0,
    seen_ns=0,
)


def decoded(frame: bytes = b"", size: int = 0, **change: object) -> object:
    """What becomes of a record."""
    head = dataclasses.replace(HEAD, **change)  # type: ignore[arg-type]  # test's words
    return abi.decode_event(abi.pack_event(head, frame, size))


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(64))])
def test_a_datagram_comes_with_its_beginning(payload: bytes) -> None:
    """As much as the record says, and not what pads it."""
    assert decoded(payload, abi.RECORD_SMALL, frame_len=len(payload)) == ProbeReply(
        HOST, 3478, 61_007, 0, ProbeAnswer.DATAGRAM, 1 << 50, 17, payload
    )


@pytest.mark.parametrize(("host", "us", "proto"), [(HOST, US, 1), (HOST6, US6, 58)])
def test_an_echo_reply_has_its_protocol_and_no_port(host: int, us: int, proto: int) -> None:
    """Its identifier is the probe's port."""
    key = FlowKey(host, 0, us, 61_007, proto)
    found = decoded(key=key, seq=0xDEADBEEF, detail=ProbeAnswer.ECHO)
    assert found == ProbeReply(host, 0, 61_007, 0xDEADBEEF, ProbeAnswer.ECHO, 1 << 50, proto)


def test_a_payload_that_is_not_all_there_is_refused() -> None:
    """The record is shorter than it says."""
    with pytest.raises(AbiError, match="payload of 5 bytes"):
        decoded(b"four", frame_len=5)


@pytest.mark.parametrize("answer", [ProbeAnswer.LOST, ProbeAnswer.STUN, ProbeAnswer.UNEXPECTED])
def test_what_xdp_never_says_is_refused(answer: ProbeAnswer) -> None:
    """Those are judgements of the daemon's."""
    with pytest.raises(AbiError, match=f"probe answer {answer}, expected 1 to 5"):
        decoded(detail=answer)
