# SPDX-License-Identifier: Apache-2.0
"""Fragments through the router: what a hop makes of IPv4, and what an IPv6 end sends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import TCP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from tests.e2e.test_path_mtu import MEGABYTE, SERVICE, SPEC, far_config
from tests.support.clients import dial, digest, echo_intact, random_bytes
from tests.support.long_path import NARROW, EchoServer, long_path
from tests.support.netns import running_lab
from tests.support.router import Router, calm_config, router_in
from tests.support.tap import Tap, wait_readable
from tests.support.wide_lab import WideLab, routed_wide_lab
from xdp_router.lab import Namespace, links

pytest_plugins = ("tests.support.netns",)

STRANGER = "2001:db8:c::77"
"""An address of the client's network that no kernel has: only what is sent raw speaks there."""


@contextlib.contextmanager
def cut_way(
    private_mounts: Path, side: str, mode: str
) -> Iterator[tuple[Router, Namespace, tuple[str, int]]]:
    """A router, a client and the service that it asks. On one side the way is long and narrow, and
    who is there lets its packets be cut."""
    with contextlib.ExitStack() as undo:
        lab = undo.enter_context(running_lab(SPEC))
        path = undo.enter_context(long_path(lab, side, NARROW))
        links.prepare(path.far, {"ipv4/ip_no_pmtu_disc": "1"})
        router = undo.enter_context(router_in(lab, private_mounts))
        if side == "client":
            router.start(calm_config(SPEC), "--xdp-mode", mode)
            yield router, path.far, router.service
            return
        undo.callback(EchoServer(path.far).close)
        router.start(far_config(path.address), "--xdp-mode", mode)
        yield router, lab.client, SERVICE


@pytest.mark.parametrize("mode", ["native", "generic"])
@pytest.mark.parametrize("side", ["client", "backend"])
def test_a_megabyte_in_fragments(private_mounts: Path, side: str, mode: str) -> None:
    """A hop on the way cuts what comes from beyond it; the router brings all of it to its flow."""
    with cut_way(private_mounts, side, mode) as (router, client, service):
        with dial(client, service, timeout=15) as peer:
            assert echo_intact(peer, random_bytes(MEGABYTE))
        counters = router.counters()
        assert counters["fragment_first"] > 100
        assert counters["fragment_followed"] >= counters["fragment_first"]
        assert counters["fragment_dropped"] == counters["fragment_unknown"] == 0


class Stranger:
    """TCP over IPv6 by hand, from the client's wire."""

    def __init__(self, wide: WideLab) -> None:
        self._tap = wide.client.run(lambda: Tap("eth0"))
        self._router = wide.lab.router.run(lambda: Tap("client0")).address
        self._wide = wide
        self.seq, self.ack = 1000, 0

    def close(self) -> None:
        self._tap.close()

    def packet(self, flags: str, payload: bytes = b"") -> Ether:
        address, port = self._wide.service
        tcp = TCP(sport=40_000, dport=port, flags=flags, seq=self.seq, ack=self.ack)
        return (
            Ether(src=self._tap.address, dst=self._router, type=0x86DD)
            / IPv6(src=STRANGER, dst=address) / IPv6ExtHdrFragment(id=0x12345678)
            / tcp / Raw(payload)
        )  # fmt: skip

    def send(self, flags: str, payload: bytes = b"") -> int:
        """Send it, in fragments if it is long; how many there were."""
        whole = self.packet(flags, payload)
        pieces = [whole]
        if len(payload) > 700:
            pieces = fragment6(whole, 700)  # type: ignore[no-untyped-call]  # scapy's
        for piece in pieces:
            self._tap.send(bytes(piece))
        self.seq += len(payload) + flags.count("S") + flags.count("F")
        return len(pieces)

    def hear(self) -> TCP:
        """The next segment for us."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            wait_readable([self._tap], 0.2)
            for frame in self._tap.received():
                packet = Ether(frame)
                if IPv6 in packet and packet[IPv6].dst == STRANGER and TCP in packet:
                    segment: TCP = packet[TCP]
                    return segment
        raise AssertionError("nothing came")


def test_an_ipv6_end_sends_fragments(private_mounts: Path) -> None:
    """All fragments of its segments reach the backend, which has the data."""
    with routed_wide_lab(private_mounts, family=6, protocol="tcp") as wide:
        with contextlib.closing(Stranger(wide)) as peer:
            payload = random_bytes(1300)
            peer.send("S")
            answer = peer.hear()
            assert str(answer.flags) == "SA"
            peer.ack = answer.seq + 1
            peer.send("A")
            assert peer.send("PAF", payload) >= 2
            text = b""
            while b"\n" not in text:
                segment = peer.hear()
                text += bytes(segment.payload)
            assert text.split()[1].decode() == digest(payload)
        counters = wide.router.counters()
        assert counters["fragment_first"] == 1
        assert counters["fragment_followed"] >= 1
        assert counters["fragment_dropped"] == counters["fragment_unknown"] == 0
