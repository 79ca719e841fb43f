# SPDX-License-Identifier: Apache-2.0
"""Hand-off to the kernel: rewritten with the TTL as it was, where it is known to be forwarded."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, RST, Hop, Segment
from tests.support.icmp_frames import UNREACHABLE, icmp_error
from tests.support.program import DROP, PASS, REDIRECT
from xdp_router.core import abi
from xdp_router.core.model import ProbeAnswer

from .bound import BACK, FLOW, THERE
from .case import Case, forwarded, has_flow, only, tables_hold
from .degrade import rst_to_client
from .first import OPEN
from .flows import decided, established
from .handshake import ANSWERED, LAST_ACK, PENDING, SYNACK, daemon_decided, promoted_event
from .icmp import TO_BACKEND, TO_CLIENT, Side
from .icmp_sent import SMALL, WIDE, expired, long, refused_as_long
from .orphans import DATA
from .probes import ANSWER, probe_event
from .world import (
    B1,
    CLIENT,
    CLIENT_ISN,
    CLIENT_MAC,
    IN,
    MARK,
    PROBE_SOURCE,
    VIRTUAL_MAC,
    WEB,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

BOTH = abi.IF_HANDOFF_FORWARD4 | abi.IF_HANDOFF_REPLY4
OTHER_FAMILY = abi.IF_HANDOFF_FORWARD6 | abi.IF_HANDOFF_REPLY6
KERNEL = {"handed_to_kernel": 1}
NO_PATH = {"no_path": 1}


def interfaces(client: int = 0, backend: int = 0, virtual: bool = False,
               narrow: str = "") -> Given:  # fmt: skip
    """Flags of the two interfaces; one of them may have a smaller MTU."""

    def write(world: World) -> None:
        flags = client | (abi.IF_VIRTUAL_MAC if virtual else 0)
        virtual_mac = VIRTUAL_MAC if virtual else bytes(6)
        mtu = {side: SMALL if side == narrow else WIDE for side in ("client", "backend")}
        world.change_side("client", flags=flags, virtual_mac=virtual_mac, mtu=mtu["client"])
        world.change_side("backend", flags=backend, mtu=mtu["backend"])
        world.change_control(
            flags=abi.CONTROL_NO_XMIT if (client | backend) & abi.IF_NO_XMIT else 0,
            min_mtu=min(mtu.values()),
        )

    return write


def forgotten(world: World) -> None:
    """The client's interface is not attached any more."""
    world.maps.interfaces.delete(world.wires.client)


def by_kernel(**change: Any) -> Given:
    """The backend's packets are the kernel's."""
    return lambda world: world.change_server(
        B1, **{"flags": abi.BACKEND_UP | abi.BACKEND_KERNEL} | change
    )


UNRESOLVED = by_kernel(flags=abi.BACKEND_KERNEL, ifindex=0, dmac=bytes(6), smac=bytes(6))
CAN_FORWARD = interfaces(client=abi.IF_HANDOFF_FORWARD4)
CAN_REPLY = interfaces(client=abi.IF_NO_XMIT, backend=abi.IF_HANDOFF_REPLY4)
KERNEL_FLOW = established()


def handed(name: str, frame: bytes, out: bytes, **rest: Any) -> Case:
    """The kernel gets the frame rewritten."""
    rest = {"counters": KERNEL} | rest
    return Case(name=f"hand-off: {name}", frame=frame, verdict=PASS, out=out, **rest)


def dropped(name: str, frame: bytes, **rest: Any) -> Case:
    """Nobody gets the frame, and it is as it came."""
    rest = {"counters": NO_PATH} | rest
    return Case(name=f"hand-off: {name}", frame=frame, verdict=DROP, **rest)


def rewritten(segment: Segment, hop: Hop = IN) -> bytes:
    """The client's segment for the backend, MACs and TTL as they were."""
    return segment.frame(CLIENT, B1.end, hop)


def rewritten_back(segment: Segment) -> bytes:
    """The backend's segment for the client, likewise."""
    return segment.frame(WEB, CLIENT, B1.hop.back)


def there(name: str, segment: Segment = THERE, **rest: Any) -> Case:
    """The client's segment is handed over."""
    rest = {"given": (*FLOW, by_kernel(), CAN_FORWARD)} | rest
    return handed(name, to_service(segment), rewritten(segment), **rest)


def back(name: str, segment: Segment = BACK, **rest: Any) -> Case:
    """The backend's segment is handed over."""
    rest = {"given": (KERNEL_FLOW, CAN_REPLY), "at": "backend"} | rest
    return handed(name, from_backend(segment), rewritten_back(segment), **rest)


VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bare ACK", {"flags": ACK, "payload": b""}),
    ("odd payload", {"payload": b"x"}),
    ("TTL 2 stays 2", {"ttl": 2}),
    ("TTL 255", {"ttl": 255}),
    ("padding", {"payload": b"ab", "pad": b"\xff\xfe\xfd\xfc"}),
    ("IP options", {"ip_options": b"\x07\x27\x04" + bytes(36) + b"\x00"}),
    ("timestamps", {"options": (("NOP", None), ("NOP", None), ("Timestamp", (1, 2)))}),
)

FORWARD = [
    *(there(f"{name}, to the backend", THERE.but(**change)) for name, change in VARIANTS),
    there("the flow is followed as ever", then=(
        has_flow("there", packets=3, seq_next=CLIENT_ISN + 1 + len(THERE.payload)),
    )),
    there("backend's neighbour is not resolved", given=(*FLOW, UNRESOLVED, CAN_FORWARD)),
    handed(
        "a frame for the virtual MAC gets the interface's",
        to_service(THERE, hop=Hop(CLIENT_MAC, VIRTUAL_MAC)),
        rewritten(THERE),
        given=(*FLOW, by_kernel(), interfaces(abi.IF_HANDOFF_FORWARD4, virtual=True)),
    ),
    there("a flow that is promoted by it", LAST_ACK, event=promoted_event(),
          given=(*ANSWERED, by_kernel(), CAN_FORWARD), counters=KERNEL | {"promoted": 1}),
    dropped("the kernel is not known to forward from there", to_service(THERE),
            given=(*FLOW, by_kernel())),
    dropped("what it does with replies says nothing of requests", to_service(THERE),
            given=(*FLOW, by_kernel(), interfaces(abi.IF_HANDOFF_REPLY4, BOTH))),
    dropped("the kernel forwards there, but not this family", to_service(THERE),
            given=(*FLOW, by_kernel(), interfaces(OTHER_FAMILY, BOTH | OTHER_FAMILY))),
    dropped("neighbour not resolved, and the kernel is not known to forward", to_service(THERE),
            given=(*FLOW, UNRESOLVED)),
    dropped("a tagged frame is another interface's to the kernel",
            to_service(THERE.but(tags=((0x8100, 7),))), given=(*FLOW, by_kernel(), CAN_FORWARD)),
    *(expired(f"TTL {ttl} of what the kernel would forward", to_service(THERE.but(ttl=ttl)),
              given=(*FLOW, by_kernel(), CAN_FORWARD)) for ttl in (0, 1)),
    expired("TTL 1 comes before the missing capability", to_service(THERE.but(ttl=1)),
            given=(*FLOW, by_kernel())),
]  # fmt: skip


def held(name: str, *given: Given, **rest: Any) -> Case:
    """The held SYN comes through the program once more, its decision written."""
    return Case(name=f"hand-off: held SYN, marked{name}", frame=to_service(OPEN), mark=MARK,
                given=(daemon_decided(), UNRESOLVED, *given), **rest)  # fmt: skip


HELD = [
    held("", CAN_FORWARD, verdict=PASS, out=rewritten(OPEN), egress="kernel",
         counters=KERNEL | {"reinjected": 1}),
    held(", its ingress does not forward", interfaces(backend=BOTH), verdict=DROP,
         counters=NO_PATH),
]  # fmt: skip


REPLY = [
    *(back(f"{name}, to the client", BACK.but(**change)) for name, change in VARIANTS),
    back("SYN-ACK of a pending flow", SYNACK, given=(*PENDING, CAN_REPLY)),
    dropped("SYN-ACK, and the kernel is not known to forward it", from_backend(SYNACK),
            given=(*PENDING, interfaces(abi.IF_NO_XMIT, abi.IF_HANDOFF_FORWARD4)), at="backend"),
    dropped("replies, and the kernel is not known to forward them", from_backend(BACK),
            given=(KERNEL_FLOW, interfaces(abi.IF_NO_XMIT | BOTH, abi.IF_HANDOFF_FORWARD4)),
            at="backend"),
    dropped("replies, and the kernel forwards only the other family's", from_backend(BACK),
            given=(KERNEL_FLOW, interfaces(abi.IF_NO_XMIT | BOTH, OTHER_FAMILY)), at="backend"),
    expired("TTL 1 of a reply that the kernel would forward", from_backend(BACK.but(ttl=1)),
            "backend", given=(KERNEL_FLOW, CAN_REPLY)),
    dropped("a tagged reply", from_backend(BACK.but(tags=((0x8100, 7),))),
            given=(KERNEL_FLOW, CAN_REPLY), at="backend"),
    forwarded("hand-off: replies are not touched by the backend's flag", from_backend(BACK),
              to_client(BACK), given=(*FLOW, by_kernel(), interfaces(BOTH, BOTH)), at="backend"),
    forwarded("hand-off: the client's interface takes no frames; nor do requests need it to",
              to_service(THERE), to_backend(THERE), given=(*FLOW, interfaces(abi.IF_NO_XMIT))),
    forwarded("hand-off: another interface takes no frames", from_backend(BACK), to_client(BACK),
              given=(*FLOW, interfaces(BOTH, abi.IF_NO_XMIT | BOTH)), at="backend"),
    forwarded("hand-off: an interface that is not known any more", from_backend(BACK),
              to_client(BACK), given=(*FLOW, interfaces(abi.IF_NO_XMIT), forgotten), at="backend"),
]  # fmt: skip


def _orphan_rst(hop: Hop = IN) -> bytes:
    """The RST for DATA as the kernel gets it: it comes from us, for us to forward."""
    made = Segment(flags=RST, seq=DATA.ack, ack=0, window=0, ident=0)
    return made.frame(WEB, CLIENT, Hop(hop.dst, hop.dst))


def _no_frames(client: int = 0, backend: int = 0) -> tuple[Given, ...]:
    return (interfaces(client | abi.IF_NO_XMIT, backend | abi.IF_NO_XMIT),)


RESET = {"orphan_reset": 1}
ANSWERS = [
    handed("a RST is the kernel's where nothing can be sent back", to_service(DATA), _orphan_rst(),
           given=_no_frames(abi.IF_HANDOFF_REPLY4), counters=KERNEL | RESET),
    Case(name="hand-off: a RST goes nowhere where the kernel would lose it, too",
         frame=to_service(DATA), out=rst_to_client(DATA.ack, 0, RST), verdict=DROP,
         given=_no_frames(abi.IF_HANDOFF_FORWARD4), counters=NO_PATH | RESET),
    Case(name="hand-off: a RST goes nowhere where the kernel forwards only the other family",
         frame=to_service(DATA), out=rst_to_client(DATA.ack, 0, RST), verdict=DROP,
         given=_no_frames(OTHER_FAMILY), counters=NO_PATH | RESET),
    Case(name="hand-off: nor does one with a tag",
         frame=to_service(DATA.but(tags=((0x8100, 7),))),
         out=rst_to_client(DATA.ack, 0, RST, ((0x8100, 7),)), verdict=DROP,
         given=_no_frames(BOTH), counters=NO_PATH | RESET),
    Case(name="hand-off: a marked frame's RST is sent by the daemon, which can",
         frame=to_service(DATA), out=rst_to_client(DATA.ack, 0, RST), verdict=REDIRECT,
         given=_no_frames(), mark=MARK, egress="client",
         counters=RESET | {"reinjected": 1}),
    Case(name="hand-off: a probe's answer is left to the host, which has asked nobody",
         frame=from_backend(ANSWER, B1, PROBE_SOURCE), verdict=PASS, at="backend",
         given=_no_frames(), counters={"probe_synack": 1},
         event=probe_event(ProbeAnswer.SYNACK), then=(tables_hold(0, 0),)),
]  # fmt: skip


def _error(side: Side) -> tuple[bytes, bytes]:
    """An error about what we sent there, as it came in, and as the kernel gets it."""
    return (
        side.error(UNREACHABLE, 1, side.embedded(side.there)),
        icmp_error(UNREACHABLE, 1, side.embedded(side.here), side.hop, side.here[0].addr,
                   side.came, ttl=64),
    )  # fmt: skip


TRANSLATED = {"icmp_translated": 1}
ERRORS = [
    *(case
      for side, given in ((TO_CLIENT, (by_kernel(), CAN_FORWARD)), (TO_BACKEND, (CAN_REPLY,)))
      for case in (
          handed(f"an ICMP error from the {side.at}'s side", _error(side)[0], _error(side)[1],
                 given=(*FLOW, *given), at=side.at, counters=KERNEL | TRANSLATED),
          dropped(f"an ICMP error from the {side.at}'s side, which the kernel would lose",
                  _error(side)[0], at=side.at,
                  given=(*FLOW, by_kernel(), interfaces(abi.IF_NO_XMIT))),
      )),
]  # fmt: skip

WHOLE, BACK_WHOLE = (long(segment.but(fragment=0), 1500) for segment in (THERE, BACK))
NARROW_B = interfaces(abi.IF_HANDOFF_FORWARD4, narrow="backend")
NARROW_C = interfaces(abi.IF_NO_XMIT, abi.IF_HANDOFF_REPLY4, narrow="client")
BIG_LOST = {"too_big_dropped": 1}
FRAGMENTED = only(4, [
    there("what is too long, and may be fragmented, is fragmented by the kernel", WHOLE,
          given=(*FLOW, by_kernel(), NARROW_B)),
    there("so it is of a pending flow", WHOLE, given=(*decided(), by_kernel(), NARROW_B)),
    back("what is too long of a reply, likewise", BACK_WHOLE, given=(*FLOW, NARROW_C)),
    back("so it is of a pending flow's", BACK_WHOLE, given=(*decided(synack=True), NARROW_C)),
    *(dropped(f"too long, may be fragmented, {name}", frame, at=at, counters=BIG_LOST,
              given=(*FLOW, *given))
      for name, frame, at, given in (
          ("and the kernel forwards none", to_service(WHOLE), "client",
           (by_kernel(), interfaces(narrow="backend"))),
          ("and XDP sends it", to_service(WHOLE), "client", (NARROW_B,)),
          ("back, and the kernel forwards none", from_backend(BACK_WHOLE), "backend",
           (interfaces(abi.IF_NO_XMIT, narrow="client"),)),
      )),
])  # fmt: skip
LONG = [
    refused_as_long("of what the kernel would forward, before it does", to_service(
        long(THERE, 1500)), given=(*FLOW, by_kernel(), NARROW_B)),
    refused_as_long("of a reply that the kernel would forward", from_backend(long(BACK, 1500)),
                    "backend", given=(*FLOW, NARROW_C)),
]  # fmt: skip

CASES = [*FORWARD, *HELD, *REPLY, *ANSWERS, *ERRORS, *FRAGMENTED, *LONG]
