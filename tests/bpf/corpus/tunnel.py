# SPDX-License-Identifier: Apache-2.0
"""``ipip``: the outer header, what is too long for it, and what hops inside a tunnel say."""

from __future__ import annotations

from typing import Any

from scapy.utils import checksum

from tests.support.frames import End, Hop, Segment, ethernet
from tests.support.icmp_frames import FRAG_NEEDED, UNREACHABLE, icmp_error, own_error, quote
from tests.support.program import DROP, TX
from tests.support.tunnels import tunneled
from xdp_router.core import abi
from xdp_router.core.model import Endpoint

from .case import TICK_NS, Case, Then, forwarded, passed
from .direct import (
    DATA,
    DSR,
    FIRST_ACK,
    FLOW,
    HASH,
    IPIP,
    SYNS,
    by,
    established,
    in_tunnel,
    ipip,
    path_mtus,
    said,
    silent,
    to_b1,
)
from .fragments import came, cut
from .world import (
    B1,
    B2,
    CLIENT,
    IN,
    OURS_C,
    PROBE_SOURCE,
    ROUTER_MAC_B,
    SECOND,
    SERVER_ISN,
    WEB,
    Given,
    World,
    to_service,
)

# --- the outer header -----------------------------------------------------------------------


def source(**change: Any) -> Given:
    """The outer header's source is of a prefix."""
    return lambda world: world.change_service(**change)


V6_END, V6_OURS = "2001:db8::b1", "2001:db8::1"


def over_ipv6(world: World) -> None:
    """B1 has an IPv6 address."""
    by(IPIP, addr=abi.parse_addr(V6_END), probe_addr=abi.parse_addr(V6_OURS))(world)


def narrow(mtu: int) -> Given:
    """The backends' side takes no more."""

    def put(world: World) -> None:
        world.change_side("backend", mtu=mtu)
        world.limit(min_mtu=mtu)

    return put


BIG = DATA.but(payload=bytes(range(200)) * 7 + bytes(40))  # 1,480 bytes of IP
LONGER = BIG.but(payload=BIG.payload + b"x")
VARIANTS: tuple[tuple[str, Segment], ...] = (
    ("data", DATA),
    ("a bare ACK, padded to 60 bytes", FIRST_ACK.but(pad=bytes(6))),
    ("DSCP and ECN are copied", DATA.but(tos=0xBB)),
    ("not ECN capable", DATA.but(tos=0x28)),
    ("one VLAN tag", DATA.but(tags=((0x8100, 0xA064),))),
    ("two VLAN tags", DATA.but(tags=((0x88A8, 0x0064), (0x8100, 0x2065)))),
    ("IP options", DATA.but(ip_options=b"\x94\x04\x00\x00")),
    ("without DF", DATA.but(fragment=0)),
    ("TTL 2", DATA.but(ttl=2)),
)


def over_v6(segment: Segment) -> bytes:
    return in_tunnel(segment, V6_OURS, V6_END)


def about_reply(hop: Hop, ttl: int) -> bytes:
    """A hop on the backend's way to the client: its packet, from WEB, was too long."""
    sent = Segment(seq=SERVER_ISN + 1, payload=bytes(64)).frame(WEB, CLIENT, IN)
    return icmp_error(
        UNREACHABLE, FRAG_NEEDED, quote(sent), "198.18.50.1", WEB.addr, hop, rest=1400, ttl=ttl
    )


BODY = bytes(range(200)) * 15
FULL_FIRST, FULL_LATER = cut(to_service(DATA.but(payload=BODY, fragment=0)), 1480, 2960)
SHORT_LATER = cut(to_service(DATA.but(payload=BODY, fragment=0)), 2960)[1]


def lower_ttl(frame: bytes, hop: Hop = IN) -> bytes:
    """The same on its way, with a TTL less."""
    packet = bytearray(frame[14:])
    packet[8] -= 1
    packet[10:12] = bytes(2)
    packet[10:12] = checksum(bytes(packet[:20])).to_bytes(2, "big")
    return ethernet(hop, bytes(packet), ())


TOO_LONG = BIG.but(payload=BIG.payload + bytes(20))
TUNNEL = [
    *(ipip(name, segment) for name, segment in VARIANTS),
    *(
        ipip(f"in IPv6: {name}", segment, over_v6(segment), given=(over_ipv6, established()))
        for name, segment in VARIANTS
    ),
    ipip("the source varies in a prefix", DATA,
         in_tunnel(DATA, f"198.18.200.{HASH & 255}"),
         given=(by(IPIP), established(),
                source(tunnel_source=End("198.18.200.0", 0).number, tunnel_bits=8))),
    ipip("a source of its own", DATA, in_tunnel(DATA, "198.18.200.7"),
         given=(by(IPIP), established(), source(tunnel_source=End("198.18.200.7", 0).number))),
    ipip("the source varies in an IPv6 prefix", DATA,
         in_tunnel(DATA, f"2001:db8:c8::{HASH >> 16:x}:{HASH & 0xFFFF:x}", V6_END),
         given=(over_ipv6, established(),
                source(tunnel_source=abi.parse_addr("2001:db8:c8::"), tunnel_bits=32))),
    ipip("just what fits", BIG, given=(by(IPIP), established(), narrow(1500))),
    Case(name="ipip: a byte more is answered", frame=to_service(LONGER), verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, to_service(LONGER.but(ttl=63)), OURS_C, 1480),
         given=(by(IPIP), established(), narrow(1500)), counters={"icmp_too_big": 1}),
    Case(name="ipip: longer than the interface takes without a tunnel", frame=to_service(
             TOO_LONG.but(payload=TOO_LONG.payload + b"x")), verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, to_service(
             TOO_LONG.but(payload=TOO_LONG.payload + b"x", ttl=63)), OURS_C, 1480),
         given=(by(IPIP), established(), narrow(1500)), counters={"icmp_too_big": 1}),
    Case(name="ipip: in IPv6 less fits", frame=to_service(BIG), verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, to_service(BIG.but(ttl=63)), OURS_C, 1460),
         given=(over_ipv6, established(), narrow(1500)), counters={"icmp_too_big": 1}),
    Case(name="ipip: a byte more that may be fragmented", frame=to_service(LONGER.but(fragment=0)),
         out=to_service(LONGER.but(fragment=0, ttl=63)),
         verdict=DROP, given=(by(IPIP), established(), narrow(1500)),
         counters={"too_big_dropped": 1}),
    Case(name="ipip: a first fragment as long as may be is answered, though others may cut it",
         frame=FULL_FIRST, verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, lower_ttl(FULL_FIRST), OURS_C, 1480),
         given=(by(IPIP), established(), narrow(1500)),
         counters={"icmp_too_big": 1, "fragment_first": 1}),
    Case(name="ipip: a later one as long ends here", frame=FULL_LATER, verdict=DROP,
         out=lower_ttl(FULL_LATER),
         given=(by(IPIP), established(), narrow(1500), came(FULL_FIRST)),
         counters={"too_big_dropped": 1, "fragment_followed": 1}),
    forwarded("ipip: the last one, which is short, goes its way", SHORT_LATER,
              tunneled(lower_ttl(SHORT_LATER, B1.hop), PROBE_SOURCE.addr, B1.end.addr),
              given=(by(IPIP), established(), narrow(1500), came(FULL_FIRST)),
              counters={"tunneled": 1, "fragment_followed": 1}),
    forwarded("dsr: an error about a reply goes to the backend", about_reply(IN, 64),
              about_reply(B1.hop, 63), given=FLOW, counters={"icmp_translated": 1}),
    forwarded("ipip: an error about a reply goes to the backend", about_reply(IN, 64),
              tunneled(about_reply(B1.hop, 63), PROBE_SOURCE.addr, B1.end.addr),
              given=(by(IPIP), established()), counters={"icmp_translated": 1, "tunneled": 1}),
]  # fmt: skip


def in_ipv6_like_client(world: World) -> None:
    """B1's IPv6 address ends as the client's IPv4 one does: it is another host."""
    addr = abi.parse_addr("2001:db8::") | CLIENT.number
    by(IPIP, addr=addr, probe_addr=abi.parse_addr(V6_OURS))(world)


ENDS_LIKE_CLIENT = "2001:db8::" + f"{CLIENT.number >> 16:x}:{CLIENT.number & 0xFFFF:x}"
CHOICE = [
    ipip("an IPv6 backend is no IPv4 client", SYNS, in_tunnel(SYNS, V6_OURS, ENDS_LIKE_CLIENT),
         given=(in_ipv6_like_client, silent),
         counters={"heartbeat_stale": 1, "decided_fallback": 1, "tunneled": 1}),
]  # fmt: skip

# --- what a hop on the way says ---------------------------------------------------------------

IN_B = Hop(B1.mac, ROUTER_MAC_B)
MINUTES_11 = 660 * SECOND


def hop_error(mtu: int, quoted: bytes | None = None, target: str = PROBE_SOURCE.addr,
              kind: int = UNREACHABLE, code: int = FRAG_NEEDED) -> bytes:  # fmt: skip
    """A hop's error about a packet in the tunnel."""
    packet = quote(in_tunnel(DATA)) if quoted is None else quoted
    return icmp_error(kind, code, packet, "198.18.50.9", target, IN_B, rest=mtu)


def has_said(mtu: int) -> Then:
    """That MTU is known now."""

    def look(world: World, started_ns: int) -> None:
        raw = path_mtus(world).read(abi.pack_prefix_key(B1.end.number))
        assert raw is not None
        seen_ns, known = abi.unpack_path_mtu(raw)
        assert known == mtu
        assert seen_ns >= started_ns - TICK_NS

    return look


def nothing_said(world: World, _started_ns: int) -> None:
    """Nothing is known."""
    assert not list(path_mtus(world).each_key())


def beside_port(world: World) -> None:
    """B1 takes the ports of its service; one of them there is the backend of another service."""
    by(IPIP)(world)
    world.maps.backend_index.write(Endpoint(B1.end.number, 0), B1.id, B1.service)
    world.maps.backend_index.write(Endpoint(B1.end.number, WEB.port), B2.id, B2.service)


def learned(name: str, frame: bytes, mtu: int, given: Given | None = None) -> Case:
    """The error is taken."""
    return Case(
        name=f"ipip: {name}",
        frame=frame,
        verdict=DROP,
        at="backend",
        given=(given or by(IPIP),),
        counters={"tunnel_too_big": 1},
        then=(has_said(mtu),),
    )


def not_learned(name: str, frame: bytes, given: Given | None = None) -> Case:
    """The error is none of a tunnel's."""
    return passed(f"ipip: {name}", frame, "pass_other_protocol", at="backend",
                  given=(given or by(IPIP),), then=(nothing_said,))  # fmt: skip


OUTER = quote(in_tunnel(DATA))
HOPS = [
    learned("a hop names its MTU", hop_error(1400), 1400),
    learned("and quotes just the ports", hop_error(1400, OUTER[:44]), 1400),
    learned("with options in the inner header",
            hop_error(1400, quote(in_tunnel(DATA.but(ip_options=b"\x94\x04\x00\x00")))), 1400),
    learned("none is smaller than any link's", hop_error(68), 576),
    learned("none at all counts as the smallest", hop_error(0), 576),
    learned("of a backend of many ports, beside one that has this port", hop_error(1400), 1400,
            beside_port),
    not_learned("a hop that quotes too little", hop_error(1400, OUTER[:43])),
    not_learned("a hop that quotes 8 bytes", hop_error(1400, OUTER[:28])),
    not_learned("an error of another kind", hop_error(1400, code=1)),
    not_learned("an error about another's packet", hop_error(1400, target=OURS_C.addr)),
    not_learned("an error about a packet to nobody's backend", hop_error(
        1400, quote(tunneled(to_b1(DATA), PROBE_SOURCE.addr, "198.18.77.7")))),
    not_learned("an error about a backend without a tunnel", hop_error(1400), by(DSR)),
    Case(name="ipip: longer than a hop takes", frame=to_service(BIG), verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, to_service(BIG.but(ttl=63)), OURS_C, 1380),
         given=(by(IPIP), established(), narrow(1500), said(1400)), counters={"icmp_too_big": 1}),
    ipip("as long as a hop takes", BIG.but(payload=BIG.payload[:1340]),
         given=(by(IPIP), established(), narrow(1500), said(1400))),
    ipip("what every way takes, whatever a hop says", DATA.but(payload=bytes(536)),
         given=(by(IPIP), established(), narrow(1500), said(1))),
    Case(name="ipip: a byte more than every way takes", frame=to_service(
             DATA.but(payload=bytes(537))), verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, to_service(
             DATA.but(payload=bytes(537), ttl=63)), OURS_C, 576),
         given=(by(IPIP), established(), narrow(1500), said(1)), counters={"icmp_too_big": 1}),
    Case(name="ipip: too long, and longer than its own way in takes: merged, nobody is told",
         frame=to_service(LONGER), out=to_service(LONGER.but(ttl=63)), verdict=DROP,
         given=(by(IPIP), established(), narrow(1500),
                lambda world: world.change_side("client", mtu=1400)),
         counters={"too_big_dropped": 1}),
    ipip("what a hop said long ago", BIG,
         given=(by(IPIP), established(), narrow(1500), said(1400, MINUTES_11))),
    ipip("what a hop said of another backend's way", BIG,
         given=(by(IPIP), established(), narrow(1500), said(1400, server=B2))),
    Case(name="ipip: a hop that takes more than our own link", frame=to_service(LONGER), verdict=TX,
         out=own_error(UNREACHABLE, FRAG_NEEDED, to_service(LONGER.but(ttl=63)), OURS_C, 1480),
         given=(by(IPIP), established(), narrow(1500), said(9000)), counters={"icmp_too_big": 1}),
]  # fmt: skip

CASES = [*TUNNEL, *CHOICE, *HOPS]
