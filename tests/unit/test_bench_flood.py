# SPDX-License-Identifier: Apache-2.0
"""The flood table: what its cells are made of, and how honest clients of UDP count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bench import honest_udp
from bench.honest import Seen
from bench.honest_udp import UdpPeer
from bench.syn_flood import ARRIVED, COLUMNS, WAYS, Way, goodput_kept, table_line
from xdp_router.core import abi
from xdp_router.lab.hash_server import receipt_of

VALUES = {
    "sent": 250_000.4,
    "arrived": 240_000.0,
    "probes": 321.0,
    "cpu": 0.456,
    "grown_mb": 5.25,
}


def seen(calm: int, flood: int, *, got_in: int = 10, failed: int = 0, again: int = 0) -> Seen:
    """What clients saw in 2 s of calm and 4 s of flood."""
    return Seen(
        calm_bytes=calm,
        calm_s=2.0,
        flood_bytes=flood,
        flood_s=4.0,
        newcomers=got_in + failed,
        connect_ms=[1.0] * got_in,
        failed=["late"] * failed,
        syn_retransmits=again,
    )


def test_goodput_kept_is_of_all_clients_and_by_the_second() -> None:
    """Times differ: 1,000 B/s and 3,000 B/s before, 500 B/s and 2,500 B/s meanwhile."""
    assert goodput_kept([seen(2_000, 2_000), seen(6_000, 10_000)]) == 0.75
    assert goodput_kept([seen(1_000, 2_000)]) == 1.0
    assert goodput_kept([seen(1_000, 0)]) == 0.0
    assert goodput_kept([Seen()]) == 0.0


def test_a_line_has_what_the_columns_say() -> None:
    """Near and far clients together; those that failed were tried."""
    way = Way("SYNs", "its own wire", family=6)
    clients = {"near": seen(100, 200, got_in=9, failed=1, again=2), "far": seen(100, 100, again=1)}
    assert dict(zip(COLUMNS, table_line(way, VALUES, clients), strict=True)) == {
        "flood": "SYNs, IPv6, by its own wire",
        "offered/s": "1,000,000",
        "sent/s": "250,000",
        "seen by XDP/s": "240,000",
        "goodput kept": "75 %",
        "new tried": "20",
        "succeeded": "19",
        "sent again": "3",
        "probes/s": "321",
        "daemon CPU": "46 %",
        "daemon RSS": "+5.2 MB",
    }


def test_ways_are_three_of_each_family() -> None:
    """flood_flows, stateless and datagrams over IPv4 and IPv6; no line twice."""
    assert len({way.name for way in WAYS}) == len(WAYS)
    own = {(w.family, w.protocol, w.stateless) for w in WAYS if w.back == "own" and not w.threaded}
    assert own == {
        (family, *kind)
        for family in (4, 6)
        for kind in (("tcp", False), ("tcp", True), ("udp", False))
    }


def test_nobody_is_asked_for_more_than_can_be() -> None:
    """Where a queue in front of XDP is full, honest SYNs are lost in it, too."""
    assert {way.strict for way in WAYS if way.back == "shared" or way.threaded} == {False}
    assert all(way.strict for way in WAYS if way.protocol == "tcp" and way.back == "own"
               and not way.threaded)  # fmt: skip


def test_what_arrives_is_counted_by_counters_that_exist() -> None:
    """A counter that was renamed would be missed silently."""
    assert set(ARRIVED) <= set(abi.Counter.__members__)


class Wire(asyncio.DatagramTransport):
    """Takes datagrams; ``answers`` says what comes back for the n-th."""

    def __init__(self, peer: UdpPeer, answers: Callable[[int, bytes], list[bytes]]) -> None:
        super().__init__()
        self._peer = peer
        self._answers = answers
        self.sent: list[bytes] = []

    def sendto(self, data: Any, addr: Any = None) -> None:
        self.sent.append(data)
        for answer in self._answers(len(self.sent), data):
            self._peer.datagram_received(answer, addr)


def exchanged(answers: Callable[[int, bytes], list[bytes]], *payloads: bytes) -> tuple[int, int]:
    """Datagrams sent, and those of them that were sent again."""

    async def body() -> tuple[int, int]:
        peer = UdpPeer()
        wire = Wire(peer, answers)
        peer.connection_made(wire)
        for payload in payloads:
            await peer.exchange(payload)
        return len(wire.sent), peer.again

    return asyncio.run(body())


def test_a_datagram_without_an_answer_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And counted; an answer to an earlier one is nobody's."""
    monkeypatch.setattr(honest_udp, "AGAIN_S", 0.01)

    def answers(number: int, data: bytes) -> list[bytes]:
        if number == 1:
            return []
        return [receipt_of("b1", b"an earlier one"), receipt_of("b1", data)]

    assert exchanged(answers, b"one", b"two") == (3, 1)


def test_a_datagram_that_nobody_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many tries, and saying so."""
    monkeypatch.setattr(honest_udp, "AGAIN_S", 0.01)
    with pytest.raises(ConnectionError, match="no answer to 6 datagrams"):
        exchanged(lambda number, data: [], b"one")


def test_another_backends_answer_is_a_fault() -> None:
    """A flow that changes its backend is lost, even if somebody answers."""
    with pytest.raises(ConnectionError, match="b2.* answered, and .*b1.* before"):
        exchanged(lambda number, data: [receipt_of(f"b{number}", data)], b"one", b"two")
