# SPDX-License-Identifier: Apache-2.0
"""An interface behind a tag speaks tagged frames, and hears no others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

import pytest

from tests.support.netns import LabFactory
from tests.support.receipts import ask_by_tcp, ask_by_udp
from tests.support.tap import Tap, wait_readable
from tests.support.wide_lab import wide_spec
from xdp_router.lab import BackendSpec, LabSpec, links, xdp_stub
from xdp_router.lab.bpf_code import R1, R2, R3, R4, R5, R6, Code, ProgramType
from xdp_router.lab.spec import Family

pytest_plugins = ("tests.support.netns",)

SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
TAGS = {vlan: struct.pack(">HH", 0x8100, vlan) for vlan in (7, 8)}


@pytest.mark.parametrize("delay_line", [False, True], ids=["direct", "delay line"])
@pytest.mark.parametrize("family", [4, 6])
def test_wire_has_tags_and_stacks_do_not(
    make_lab: LabFactory, family: Family, delay_line: bool
) -> None:
    """Every frame of the backend has the tag where the router gets it; TCP and UDP work."""
    lab = make_lab(LabSpec((BackendSpec("b1", kind="hash", vlan=7, delay_line=delay_line),)))
    backend = lab.addresses_of(family).backends[0]
    with contextlib.closing(lab.router.run(lambda: Tap("be1"))) as tap:
        assert ask_by_udp(lab.client, backend, b"through the tag") == "b1"
        assert ask_by_tcp(lab.client, backend, bytes(100_000)) == "b1"
        frames = tap.received()
    assert len(frames) > 3
    assert {frame[12:16] for frame in frames} == {TAGS[7]}


@pytest.mark.parametrize(
    ("tag", "heard"), [(b"", False), (TAGS[8], False), (TAGS[7], True)], ids=["none", "8", "7"]
)
def test_other_frames_are_not_heard(make_lab: LabFactory, tag: bytes, heard: bool) -> None:
    """Who asks without the tag, or with another one, gets no answer; with the tag, one with it."""
    lab = make_lab(wide_spec(vlan=7))
    own, peer = (
        socket.inet_aton(host)
        for host in (lab.addresses.backend_routers[0], lab.addresses.backends[0][0])
    )
    with (
        contextlib.closing(lab.router.run(lambda: Tap("be1"))) as tap,
        lab.router.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender,
    ):
        sender.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)  # past the router's own tag
        sender.bind(("be1", 0))
        arp = struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + tap.address + own + bytes(6) + peer
        sender.send(b"\xff" * 6 + tap.address + tag + b"\x08\x06" + arp)
        assert wait_readable([tap], 0.3) == heard
        assert [frame[12:18] for frame in tap.received()] == [tag + b"\x08\x06"] * heard


def test_frame_with_a_tag_keeps_it(make_lab: LabFactory) -> None:
    """What a program sends with a tag of its own leaves with that one, not with two."""
    lab = make_lab(wide_spec(vlan=7))
    with (
        contextlib.closing(lab.backends[0].run(lambda: Tap("eth0"))) as sender,
        contextlib.closing(lab.router.run(lambda: Tap("be1"))) as tap,
    ):
        frame = b"\xff" * 6 + sender.address + TAGS[8] + b"\x88\xb5" + bytes(46)
        sender.send(frame)
        assert wait_readable([tap], 2)
        assert tap.received() == [frame]


def test_xdp_sees_the_tag(make_lab: LabFactory) -> None:
    """The tag is in the frame itself when XDP gets it, not beside it where XDP can't look."""
    lab = make_lab(wide_spec(vlan=7))
    backend = lab.addresses.backends[0]
    code = Code()
    code.copy(R6, R1)
    code.load(4, R2, R6, 0)
    code.load(4, R3, R6, 4)
    code.copy(R4, R2)
    code.add(R4, 14)
    code.jump_beyond(R4, R3, "pass")
    code.load(2, R5, R2, 12)
    code.jump("!=", R5, socket.htons(0x8100), "pass")
    code.end(xdp_stub.XDP_DROP)
    code.label("pass")
    code.end(xdp_stub.XDP_PASS)
    program = code.install("xr_test_tagged", ProgramType.XDP)
    assert ask_by_udp(lab.client, backend, b"without the program") == "b1"
    links.attach_xdp(lab.router, "be1", program)
    os.close(program)
    with pytest.raises(TimeoutError):
        ask_by_udp(lab.client, backend, b"with it", timeout=0.3)
