# SPDX-License-Identifier: Apache-2.0
"""Probes that are no SYNs, answered by real stacks and servers, over both families."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire, enter_netns, in_fresh_netns, make_wire, open_netns
from tests.support.udp_servers import Answer, UdpServer, echo, stun_answer
from xdp_router.adapters.host import mac_bytes
from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_frames import probe_target
from xdp_router.adapters.probe_socket import ProbeSocket
from xdp_router.core.events import ProbeReply
from xdp_router.core.model import Backend, Endpoint, Probe, ProbeAnswer, ProbeKind
from xdp_router.core.probe_kinds import judge, parse_echo_reply

NEAR = {4: "198.18.1.1", 6: "2001:db8:1::1"}
FAR = {4: "198.18.1.2", 6: "2001:db8:1::2"}
PORT, PROBE_PORT, SEQ = 3478, 61_234, 0xA1B2C3D4
_ETH_P_ALL = 3
_ICMP = {4: 1, 6: 58}
_UNREACHABLE = {4: (3, 3), 6: (1, 4)}  # port unreachable

FAMILIES = pytest.mark.parametrize("family", [4, 6])


@dataclass
class Asked:
    """A wire, what is sent at this end of it, and what is heard there."""

    wire: Wire
    family: int
    path: Path
    sender: ProbeSocket
    sniffer: socket.socket

    def backend(self, probe: Probe) -> Backend:
        """The far end."""
        return Backend(1, "b1", Endpoint(int(ip_address(FAR[self.family])), PORT, 17), 0,
                       probe=probe)  # fmt: skip

    def ask(self, probe: Probe) -> int:
        """Send one probe; when that was."""
        sent_ns = self.sender.send_probe(
            probe_target(self.path, self.backend(probe)), PROBE_PORT, SEQ
        )
        assert sent_ns
        return sent_ns

    def answer(self, protocol: int) -> bytes:
        """What came from the far end with a protocol, from behind the IP header on."""
        far = ip_address(FAR[self.family]).packed
        end = time.monotonic() + 5
        while time.monotonic() < end:
            frame = self.sniffer.recv(2048)
            kind = int.from_bytes(frame[12:14], "big")
            if self.family == 4 and kind == 0x0800 and frame[26:30] == far:
                if frame[23] == protocol:
                    return frame[34 : 14 + int.from_bytes(frame[16:18], "big")]
            elif self.family == 6 and kind == 0x86DD and frame[22:38] == far:
                message = frame[54 : 54 + int.from_bytes(frame[18:20], "big")]
                # Its own neighbour discovery is ICMPv6 as well.
                if frame[20] == protocol and not (protocol == 58 and 133 <= message[0] <= 137):
                    return message
        raise AssertionError("no answer within 5 s")

    def served(self, answer: Answer) -> UdpServer:
        """A UDP server at the far end."""
        here = open_netns()
        try:
            enter_netns(self.wire.far_ns)
            kind = socket.AF_INET6 if self.family == 6 else socket.AF_INET
            sock = socket.socket(kind, socket.SOCK_DGRAM)
            sock.bind((FAR[self.family], PORT))
        finally:
            enter_netns(here)
            os.close(here)
        return UdpServer(sock, answer)

    def datagram(self) -> ProbeReply:
        """The next datagram that came, as XDP would report it."""
        message = self.answer(17)
        sport, dport, length, _ = struct.unpack_from("!HHHH", message)
        return ProbeReply(
            *(int(ip_address(FAR[self.family])), sport, dport, 0, ProbeAnswer.DATAGRAM),
            *(time.monotonic_ns(), 17, message[8:length][:64]),
        )


@contextlib.contextmanager
def asking(family: int) -> Iterator[Asked]:
    """Both ends of a wire, with addresses of both families."""
    with IPRoute() as ipr, contextlib.ExitStack() as undo:
        wire = make_wire(ipr, "be1", NEAR[4], FAR[4])
        undo.callback(os.close, wire.far_ns)
        # No duplicate address detection: an address that is tentative answers nobody.
        flags = {"prefixlen": 64, "flags": 0x02}
        ipr.addr("add", index=wire.near, address=NEAR[6], **flags)
        wire.at_far(lambda far: far.addr("add", index=wire.far, address=FAR[6], **flags))
        macs: list[bytes] = []

        def note(end: IPRoute, index: int) -> None:
            macs.append(mac_bytes(end.link("get", index=index)[0].get_attr("IFLA_ADDRESS")))

        note(ipr, wire.near)
        wire.at_far(lambda far: note(far, wire.far))
        sniffer = undo.enter_context(
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        )
        sniffer.bind(("be1", _ETH_P_ALL))
        sniffer.settimeout(5)
        sender = ProbeSocket()
        undo.callback(sender.close)
        path = Path(wire.near, macs[1], macs[0], int(ip_address(NEAR[family])))
        yield Asked(wire, family, path, sender, sniffer)


@FAMILIES
@in_fresh_netns
def test_a_kernel_answers_an_echo_request(family: int) -> None:
    """With the probe's port and number, which is all that an answer is known by."""
    with asking(family) as asked:
        asked.ask(Probe(ProbeKind.ICMP))
        protocol = _ICMP[family]
        assert parse_echo_reply(asked.answer(protocol), protocol) == (PROBE_PORT, SEQ)
        assert asked.sender.counters["probe_sent"] == 1


@FAMILIES
@in_fresh_netns
def test_a_stun_server_answers_a_binding_request(family: int) -> None:
    """Its answer belongs to that probe and no other."""
    probe = Probe(ProbeKind.STUN)
    with asking(family) as asked, asked.served(stun_answer):
        asked.ask(probe)
        event = asked.datagram()
        assert event.probe_port == PROBE_PORT
        assert judge(probe, SEQ, event) is ProbeAnswer.STUN
        assert judge(probe, SEQ ^ 1, event) is None


@FAMILIES
@in_fresh_netns
def test_an_echo_server_answers_a_datagram(family: int) -> None:
    """Good if it is what was expected; a longer one is known by its beginning."""
    probe = Probe(ProbeKind.UDP, payload=b"ping" * 40, answer=b"pingping")
    with asking(family) as asked, asked.served(echo):
        asked.ask(probe)
        event = asked.datagram()
        assert (event.probe_port, event.backend_port) == (PROBE_PORT, PORT)
        assert event.payload == b"ping" * 16
        assert judge(probe, SEQ, event) is ProbeAnswer.DATAGRAM
        other = Probe(ProbeKind.UDP, answer=b"pong")
        assert judge(other, SEQ, event) is ProbeAnswer.UNEXPECTED


@FAMILIES
@pytest.mark.parametrize("kind", [ProbeKind.STUN, ProbeKind.UDP])
@in_fresh_netns
def test_a_kernel_refuses_for_a_closed_port(family: int, kind: ProbeKind) -> None:
    """By an ICMP error that quotes the probe's ports."""
    with asking(family) as asked:
        asked.ask(Probe(kind, payload=b"ping"))
        message = asked.answer(_ICMP[family])
        assert (message[0], message[1]) == _UNREACHABLE[family]
        quoted = message[8 + (40 if family == 6 else 20) :]
        assert struct.unpack_from("!HH", quoted) == (PROBE_PORT, PORT)
