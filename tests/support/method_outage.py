# SPDX-License-Identifier: Apache-2.0
"""A router whose daemon is gone, by every method: what goes on, and what begins."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator

from tests.support.clients import dial, echo_intact, random_bytes
from tests.support.every_method import FAMILIES, HEARTBEAT_STALE_S, Cell, ways_of
from tests.support.method_conversations import PATIENCE_S
from tests.support.receipts import ask, datagram_socket
from tests.support.router import Router

MEGABYTE = 1_000_000


def outlive_daemon(router: Router, *, begin: bool) -> None:
    """A megabyte by each way, SIGKILL, another one; and, if they shall ``begin``, new flows.

    Afterwards the router has no daemon.
    """
    with contextlib.ExitStack() as undo:
        streams = [(undo.enter_context(_stream(cell)), cell) for cell in _cells(router, "tcp")]
        talks = [(undo.enter_context(_talk(cell)), cell) for cell in _cells(router, "udp")]
        servers = [ask(peer, random_bytes(100)) for peer, _ in talks]
        for peer, cell in streams:
            assert echo_intact(peer, random_bytes(MEGABYTE)), cell.title
        assert router.stop(signal.SIGKILL) == -signal.SIGKILL
        for peer, cell in streams:
            assert echo_intact(peer, random_bytes(MEGABYTE, 2)), cell.title
        assert [ask(peer, random_bytes(1000)) for peer, _ in talks] == servers
    if not begin:
        return
    time.sleep(HEARTBEAT_STALE_S + 0.1)  # by then XDP has noticed
    for cell in _cells(router, "tcp"):
        with _stream(cell) as peer:
            assert echo_intact(peer, random_bytes(MEGABYTE, 3)), cell.title
    for cell in _cells(router, "udp"):
        with _talk(cell) as peer:
            assert ask(peer, b"one") == ask(peer, b"two"), cell.title


def _cells(router: Router, sort: str) -> Iterator[Cell]:
    for way in ways_of(router.lab.spec.topology):
        for family in FAMILIES:
            yield Cell(router, way, family, sort)


def _stream(cell: Cell) -> socket.socket:
    return dial(cell.router.lab.client, cell.service, timeout=PATIENCE_S)


def _talk(cell: Cell) -> socket.socket:
    return datagram_socket(cell.router.lab.client, cell.service, timeout=PATIENCE_S)
