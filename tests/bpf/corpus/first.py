# SPDX-License-Identifier: Apache-2.0
"""First packets: held, and handed to the daemon with the whole frame."""

from __future__ import annotations

from typing import Any

from tests.support.frames import CWR, ECE, PSH, SYN, URG, Options, Segment
from tests.support.ipv6_frames import LONGER
from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Mode, Reason

from .case import NOW, Case, has_pending, tables_hold
from .flows import AGE_NS, seen, seen_key
from .world import CLIENT_ISN, MS, SHOP, World, flow_key, to_service

LINUX: Options = (
    ("MSS", 1460), ("SAckOK", b""), ("Timestamp", (12345, 0)), ("NOP", None), ("WScale", 7),
)  # fmt: skip
OPEN = Segment(flags=SYN, seq=CLIENT_ISN, options=LINUX, window=64240)
PLAIN = OPEN.but(options=())
NO_SCALE = abi.NO_WSCALE


def first_event(frame: bytes, **fields: object) -> dict[str, object]:
    """The event of a held first packet."""
    return {
        "type": abi.EventType.FIRST_PACKET,
        "frame": frame,
        "seen_ns": NOW,
        "backend": NO_BACKEND,
        "ifindex": lambda world: world.wires.client,
        "seq": CLIENT_ISN,
        "wscale": 7,
    } | fields


def held(name: str, frame: bytes, fields: dict[str, object] | None = None, **rest: Any) -> Case:
    """A case whose frame is a first packet that waits for the daemon."""
    rest = {"counters": {"first_packet": 1}} | rest
    event = first_event(frame, **(fields or {}))
    return Case(name=name, frame=frame, verdict=DROP, event=event, **rest)


def of_length(length: int) -> bytes:
    """A SYN whose frame has so many bytes: data as with TCP Fast Open, or padding."""
    segment = PLAIN.but(payload=bytes(max(0, length - 54)))
    return to_service(segment)


SEEN = has_pending(
    "SEEN",
    seen_key(),
    seen_ns=NOW,
    last_seen_ns=NOW,
    isn=CLIENT_ISN,
    backend=NO_BACKEND,
    service=0,
    ifindex=lambda world: world.wires.client,
    packets=0,
    octets=0,
    flags=0,
    mode=Mode.RACE,
    reason=Reason.NONE,
)

LENGTHS = [
    held(
        f"SYN in a frame of {length} bytes",
        of_length(length),
        {"wscale": NO_SCALE, "syn_data": length - 54},
        then=(tables_hold(1, 0),),
    )
    for length in (54, 55, 60, 127, 128, 239, 240, 241, 242, 1000)
]
LONGEST = [
    held(
        f"SYN in a frame of {length} bytes of IPv{family}",
        of_length(length - LONGER * (family == 6)),
        {"wscale": NO_SCALE, "syn_data": length - 54 - LONGER * (family == 6)},
        families=(family,),
        then=(tables_hold(1, 0),),
    )
    for length in (220, 240, 241, 1514, 1519, 1520)
    for family in (4, 6)
]


def _raw_options(options: bytes, payload: bytes = b"") -> bytes:
    """A SYN with these option bytes, whole words of them."""
    return to_service(PLAIN.but(payload=options + payload, words=5 + len(options) // 4))


SCALES = [
    held(f"window scale: {name}", _raw_options(options), {"wscale": wscale})
    for name, options, wscale in (
        ("0", bytes([3, 3, 0, 0]), 0),
        ("14", bytes([1, 3, 3, 14]), 14),
        ("15 counts as 14", bytes([3, 3, 15, 1]), 14),
        ("255 counts as 14", bytes([3, 3, 255, 1]), 14),
        ("the 10th option, behind padding", bytes([1]) * 9 + bytes([3, 3, 9]), 9),
        ("the 12th option", bytes([2, 4, 5, 180]) + bytes([1]) * 10 + bytes([3, 3, 9, 0, 0, 0]), 9),
        ("the 14th option is not looked at", bytes([1]) * 13 + bytes([3, 3, 9]), NO_SCALE),
        (
            "behind MSS, SACK, timestamps and padding",
            bytes([2, 4, 5, 180, 4, 2, 8, 10]) + bytes(8) + bytes([1, 3, 3, 9]),
            9,
        ),
        ("behind MSS and SACK", bytes([2, 4, 5, 180, 4, 2, 3, 3, 6, 0, 0, 0]), 6),
        ("the first of two", bytes([3, 3, 5, 3, 3, 6, 1, 1]), 5),
        ("none after the end of the list", bytes([0, 3, 3, 7]), NO_SCALE),
        ("option length 0", bytes([2, 0, 3, 3, 7, 0, 0, 0]), NO_SCALE),
        ("option length 1", bytes([2, 1, 3, 3, 7, 0, 0, 0]), NO_SCALE),
        ("option longer than the header", bytes([2, 40, 3, 3, 7, 0, 0, 0]), NO_SCALE),
        ("of a wrong length", bytes([3, 4, 7, 0]), NO_SCALE),
        ("only NOPs", bytes([1]) * 40, NO_SCALE),
        ("unknown options before", bytes([253, 4, 9, 9, 254, 2, 3, 3, 4, 0, 0, 0]), 4),
    )
] + [
    held(
        f"window scale: {name}",
        _raw_options(options, b"\x05DATA"),
        {"wscale": NO_SCALE, "syn_data": 5},
    )
    for name, options in (
        ("cut off by the header's end", bytes([1, 1, 3, 3])),
        ("begun in the header's last byte", bytes([1, 1, 1, 3])),
    )
]


def given_up(world: World) -> None:
    """What is pending has been idle for longer than it may be."""
    world.change_control(pending_idle_ns=AGE_NS // 2)


def given_up_unattended(world: World) -> None:
    """The same, and the daemon gives no sign of life."""
    world.change_control(
        pending_idle_ns=AGE_NS // 2, heartbeat_ns=world.now_ns - AGE_NS, heartbeat_stale_ns=MS
    )


CASES = [
    held("SYN as Linux sends it", to_service(OPEN), then=(SEEN, tables_hold(1, 0))),
    *LENGTHS,
    *LONGEST,
    *SCALES,
    held("SYN of the second service", to_service(OPEN, SHOP),
         {"service": 1, "key": flow_key(SHOP)}),
    held("SYN with ECN bits", to_service(OPEN.but(flags=SYN | ECE | CWR))),
    held("SYN with PSH and URG", to_service(OPEN.but(flags=SYN | PSH | URG))),
    held("SYN with an acknowledgement number but no ACK", to_service(OPEN.but(ack=77))),
    held("SYN with IP options", to_service(OPEN.but(ip_options=b"\x01\x01\x01\x00"))),
    held("SYN with a VLAN tag", to_service(OPEN.but(tags=((0x8100, 0x2007),)))),
    held("SYN with two VLAN tags", to_service(OPEN.but(tags=((0x88A8, 9), (0x8100, 7))))),
    held("SYN with padding, which travels along", to_service(PLAIN.but(pad=bytes(6))),
         {"wscale": NO_SCALE}),
    held("SYN of which only the padding makes the record large",
         to_service(PLAIN.but(pad=bytes(187))), {"wscale": NO_SCALE}),
    held("SYN with sequence number 0", to_service(OPEN.but(seq=0)), {"seq": 0}),
    held("SYN with sequence number 0xffffffff", to_service(OPEN.but(seq=0xFFFFFFFF)),
         {"seq": 0xFFFFFFFF}),
    Case(
        name="SYN sent again while it is held",
        frame=to_service(OPEN),
        verdict=DROP,
        counters={"syn_held_again": 1},
        given=(seen(),),
        then=(
            has_pending("SEEN", seen_key(), seen_ns=lambda world: world.now_ns - AGE_NS),
            tables_hold(1, 0),
        ),
    ),
    Case(
        name="SYN with another number while one is held ends no decision",
        frame=to_service(OPEN.but(seq=CLIENT_ISN + 1)),
        verdict=DROP,
        counters={"syn_held_again": 1},
        given=(seen(),),
        then=(has_pending("SEEN", seen_key(), isn=CLIENT_ISN), tables_hold(1, 0)),
    ),
    held(
        "SYN with another number after the held one was given up",
        to_service(OPEN.but(seq=CLIENT_ISN + 1)),
        {"seq": CLIENT_ISN + 1},
        counters={"first_packet": 1, "syn_reopened": 1},
        given=(seen(), given_up),
        then=(
            has_pending("SEEN", seen_key(), isn=CLIENT_ISN + 1, seen_ns=NOW),
            tables_hold(1, 0),
        ),
    ),
    held("another client's SYN does not wait for the first", to_service(OPEN, SHOP),
         {"service": 1, "key": flow_key(SHOP)}, given=(seen(),), then=(tables_hold(2, 0),)),
]  # fmt: skip
