# SPDX-License-Identifier: Apache-2.0
"""More connections than ``flow_table`` has room for: all of them work, and the old ones stay."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connect, echo_intact, random_bytes, receive, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane, find_instances
from xdp_router.core import abi
from xdp_router.core.address import parse_endpoint
from xdp_router.core.model import FlowKey
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3")))
ROOM, MORE = 1000, 30
SHORT = 'pending_idle = "1s"\nclosed_linger = "1s"'


@pytest.fixture
def router(private_mounts: Path) -> Iterator[Router]:
    """A router with room for as few flows as can be configured."""
    config = calm_config(SPEC, SHORT, fallback="b1")
    with routed_lab(private_mounts, SPEC, config, "--max-flows", str(ROOM)) as started:
        yield started


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for a thousand sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def echoes(peer: socket.socket, words: bytes) -> None:
    """Sends and gets it back."""
    peer.sendall(words)
    assert receive(peer, len(words)) == words


def row_of(router: Router, peer: socket.socket) -> Any:
    """What ``flows`` says of a connection."""
    row = router.flow(peer.getsockname())
    assert row is not None
    return row


def lose_pending(router: Router, peer: socket.socket) -> None:
    """Remove all that is pending of a connection, as newer ones would by and by."""
    addr, port = peer.getsockname()
    client, at = (
        parse_endpoint(f"{addr}:{port}"),
        parse_endpoint(":".join(map(str, router.service))),
    )
    key = FlowKey(client.addr, client.port, at.addr, at.port)
    (instance,) = find_instances(router.pins)
    plane = DataPlane.open(instance.path)
    try:
        pending = Maps(plane.maps).pending_flows
        raw = pending.read(abi.pack_flow_key(key, abi.Kind.FORWARD))
        assert raw is not None
        forward = abi.unpack_pending(raw)
        backend = parse_endpoint(f"{abi.format_addr(forward.new_daddr)}:{forward.new_dport}")
        for doomed in (
            abi.pack_flow_key(key, abi.Kind.FORWARD),
            abi.pack_flow_key(key, abi.Kind.SEEN),
            abi.pack_reply_key(backend, key, abi.Kind.REPLY),
        ):
            pending.delete(doomed)
    finally:
        plane.close()


@pytest.mark.usefixtures("many_files")
def test_connections_beyond_the_room(router: Router) -> None:
    """They work, are counted and shown; lose nothing with their entries; find a place late."""
    with contextlib.ExitStack() as stack, router.counted() as counted:
        old = [stack.enter_context(connect(router)) for _ in range(ROOM)]
        assert counted("promoted") == ROOM
        more = [(stack.enter_context(connect(router)), b"") for _ in range(MORE)]
        assert counted("promote_table_full") >= MORE
        assert counted("table_full") >= MORE - 2  # but for the first: nobody knew
        assert counted("promoted") == ROOM
        names = [who(peer) for peer, _ in more]
        for number, (peer, _) in enumerate(more):
            assert echo_intact(peer, random_bytes(200_000, number))
        assert {row["state"] for row in (row_of(router, peer) for peer, _ in more)} == {"stateless"}
        row = row_of(router, more[-1][0])
        assert row["decision"]["reason"] == "table_full"
        done = router.cli("doctor", "--json")
        assert '"flow_table_full"' in done.stdout

        time.sleep(3)  # three times as long as a pending flow may be silent
        for peer, _ in more:
            echoes(peer, b"after a pause")
        assert counted("orphan_hashed") == counted("orphan_reset") == 0
        wait_for(lambda: router.ask("status")["flows_stateless"] == MORE, 10, "they are counted")

        lost = more[MORE // 2 :]
        for peer, _ in lost:
            lose_pending(router, peer)
            echoes(peer, b"hashed to the same backend")
        assert counted("orphan_hashed") == len(lost)
        for (peer, _), name in zip(lost, names[MORE // 2 :], strict=True):
            assert row_of(router, peer)["backend"] == name
            assert echo_intact(peer, random_bytes(100_000))
        assert counted("orphan_reset") == 0

        for peer in old[: ROOM // 2]:  # the old ones never noticed
            echoes(peer, b"still there")
        for peer in old[ROOM // 2 :]:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
        wait_for(lambda: router.ask("status")["flows"] <= ROOM // 2, 15, "closed ones are gone")
        for peer, _ in more[: MORE // 2]:
            echoes(peer, b"there is room now")
        assert counted("promoted_late") == MORE // 2
        for peer, _ in more[: MORE // 2]:
            assert row_of(router, peer)["state"] == "established"
            assert echo_intact(peer, random_bytes(200_000))
        peer = more[0][0]
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""
        wait_for(lambda: row_of(router, peer)["state"] == "closing", 5, "its end is seen")
        assert counted("fin_outside_window") == counted("rst_inexact") == 0
