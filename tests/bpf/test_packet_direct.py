# SPDX-License-Identifier: Apache-2.0
"""``dsr`` and ``ipip`` in each family, and in outer headers of each: the life of one flow.

What becomes of single segments is in the corpus (``corpus/direct.py``, ``corpus/tunnel.py``).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from tests.support.bpf_programs import LOADERS, real_loader
from tests.support.direct_plane import (
    ACK,
    BACKEND,
    FIN,
    ISN,
    PORT,
    RST,
    SETTINGS,
    SIZES,
    SYN,
    Plane,
    Setting,
)
from tests.support.privileges import require_root
from tests.support.program import REDIRECT, router_namespace
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.core import abi


@pytest.fixture(scope="module")
def planes() -> Iterator[dict[str, Plane]]:
    """The program of both families by either loader."""
    require_root()
    with router_namespace() as wires:
        made = {name: DataPlane.create(real_loader(name), SIZES, None) for name in LOADERS}
        yield {name: Plane(plane, wires) for name, plane in made.items()}
        for plane in made.values():
            plane.close()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_flow_from_syn_to_fin(setting: Setting, loader: str, planes: dict[str, Plane]) -> None:
    """Each segment leaves as it came but for MACs and TTL, in its outer header; one entry tells."""
    plane = planes[loader]
    plane.serve(setting)
    there = plane.wires.backend
    for flags, seq, payload, state in (
        (SYN, ISN, b"", None),
        (SYN, ISN, b"", None),
        (ACK, ISN + 1, b"", abi.TcpState.ESTABLISHED),
        (ACK, ISN + 1, b"GET / HTTP/1.1", abi.TcpState.ESTABLISHED),
        (ACK, ISN + 15, bytes(1000), abi.TcpState.ESTABLISHED),
        (FIN, ISN + 1015, b"", abi.TcpState.CLOSING),
        (ACK, ISN + 1016, b"", abi.TcpState.CLOSING),
    ):
        frame = setting.frame(flags, seq, payload)
        assert plane.run(frame) == (REDIRECT, there, setting.sent(flags, seq, payload))
        entry = plane.entry(setting)
        assert (entry.state if entry else None) is state
    assert entry is not None
    assert entry.flags == abi.FLOW_ONE_SIDED | abi.FLOW_FIN
    assert (entry.new_saddr, entry.new_daddr) == (setting.key.client_addr, setting.key.service_addr)
    assert (entry.new_sport, entry.new_dport) == (PORT, 80)
    assert (entry.l3_delta, entry.l4_delta, entry.packets) == (0, 0, 7)
    (entries,) = plane.maps.by_family[setting.family].flows.batches(8)
    assert entries.count == 1


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_only_its_own_reset_ends_it(
    setting: Setting, loader: str, planes: dict[str, Plane]
) -> None:
    """A RST at another number passes, and changes nothing; its own is a hint, until silence."""
    plane = planes[loader]
    plane.serve(setting)
    for flags, seq, state in (
        (SYN, ISN, None),
        (ACK, ISN + 1, abi.TcpState.ESTABLISHED),
        (RST, ISN + 9, abi.TcpState.ESTABLISHED),
        (SYN, ISN + 50_000, abi.TcpState.ESTABLISHED),
        (RST, ISN + 1, abi.TcpState.CLOSING),
        (SYN, ISN + 90_000, abi.TcpState.CLOSING),
        (ACK, ISN + 90_001, abi.TcpState.ESTABLISHED),
    ):
        assert plane.run(setting.frame(flags, seq))[:2] == (REDIRECT, plane.wires.backend)
        entry = plane.entry(setting)
        assert (entry.state if entry else None) is state


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.outer in (0, s.family)], ids=str)
def test_a_client_that_is_the_backend(
    setting: Setting, loader: str, planes: dict[str, Plane]
) -> None:
    """It gets nothing of its own back: nobody else is there, so it is refused."""
    plane = planes[loader]
    plane.serve(setting)
    frame = setting.frame(SYN, ISN)
    frame[IP if setting.family == 4 else IPv6].src = BACKEND[setting.family]
    verdict, _, answer = plane.run(frame)
    assert verdict == REDIRECT
    assert Ether(answer)[TCP].flags == "RA"


NEAR, TOP, STEPS = 1 << 22, 1 << 32, 60
"""``ONE_SIDED_NEAR`` of ``lib/one_sided.h``."""


@dataclass
class Model:
    """What is known of one client's flow, by the words of docs/architecture.md."""

    known: str = "nothing"
    """nothing, pending, established."""
    isn: int = 0
    later: int = 0
    next: int = 0
    closed: bool = False
    """Of a pending flow: its handshake was reset."""
    fin: bool = False
    rst: bool = False

    def begin(self, isn: int) -> None:
        """A SYN was sent to a backend."""
        self.known, self.isn, self.later, self.next = "pending", isn, 0, 0
        self.closed = self.fin = self.rst = False

    def syn(self, seq: int) -> None:
        """A SYN of the client."""
        over = self.known == "nothing" or self.closed
        if self.known != "nothing" and seq == self.isn:
            return
        if over:
            self.begin(seq)
        else:
            self.later = seq

    def segment(self, seq: int, length: int, flags: str) -> None:
        """Any other segment, with ACK unless it is a RST."""
        if self.known == "pending":
            self._pending(seq, flags)
        if self.known == "established":
            self._established(seq, length, flags)

    def _pending(self, seq: int, flags: str) -> None:
        if flags == RST:
            self.closed |= seq == (self.isn + 1) % TOP
            return
        if seq != (self.isn + 1) % TOP and self.later and seq == (self.later + 1) % TOP:
            self.isn, self.later = self.later, 0
        if seq == (self.isn + 1) % TOP:
            self.known, self.next, self.later, self.closed = "established", seq, 0, False

    def _established(self, seq: int, length: int, flags: str) -> None:
        closing = self.fin or self.rst
        if flags == RST:
            self.rst |= seq == self.next
            return
        if closing and self.later and seq == (self.later + 1) % TOP:
            self.isn, self.next, self.later = self.later, seq, 0
            self.fin = self.rst = closing = False
        end = (seq + length + (flags == FIN)) % TOP
        advance = (end - self.next + TOP // 2) % TOP - TOP // 2
        if abs(advance) > NEAR:
            return
        if flags == FIN:
            self.fin = True
        elif closing and length and advance > 0:
            self.fin = self.rst = False
        if advance > 0:
            self.next = end


LIVES = list(zip([s for s in SETTINGS if not s.varied], itertools.cycle(LOADERS), strict=False))


@pytest.mark.parametrize(("setting", "loader"), LIVES, ids=str)
def test_random_lives(
    setting: Setting, loader: str, planes: dict[str, Plane], rng: random.Random
) -> None:
    """Whatever a client sends, in any order, is known as the model has it, and goes to B1."""
    plane = planes[loader]
    for _ in range(3):
        plane.serve(setting)
        model, told = Model(), []
        for _ in range(STEPS):
            base = rng.choice((model.isn + 1, model.next, model.later + 1, model.isn))
            seq = (base + rng.choice((0, 0, 0, 0, 1, -1, 1000, -1000, 1 << 21, 1 << 24))) % TOP
            flags = rng.choice((SYN, ACK, ACK, ACK, ACK, FIN, RST))
            length = rng.choice((0, 1, 100)) if flags == ACK else 0
            told.append((flags, seq, length))
            was_known = model.known != "nothing"
            verdict, egress, _ = plane.run(setting.frame(flags, seq, bytes(length)))
            if flags == SYN:
                model.syn(seq)
            else:
                model.segment(seq, length, flags)
            if was_known or flags == SYN:
                assert (verdict, egress) == (REDIRECT, plane.wires.backend), told
            else:
                assert egress != plane.wires.backend, told
            entry = plane.entry(setting)
            assert (entry is not None) == (model.known == "established"), told
            if entry is not None:
                known = (entry.isn, entry.seq_next, bool(entry.flags & abi.FLOW_RST))
                assert known == (model.isn, model.next, model.rst), told
                closing = entry.state is abi.TcpState.CLOSING
                assert closing == (model.fin or model.rst), told
