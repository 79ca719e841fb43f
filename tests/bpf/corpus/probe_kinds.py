# SPDX-License-Identifier: Apache-2.0
"""Answers to probes that are no SYNs, of both address families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from tests.support.frames import ACK, RST, SYN, End, Hop, Segment
from tests.support.probe_answers import (
    STUN_ERROR,
    Way,
    datagram,
    echo_reply,
    stun_answer,
    unreachable,
)
from tests.support.program import DROP
from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_frames import MessageTarget
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Endpoint, FlowKey, ProbeAnswer
from xdp_router.core.probe_kinds import Datagram, EchoRequest, Message, StunRequest
from xdp_router.core.probe_sequence import probe_hash, probe_seq

from .case import Case, answered, passed, tables_hold
from .degrade import full_ring
from .world import B1, OTHER_MAC, PROBE_KEY, PROBE_PORTS, PROBE_SOURCE, ROUTER_MAC_B, World

UDP = 17
SERVER_ID = 9
OWN, STUN, ECHOED = 4000, 3478, 7
"""Ports: of the backend itself, of a STUN server on it, of another server that is probed."""
SSH = 22


@dataclass(frozen=True)
class Side:
    """A server that is probed, and where from."""

    family: int
    way: Way

    @property
    def icmp(self) -> int:
        """The protocol number of its ICMP."""
        return 1 if self.family == 4 else 58

    @property
    def server(self) -> int:
        """Its address."""
        return int(ip_address(self.way.server))

    @property
    def us(self) -> int:
        """Where its probes are sent from."""
        return int(ip_address(self.way.us))

    def number(self, port: int, probe_port: int = PROBE_SOURCE.port, nonce: int = 5) -> int:
        """A probe's number."""
        value = probe_hash(PROBE_KEY, self.server, port, probe_port, self.us)
        return probe_seq(value, nonce)

    def asked(self, world: World) -> None:
        """The server is a backend by UDP, and probed in every way there is."""
        world.change_backend(
            SERVER_ID,
            replace(world.server(B1), addr=self.server, port=OWN, proto=UDP, probe_addr=self.us),
        )
        world.maps.backend_index.write(Endpoint(self.server, OWN, UDP), SERVER_ID, 0)
        kinds = {
            (0, self.icmp): abi.EndpointKind.PROBE,
            (SSH, 6): abi.EndpointKind.PROBE,
            (ECHOED, UDP): abi.EndpointKind.PROBE,
            (STUN, UDP): abi.EndpointKind.STUN,
        }
        world.maps.probe_index.replace(
            {
                (Endpoint(self.server, port, proto), kind): (SERVER_ID, 0)
                for (port, proto), kind in kinds.items()
            }
        )

    def event(
        self, answer: ProbeAnswer, proto: int, port: int, seq: int = 0, payload: bytes = b"",
        probe_port: int = PROBE_SOURCE.port,
    ) -> dict[str, Any]:  # fmt: skip
        """What the daemon is told."""
        return {
            "type": abi.EventType.PROBE_REPLY,
            "key": FlowKey(self.server, port, self.us, probe_port, proto),
            "backend": NO_BACKEND,
            "detail": answer,
            "seq": seq,
            "ifindex": lambda world: world.wires.backend,
            "frame": payload,
        }

    def probe(self, kind: str) -> bytes:
        """A probe's frame."""
        path = Path(0, bytes(6), bytes(6), self.us)
        messages: dict[str, Message] = {
            "echo": EchoRequest(self.us, self.server),
            "stun": StunRequest(self.us, self.server, STUN),
            "udp": Datagram(self.us, self.server, ECHOED, b"ping"),
            "own": Datagram(self.us, self.server, OWN, b""),
        }
        port = {"echo": 0, "stun": STUN, "udp": ECHOED, "own": OWN}[kind]
        return MessageTarget(path, self.server, messages[kind]).probe(
            PROBE_SOURCE.port, self.number(port)
        )


FROM_SERVER = Hop(B1.mac, ROUTER_MAC_B)
V4 = Side(4, Way("198.18.5.2", PROBE_SOURCE.addr, FROM_SERVER))
V6 = Side(6, Way("2001:db8:5::2", "2001:db8:5::1", FROM_SERVER))
PORT = PROBE_SOURCE.port


def taken(
    name: str, side: Side, frame: bytes, counter: str, event: dict[str, Any] | None, **rest: Any
) -> Case:
    """An answer: the daemon is told, and nobody else."""
    rest = {
        "counters": {counter: 1},
        "given": (side.asked,),
        "then": (tables_hold(0, 0),),
    } | rest
    return Case(name=f"IPv{side.family}: {name}", frame=frame, verdict=DROP, at="backend",
                event=event, **rest)  # fmt: skip


def left(name: str, side: Side, frame: bytes, counter: str, **rest: Any) -> Case:
    """No answer to a probe: the kernel's."""
    rest = {"at": "backend", "given": (side.asked,)} | rest
    return passed(f"IPv{side.family}: {name}", frame, counter, **rest)


def elsewhere(side: Side, **change: Any) -> Way:
    """Another way, on the same wire."""
    return replace(side.way, **change)


def _other(side: Side, last: int) -> str:
    return f"198.18.5.{last}" if side.family == 4 else f"2001:db8:5::{last}"


FOR_ANOTHER = Hop(B1.mac, OTHER_MAC)


def echoes(side: Side) -> list[Case]:
    """Echo replies."""
    number, way = side.number(0), side.way

    def event(seq: int, port: int = PORT) -> dict[str, Any]:
        return side.event(ProbeAnswer.ECHO, side.icmp, 0, seq, probe_port=port)

    return [
        *(taken(f"echo reply of a probe with nonce {nonce}", side,
                echo_reply(way, PORT, side.number(0, nonce=nonce)), "probe_echo",
                event(side.number(0, nonce=nonce))) for nonce in (0, 5, 128, 255)),
        *(taken(f"echo reply to probe port {port}", side,
                echo_reply(way, port, side.number(0, port)), "probe_echo",
                event(side.number(0, port), port)) for port in PROBE_PORTS),
        taken("echo reply of a probe with VLAN tags", side,
              echo_reply(elsewhere(side, tags=((0x88A8, 1), (0x8100, 2))), PORT, number),
              "probe_echo", event(number)),
        taken("echo reply while the ring is full", side, echo_reply(way, PORT, number),
              "probe_echo", None, given=(side.asked, full_ring),
              counters={"probe_echo": 1, "event_lost": 1}),
        *(left(f"echo reply whose hash differs in bit {bit}", side,
               echo_reply(way, PORT, number ^ 1 << bit), "probe_unverified")
          for bit in (0, 11, 23)),
        left("echo reply with another sequence number", side,
             echo_reply(way, PORT, number, sequence=(number >> 16) ^ 1), "probe_unverified"),
        left("echo reply with the hash of another port", side,
             echo_reply(way, PORT, side.number(0, PORT + 1)), "probe_unverified"),
        *(left(f"echo reply to port {port}", side,
               echo_reply(way, port, side.number(0, port)), "pass_other_protocol")
          for port in (PROBE_PORTS[0] - 1, PROBE_PORTS[1] + 1)),
        left("echo reply that is shorter", side, echo_reply(way, PORT, number, data=bytes(3)),
             "pass_other_protocol"),
        left("echo reply that is longer", side, echo_reply(way, PORT, number, data=bytes(5)),
             "pass_other_protocol"),
        left("echo reply of somebody else", side,
             echo_reply(elsewhere(side, server=_other(side, 3)), PORT, number),
             "pass_other_protocol"),
        left("echo reply to another address", side,
             echo_reply(elsewhere(side, us=_other(side, 9)), PORT, number),
             "pass_other_protocol"),
        left("echo reply for another MAC", side,
             echo_reply(elsewhere(side, hop=FOR_ANOTHER), PORT, number), "pass_other_protocol"),
        left("echo reply of a server that is not asked so", side, echo_reply(way, PORT, number),
             "pass_other_protocol", given=()),
    ]  # fmt: skip


def stuns(side: Side) -> list[Case]:
    """STUN answers."""
    number, way = side.number(STUN), side.way
    long = stun_answer(number, body=bytes(200))

    def event(payload: bytes) -> dict[str, Any]:
        return side.event(ProbeAnswer.DATAGRAM, UDP, STUN, payload=payload[:64])

    def sent(payload: bytes, **change: Any) -> bytes:
        return datagram(elsewhere(side, **change), STUN, PORT, payload)

    return [
        *(taken(f"STUN {what}", side, sent(payload), "probe_datagram", event(payload))
          for what, payload in {
              "success": stun_answer(number),
              "success that is longer than what is seen": long,
              "error": stun_answer(number, STUN_ERROR, bytes.fromhex("0009000400000401")),
              "answer without its end": stun_answer(number)[:12],
          }.items()),
        *(left(f"no STUN answer: {what}", side, sent(payload), "probe_unverified")
          for what, payload in {
              "a request": stun_answer(number, 0x0001),
              "an indication": stun_answer(number, 0x0011),
              "another method": stun_answer(number, 0x0103),
              "another cookie": stun_answer(number).replace(b"\x21\x12", b"\x21\x13"),
              "too short": stun_answer(number)[:11],
              "empty": b"",
              "hash differs in bit 0": stun_answer(number ^ 1),
              "hash differs in bit 23": stun_answer(number ^ 1 << 23),
              "the hash of another port": stun_answer(side.number(STUN, PORT + 1)),
              "somebody else's protocol": b"ping, says the server",
          }.items()),
        left("STUN answer to another address", side, sent(stun_answer(number), us=_other(side, 9)),
             "pass_not_service"),
        left("STUN answer for another MAC", side, sent(stun_answer(number), hop=FOR_ANOTHER),
             "pass_other_mac"),
        left("STUN answer to no probe port", side,
             datagram(way, STUN, PROBE_PORTS[1] + 1, stun_answer(number)), "pass_not_service"),
    ]  # fmt: skip


def datagrams(side: Side) -> list[Case]:
    """Datagrams of any protocol."""
    return [
        *(taken(f"datagram of {length} bytes from port {port}", side,
                datagram(side.way, port, PORT, bytes(range(256))[:length]), "probe_datagram",
                side.event(ProbeAnswer.DATAGRAM, UDP, port,
                           payload=bytes(range(256))[:length][:64]))
          for length in (0, 1, 63, 64, 65, 256) for port in (OWN, ECHOED)),
        taken("datagram while the ring is full", side, datagram(side.way, OWN, PORT, b"x"),
              "probe_datagram", None, given=(side.asked, full_ring),
              counters={"probe_datagram": 1, "event_lost": 1}),
        taken("empty datagram while the ring is full", side, datagram(side.way, OWN, PORT, b""),
              "probe_datagram", None, given=(side.asked, full_ring),
              counters={"probe_datagram": 1, "event_lost": 1}),
        taken("datagram while more waits than anybody may fill", side,
              datagram(side.way, OWN, PORT, b"x"), "event_lost", None,
              given=(side.asked, full_ring, lambda world: world.limit(ring_deep=4000))),
        *(left(f"datagram from port {port} to port {to}", side,
               datagram(side.way, port, to, b"x"), "pass_not_service")
          for port, to in ((OWN, PROBE_PORTS[0] - 1), (OWN, PROBE_PORTS[1] + 1), (SSH, PORT))),
        left("datagram of somebody else", side,
             datagram(elsewhere(side, server=_other(side, 3)), OWN, PORT, b"x"),
             "pass_not_service"),
    ]  # fmt: skip


def errors(side: Side) -> list[Case]:
    """Unreachable: that candidate loses at once, and the packet passes."""
    on_the_way = _other(side, 250)

    def told(name: str, frame: bytes, port: int, seq: int = 0, proto: int = UDP) -> Case:
        return left(f"unreachable: {name}", side, frame, "probe_unreachable",
                    event=side.event(ProbeAnswer.UNREACHABLE, proto, port, seq))  # fmt: skip

    def cut(kind: str, length: int) -> bytes:
        head = 14 + (20 if side.family == 4 else 40)
        return unreachable(side.way, side.probe(kind)[: head + length])

    echo = side.number(0)
    host = 1 if side.family == 4 else 3
    at = 14 + (20 if side.family == 4 else 40)

    def changed(kind: str, offset: int, value: int) -> bytes:
        """About a probe with another byte; ``offset`` counts from behind its IP header."""
        frame = bytearray(side.probe(kind))
        frame[at + offset] = value
        return unreachable(side.way, bytes(frame), host)

    return [
        told("port of a STUN server", unreachable(side.way, side.probe("stun")), STUN),
        told("port of another server", unreachable(side.way, side.probe("udp")), ECHOED),
        told("the backend's own port", unreachable(side.way, side.probe("own")), OWN),
        told("host, says a router",
             unreachable(side.way, side.probe("udp"), host, on_the_way), ECHOED),
        told("quoted by its ports alone", cut("stun", 8), STUN),
        told("echo", unreachable(side.way, side.probe("echo"), host, on_the_way), 0, echo,
             side.icmp),
        left("unreachable: echo, quoted without its number", side, cut("echo", 8),
             "pass_other_protocol"),
        *(left(f"unreachable: {what}", side, changed(*how), "pass_other_protocol")
          for what, how in {
              "echo with another number": ("echo", 11, ~echo & 0xFF),
              "an echo reply": ("echo", 0, 0 if side.family == 4 else 129),
              "echo with a code": ("echo", 1, 1),
              "a datagram from no probe port": ("udp", 0, 1),
              "a datagram to another port": ("udp", 3, 99),
              "IP options or extension headers": ("udp", -20 if side.family == 4 else -34,
                                                  0x46 if side.family == 4 else 60),
          }.items()),
        left("unreachable: quoted too short, and padded", side, cut("udp", 7) + bytes(20),
             "pass_other_protocol"),
        left("unreachable: echo quoted too short, and padded", side, cut("echo", 15) + bytes(20),
             "pass_other_protocol"),
        left("unreachable: nobody is asked so", side, unreachable(side.way, side.probe("udp")),
             "pass_other_protocol", given=()),
    ]  # fmt: skip


def _syn_to_another_port() -> list[Case]:
    """``tcp:22``: the answer of a port that is nobody's service."""
    us, server = End(V4.way.us, PORT), End(V4.way.server, SSH)
    number = V4.number(SSH)
    event = V4.event(ProbeAnswer.SYNACK, 6, SSH, number)
    answer = Segment(flags=SYN | ACK, seq=77, ack=number + 1)
    rst = Segment(flags=RST, seq=number + 1, window=0, ident=0).frame(us, server, FROM_SERVER.back)
    return [
        answered("SYN-ACK of a port that is only probed", answer.frame(server, us, FROM_SERVER),
                 rst, at="backend", given=(V4.asked,), counters={"probe_synack": 1}, event=event),
        Case(name="RST of a port that is only probed", at="backend", verdict=DROP,
             frame=Segment(flags=RST | ACK, ack=number + 1).frame(server, us, FROM_SERVER),
             given=(V4.asked,), counters={"probe_rst": 1},
             event=event | {"detail": ProbeAnswer.RST}),
        passed("SYN-ACK of a port that is only probed, with a wrong number",
               answer.but(ack=number).frame(server, us, FROM_SERVER), "probe_unverified",
               at="backend", given=(V4.asked,)),
        passed("segment of a port that is only probed, to no probe port",
               answer.frame(server, End(us.addr, 5), FROM_SERVER), "pass_not_service",
               at="backend", given=(V4.asked,)),
        passed("SYN-ACK of a port that is not probed",
               answer.frame(End(server.addr, 23), us, FROM_SERVER), "pass_not_service",
               at="backend", given=(V4.asked,)),
    ]  # fmt: skip


_GROUPS: tuple[Callable[[Side], list[Case]], ...] = (echoes, stuns, datagrams)
CASES = [case for group in _GROUPS for case in group(V4)]
CASES += [*errors(V4), *_syn_to_another_port()]
IPV6_CASES = [case for group in _GROUPS for case in group(V6)]
"""For a world that has the program of IPv6."""
