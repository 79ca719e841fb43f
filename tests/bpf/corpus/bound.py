# SPDX-License-Identifier: Apache-2.0
"""Bound flows: rewriting both ways, what is left as it was, what is counted and tracked."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.frames import (
    ACK,
    CWR,
    ECE,
    PSH,
    SYN,
    URG,
    Hop,
    Segment,
    l3_offset,
)
from tests.support.program import DROP
from xdp_router.core import abi

from .case import RECENT, Case, flow_untouched, forwarded, has_flow, passed, tables_hold
from .flows import established
from .world import (
    B1,
    CLIENT_ISN,
    CLIENT_MAC,
    CLIENT_SCALE,
    IN,
    MARK,
    OTHER_MAC,
    SERVER_ISN,
    SERVER_SCALE,
    VIRTUAL_MAC,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

THERE = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"GET / HTTP/1.1")
BACK = Segment(flags=PSH | ACK, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1, payload=b"HTTP/1.1 200 OK")
FLOW = (established(),)


def there(name: str, segment: Segment, **rest: object) -> Case:
    """The client's segment goes to the backend."""
    rest = {"given": FLOW} | rest
    return forwarded(name, to_service(segment), to_backend(segment), **rest)


def back(name: str, segment: Segment, **rest: object) -> Case:
    """The backend's segment goes to the client."""
    rest = {"given": FLOW, "at": "backend"} | rest
    return forwarded(name, from_backend(segment), to_client(segment), **rest)


def both(name: str, change: dict[str, object]) -> list[Case]:
    """The same change to a segment of either side."""
    return [
        there(f"{name}, client to backend", THERE.but(**change)),
        back(f"{name}, backend to client", BACK.but(**change)),
    ]


VARIANTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("bare ACK", {"flags": ACK, "payload": b""}),
    ("TTL 255", {"ttl": 255}),
    ("TTL 2 leaves with 1", {"ttl": 2}),
    ("odd payload", {"payload": b"x"}),
    ("payload of 3,000 bytes", {"payload": bytes(range(250)) * 12}),
    ("frame padded to 60 bytes", {"flags": ACK, "payload": b"", "pad": bytes(6)}),
    ("padding that is not zero", {"payload": b"ab", "pad": b"\xff\xfe\xfd\xfc"}),
    ("IP option of 4 bytes", {"ip_options": b"\x94\x04\x00\x00"}),
    ("40 bytes of IP options", {"ip_options": b"\x07\x27\x04" + bytes(36) + b"\x00"}),
    ("40 bytes of TCP options", {"options": (("NOP", None),) * 6 + (("SAck", tuple(range(8))),)}),
    ("timestamps", {"options": (("NOP", None), ("NOP", None), ("Timestamp", (1, 2)))}),
    ("one VLAN tag with priority", {"tags": ((0x8100, 0xA064),)}),
    ("one 802.1ad tag", {"tags": ((0x88A8, 0x0064),)}),
    ("two VLAN tags", {"tags": ((0x88A8, 0x0064), (0x8100, 0x2065))}),
    ("two 802.1Q tags and IP options", {
        "tags": ((0x8100, 1), (0x8100, 2)), "ip_options": bytes([1, 1, 1, 0]),
    }),
    ("VLAN tag and padding", {"tags": ((0x8100, 7),), "payload": b"", "pad": bytes(2)}),
    ("TOS and ECN bits", {"tos": 0xBB, "flags": ACK | ECE | CWR}),
    ("urgent pointer", {"flags": ACK | URG, "urgent": 5}),
    ("no DF", {"fragment": 0}),
    ("reserved IP flag", {"fragment": 0xC000}),
    ("window 0", {"window": 0}),
    ("window 65535", {"window": 0xFFFF}),
)  # fmt: skip


def with_checksum(segment: Segment, made: Callable[[Segment], bytes], layer: str) -> Segment:
    """The segment with one word chosen so that a checksum of the frame ``made`` gives is 0."""
    plain = segment.but(ident=0, payload=b"\0\0")
    frame = made(plain)
    at = l3_offset(frame) + {"ip": 10, "tcp": 36}[layer]
    word = int.from_bytes(frame[at : at + 2], "big")
    if layer == "ip":
        return plain.but(ident=word)
    return plain.but(payload=word.to_bytes(2, "big"))


def _corner_sums() -> list[Case]:
    cases = []
    for layer in ("ip", "tcp"):
        sides: list[tuple[Callable[[Segment], bytes], str]]
        sides = [(to_service, "comes in"), (to_backend, "goes out")]
        for made, when in sides:
            segment = with_checksum(THERE, made, layer)
            cases.append(there(f"{layer} checksum 0 {when} at the client's side", segment))
        sides = [(from_backend, "comes in"), (to_client, "goes out")]
        for made, when in sides:
            segment = with_checksum(BACK, made, layer)
            cases.append(back(f"{layer} checksum 0 {when} at the backend's side", segment))
        # 0xffff is the other zero: a sender may write it, we never do.
        segment = with_checksum(THERE, to_service, layer)
        frame = bytearray(to_service(segment))
        at = l3_offset(bytes(frame)) + {"ip": 10, "tcp": 36}[layer]
        assert frame[at : at + 2] == b"\0\0"
        frame[at : at + 2] = b"\xff\xff"
        name = f"{layer} checksum 0xffff comes in"
        cases.append(forwarded(name, bytes(frame), to_backend(segment), given=FLOW))
    return cases


def _track(name: str, segment: Segment, before: dict[str, object], **after: object) -> Case:
    """What the client's entry holds after its segment."""
    given = (established(before),)
    return there(f"tracking: {name}", segment, given=given, then=(has_flow("there", **after),))


def _since_boot_us(world: World) -> range:
    """What 32 bits hold of it, which a machine that runs for longer does not exceed."""
    least = min(world.now_ns // 1000, 0xFFFFFFFF)
    return range(least, least + 60_000_000)


LENGTH = len(THERE.payload)
END = CLIENT_ISN + 1 + LENGTH
TOP = 0xFFFFFFFF

TRACKING = [
    there(
        "data of the client is counted and tracked in its direction only",
        THERE.but(window=600, pad=b"pad"),
        then=(
            flow_untouched(
                "there",
                last_seen_ns=RECENT,
                packets=3,
                octets=100 + 40 + LENGTH,
                seq_next=END,
                window=600 << CLIENT_SCALE,
                first_data_us=range(5_000, 60_000_000),
            ),
            flow_untouched("back"),
            tables_hold(0, 2),
        ),
    ),
    back(
        "data of the backend is counted and tracked in its direction only",
        BACK.but(window=700, tags=((0x8100, 5),)),
        then=(
            flow_untouched("there"),
            flow_untouched(
                "back",
                last_seen_ns=RECENT,
                packets=2,
                octets=60 + 40 + len(BACK.payload),
                seq_next=SERVER_ISN + 1 + len(BACK.payload),
                window=700 << SERVER_SCALE,
                first_data_us=range(5_000, 60_000_000),
            ),
            tables_hold(0, 2),
        ),
    ),
    _track("data that is the first after more than 71 minutes", THERE, {"seen_ns": 1},
           first_data_us=_since_boot_us),
    _track("the first data's time stays", THERE, {"first_data_us": 77}, first_data_us=77),
    _track("a retransmit moves nothing back", THERE, {"seq_next": END + 9}, seq_next=END + 9),
    _track(
        "an old acknowledgement moves neither ack nor window",
        THERE.but(ack=SERVER_ISN),
        {"window": 1234},
        ack=SERVER_ISN + 1,
        window=1234,
    ),
    _track(
        "the same acknowledgement brings a new window",
        THERE.but(window=9),
        {},
        ack=SERVER_ISN + 1,
        window=9 << CLIENT_SCALE,
    ),
    _track("without ACK its fields say nothing", THERE.but(flags=PSH, ack=SERVER_ISN + 500), {},
           ack=SERVER_ISN + 1, seq_next=END),
    _track("without scaling the window is as it stands", THERE, {"wscale": 0}, window=512),
    _track("the largest scale", THERE, {"wscale": 14}, window=512 << 14),
    _track(
        "sequence numbers go round",
        THERE.but(seq=TOP - 3, ack=2),
        {"seq_next": TOP - 3, "ack": TOP},
        seq_next=(TOP - 3 + LENGTH) & TOP,
        ack=2,
    ),
    _track("a jump beyond any window is not followed", THERE.but(seq=CLIENT_ISN + (1 << 30)), {},
           seq_next=CLIENT_ISN + 1),
    _track("a SYN among other flags moves nothing", THERE.but(flags=SYN | ACK), {},
           seq_next=CLIENT_ISN + 1),
    back(
        "a SYN-ACK that the backend sends again moves nothing",
        Segment(flags=SYN | ACK, seq=SERVER_ISN, ack=CLIENT_ISN + 1),
        then=(flow_untouched("back", packets=2, octets=100),),
    ),
]  # fmt: skip


def _virtual_mac(on: bool) -> Callable[..., None]:
    flags = abi.IF_VIRTUAL_MAC if on else 0
    return lambda world: world.change_interface(OTHER_MAC, VIRTUAL_MAC, flags)


def no_interface(world: World) -> None:
    world.touch()
    world.maps.interfaces.delete(world.wires.client)


VIRTUAL_HOP = Hop(CLIENT_MAC, VIRTUAL_MAC)
MACS = [
    *(
        passed(
            f"a frame of a bound flow for {whose} MAC",
            to_service(THERE, hop=Hop(CLIENT_MAC, mac)),
            "pass_other_mac",
            given=FLOW,
            then=(flow_untouched("there"),),
        )
        for whose, mac in (
            ("another", OTHER_MAC),
            ("the virtual, which is not in use,", VIRTUAL_MAC),
            ("the broadcast", b"\xff" * 6),
            ("a multicast", bytes.fromhex("01005e000001")),
            ("a MAC whose last byte differs from our", IN.dst[:5] + b"\xff"),
            ("a MAC whose first byte differs from our", b"\x06" + IN.dst[1:]),
        )
    ),
    passed(
        "a virtual MAC that is set but not switched on",
        to_service(THERE, hop=VIRTUAL_HOP),
        "pass_other_mac",
        given=(*FLOW, _virtual_mac(False)),
    ),
    forwarded(
        "a frame for the virtual MAC",
        to_service(THERE, hop=VIRTUAL_HOP),
        to_backend(THERE),
        given=(*FLOW, _virtual_mac(True)),
    ),
    there("the interface's MAC has changed, the flow's has not", THERE,
          given=(*FLOW, _virtual_mac(False))),
    there("the interface is not known any more", THERE, given=(*FLOW, no_interface)),
]  # fmt: skip

PATHS = [
    Case(
        name="the backend's path is gone",
        frame=to_service(THERE),
        verdict=DROP,
        counters={"no_path": 1},
        given=(*FLOW, lambda world: world.change_server(B1, ifindex=0)),
    ),
    back("replies need no path to the backend", BACK,
         given=(*FLOW, lambda world: world.change_server(B1, ifindex=0))),
    there("a backend that is down keeps its flows", THERE,
          given=(*FLOW, lambda world: world.change_server(B1, flags=0))),
    there("a draining backend keeps its flows", THERE,
          given=(*FLOW, lambda world: world.change_server(B1, flags=abi.BACKEND_DRAINING))),
    there("a bound flow needs no daemon", THERE,
          given=(*FLOW, lambda world: world.change_control(heartbeat_ns=0))),
    forwarded(
        "a marked frame of a bound flow",
        to_service(THERE),
        to_backend(THERE),
        given=FLOW,
        counters={"reinjected": 1},
        mark=MARK,
        egress="backend",
    ),
    forwarded(
        "a frame with another's mark",
        to_service(THERE),
        to_backend(THERE),
        given=FLOW,
        mark=MARK ^ 1,
    ),
]  # fmt: skip

CASES = [
    *(case for name, change in VARIANTS for case in both(name, change)),
    *_corner_sums(),
    *TRACKING,
    *MACS,
    *PATHS,
]
