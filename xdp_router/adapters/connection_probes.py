# SPDX-License-Identifier: Apache-2.0
"""Probes that are connections: ``tcp-connect``, and ``http``, which asks a path by HEAD.

The kernel's own TCP makes them, in the event loop. They cost a backend a connection each, and
say what a SYN cannot: whether the server itself takes connections and answers requests. The
answer to a HEAD counts when its first bytes are there (RFC 9110, 9.3.2; RFC 9112, 4).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from xdp_router.core.address import format_addr, format_endpoint, is_ipv6
from xdp_router.core.events import ProbeReply
from xdp_router.core.model import Backend, Endpoint, Probe, ProbeAnswer, ProbeKind
from xdp_router.core.probe_kinds import probed_endpoint

OPEN_MAX = 1024
"""Connections at a time, to all backends."""

TIMEOUT_S = 5.0
"""Nobody waits for an answer for so long: the connection is given up."""

_HEAD_BYTES = 512
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r|\n|$)")
_STATUS_BYTES = 13
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no TIME_WAIT of ours for each probe
_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EPROTO, errno.EACCES}
)


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """One backend as the destination of connections."""

    ifindex: int
    to: Endpoint
    probe: Probe


def connection_target(ifindex: int, backend: Backend) -> ConnectionTarget:
    """A backend as the destination of probes of its kind, which is one of connections."""
    return ConnectionTarget(ifindex, probed_endpoint(backend), backend.probe)


class ConnectionProbes:
    """Makes connections, and reports what came of them to ``report``.

    ``spawn`` starts a coroutine as a task of the loop and keeps it. The network namespace is the
    one that the loop runs in.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        report: Callable[[ProbeReply], object],
    ) -> None:
        self._spawn = spawn
        self._report = report
        self._open = 0
        self.counters: dict[str, int] = {"probe_connections": 0, "probe_connections_full": 0}

    def ask(self, target: ConnectionTarget, probe_port: int, seq: int) -> int:
        """Begin one probe; ``probe_port`` and ``seq`` only name it.

        Returns CLOCK_MONOTONIC ns of its begin; 0: not begun, too many are open.
        """
        if self._open >= OPEN_MAX:
            self.counters["probe_connections_full"] += 1
            return 0
        self._open += 1
        self.counters["probe_connections"] += 1
        sent_ns = time.monotonic_ns()
        self._spawn(self._run(target, probe_port, seq), "probe connection")
        return sent_ns

    async def _run(self, target: ConnectionTarget, probe_port: int, seq: int) -> None:
        to = target.to
        try:
            answer = await _ask(target)
        finally:
            self._open -= 1
        if answer is not None:
            received_ns = time.monotonic_ns()
            self._report(ProbeReply(to.addr, to.port, probe_port, seq, answer, received_ns))


async def _ask(target: ConnectionTarget) -> ProbeAnswer | None:
    """What a backend says; None: nothing, or nothing that can be told."""
    loop, to = asyncio.get_running_loop(), target.to
    family = socket.AF_INET6 if is_ipv6(to.addr) else socket.AF_INET
    with contextlib.ExitStack() as undo:
        try:
            sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            async with asyncio.timeout(TIMEOUT_S):
                await loop.sock_connect(sock, (format_addr(to.addr), to.port))
                if target.probe.kind is ProbeKind.CONNECT:
                    return ProbeAnswer.CONNECTED
                return await _ask_http(loop, sock, target)
        except TimeoutError:
            return None
        except ConnectionRefusedError:
            return ProbeAnswer.RST
        except ConnectionError:
            return ProbeAnswer.UNEXPECTED
        except OSError as error:
            return ProbeAnswer.UNREACHABLE if error.errno in _UNREACHABLE else None


async def _ask_http(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, target: ConnectionTarget
) -> ProbeAnswer:
    probe = target.probe
    host = probe.host or format_endpoint(target.to)
    lines = (
        f"HEAD {probe.path} HTTP/1.1", f"Host: {host}", "User-Agent: xdp-router",
        "Accept: */*", "Connection: close", "", "",
    )  # fmt: skip
    await loop.sock_sendall(sock, "\r\n".join(lines).encode())
    head = b""
    while len(head) < _STATUS_BYTES:
        more = await loop.sock_recv(sock, _HEAD_BYTES)
        if not more:
            break
        head += more
    found = _STATUS.match(head)
    if found is None:
        return ProbeAnswer.UNEXPECTED
    low, high = probe.status
    return ProbeAnswer.HTTP if low <= int(found[1]) <= high else ProbeAnswer.UNEXPECTED
