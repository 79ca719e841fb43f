# SPDX-License-Identifier: Apache-2.0
"""Pings of a service's address, by the kernel's own ping sockets."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.wide_lab import WideLab, routed_wide_lab
from xdp_router.lab import Namespace
from xdp_router.lab.spec import Family

pytest_plugins = ("tests.support.netns",)

_REQUESTS = {4: 8, 6: 128}
_REPLIES = {4: 0, 6: 129}
FLOOD = 300


def ping_socket(client: Namespace, family: Family, target: str) -> socket.socket:
    """A raw socket of ICMP that hears the target alone."""
    if family == 6:
        peer = client.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    else:
        peer = client.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    peer.settimeout(2)
    peer.connect((target, 0))
    return peer


def _sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def request(family: Family, number: int, payload: bytes) -> bytes:
    """An echo request; the kernel itself puts in the sum of ICMPv6."""
    message = struct.pack(">BBHHH", _REQUESTS[family], 0, 0, 0x4321, number) + payload
    return message[:2] + _sum(message).to_bytes(2, "big") + message[4:]


def answers(peer: socket.socket, family: Family, count: int) -> list[tuple[int, bytes]]:
    """What came back: sequence numbers and payloads, ``count`` at most."""
    found: list[tuple[int, bytes]] = []
    try:
        while len(found) < count:
            data = peer.recv(4096)
            message = data[(data[0] & 15) * 4 :] if family == 4 else data
            kind, _, _, ident, number = struct.unpack_from(">BBHHH", message)
            if (kind, ident) == (_REPLIES[family], 0x4321):
                found.append((number, message[8:]))
    except TimeoutError:
        pass
    return found


def _settings(rate: int) -> dict[str, Any]:
    return {"settings": f"icmp_rate = {rate}", "service": "icmp_echo = true"}


def _asked(wide: WideLab, family: Family, count: int, payload: bytes) -> list[tuple[int, bytes]]:
    with ping_socket(wide.client, family, wide.service[0]) as peer:
        for number in range(count):
            peer.send(request(family, number, payload))
        return answers(peer, family, count)


@pytest.mark.parametrize("family", [4, 6])
def test_a_flood_of_pings_is_limited(private_mounts: Path, family: Family) -> None:
    """Beyond the budget of ICMP requests are dropped and counted; later pings are answered."""
    with routed_wide_lab(
        private_mounts, family=family, protocol="tcp", **_settings(10)
    ) as wide:  # fmt: skip
        found = len(_asked(wide, family, FLOOD, b"flood!"))
        counters = wide.router.counters()
        assert counters["icmp_over_budget"] > 0
        assert found == counters["echo_answered"] < FLOOD
        assert found + counters["icmp_over_budget"] == FLOOD
        time.sleep(1)
        assert len(_asked(wide, family, 1, b"later!")) == 1
