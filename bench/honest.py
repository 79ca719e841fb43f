# SPDX-License-Identifier: Apache-2.0
"""Honest clients of an echo service (of UDP: one that tells hashes): streams whose every byte is
looked at, and newcomers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xdp_router.lab import Lab, links
from xdp_router.lab.namespace import Namespace

from .honest_udp import UdpPeer

Address = tuple[str, int]

BLOCK = {"tcp": 4_096, "udp": 1_024}
"""Bytes that a stream sends, and has to hear of, at once."""
PAUSE_S = 0.2
"""For so long it then says nothing."""
FAR_INTERFACE = "far0"
"""The router's end of the wire to clients that are far away."""

_FAR = {4: "198.18.201.{}", 6: "2001:db8:201::{}"}
_FAR_BITS = {4: 24, 6: 64}
_READY_S = 10.0
_HELLO = 256


@dataclass
class Seen:
    """What clients saw. Times in milliseconds; ``failed`` holds what went wrong, as text.

    ``calm_bytes``: of streams before, ``flood_bytes``: while newcomers came. Of UDP,
    ``syn_retransmits`` are datagrams that were sent again.
    """

    streams_kept: int = 0
    stream_bytes: int = 0
    calm_bytes: int = 0
    calm_s: float = 0.0
    flood_bytes: int = 0
    flood_s: float = 0.0
    newcomers: int = 0
    connect_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    syn_retransmits: int = 0


class Peer(Protocol):
    """One flow to a server that lets each byte be verified."""

    again: int

    @property
    def has_handshake(self) -> bool:
        """Whether it is connected before anything is said."""

    async def exchange(self, payload: bytes) -> None:
        """Send, and verify what the server says of it. Raises OSError or IncompleteReadError."""

    def close(self) -> None:
        """Say goodbye."""


class TcpPeer:
    """A connection to an echo server. SYNs that are sent again the kernel counts."""

    has_handshake = True
    again = 0

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: Address) -> TcpPeer:
        """Raises OSError."""
        return cls(*await asyncio.open_connection(*address))

    async def exchange(self, payload: bytes) -> None:
        """Send, and get the same back."""
        self._writer.write(payload)
        if await self._reader.readexactly(len(payload)) != payload:
            raise ConnectionError("other bytes came back")

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


_CONNECT: dict[str, Callable[[Address], Awaitable[Peer]]] = {
    "tcp": TcpPeer.connect,
    "udp": UdpPeer.connect,
}


async def _stream(
    number: int,
    protocol: str,
    address: Address,
    seen: Seen,
    stop: asyncio.Event,
    ready: asyncio.Barrier,
) -> None:
    """One flow, at work until it is told to stop."""
    source = random.Random(number)
    block = BLOCK[protocol]
    peer = await _CONNECT[protocol](address)

    async def once() -> None:
        await peer.exchange(source.randbytes(block))
        seen.stream_bytes += block

    try:
        await once()
        await ready.wait()
        while not stop.is_set():
            await once()
            await asyncio.sleep(PAUSE_S)
        seen.streams_kept += 1
    finally:
        seen.syn_retransmits += peer.again
        peer.close()


async def _newcomer(protocol: str, address: Address, seen: Seen, timeout_s: float) -> None:
    """Connect, send, get the same back, close."""
    begun = time.monotonic()
    seen.newcomers += 1
    peer: Peer | None = None
    try:
        async with asyncio.timeout(timeout_s):
            peer = await _CONNECT[protocol](address)
            connected = time.monotonic()
            await peer.exchange(random.randbytes(_HELLO))
            if not peer.has_handshake:
                connected = time.monotonic()
        seen.connect_ms.append((connected - begun) * 1e3)
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        seen.failed.append(f"after {time.monotonic() - begun:.2f} s: {error!r}")
    finally:
        if peer is not None:
            seen.syn_retransmits += peer.again
            peer.close()


def syn_retransmits() -> int:
    """SYNs that the calling thread's namespace has sent again."""
    lines = Path("/proc/thread-self/net/netstat").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names[1:], values[1:], strict=True))["TCPSynRetrans"])


class Clients:
    """``streams`` flows at work, and ``rate`` newcomers a second, in one namespace."""

    def __init__(
        self,
        namespace: Namespace,
        address: Address,
        timeout_s: float = 10.0,
        protocol: str = "tcp",
    ) -> None:
        self._namespace = namespace
        self._address = address
        self._timeout_s = timeout_s
        self._protocol = protocol

    def during(
        self,
        streams: int,
        rate: int,
        seconds: float,
        *,
        ready: threading.Barrier | None = None,
        calm_s: float = 0.0,
    ) -> Seen:
        """Streams are open and have echoed before the time begins. Raises what keeps them.

        ``ready``: waited for by all who begin together; then streams are alone for ``calm_s``.
        """
        return self._namespace.run(
            lambda: asyncio.run(self._during(streams, rate, seconds, ready, calm_s))
        )

    async def _during(
        self,
        streams: int,
        rate: int,
        seconds: float,
        all_ready: threading.Barrier | None,
        calm_s: float,
    ) -> Seen:
        seen, stop = Seen(), asyncio.Event()
        before = syn_retransmits()
        limit_s = calm_s + seconds + 2 * self._timeout_s + _READY_S
        async with asyncio.timeout(limit_s):
            ready = asyncio.Barrier(streams + 1)
            tasks = [
                asyncio.create_task(
                    _stream(number, self._protocol, self._address, seen, stop, ready)
                )
                for number in range(streams)
            ]
            await ready.wait()
            if all_ready:
                await asyncio.to_thread(all_ready.wait, limit_s)
            seen.calm_bytes, seen.calm_s = await _taken(seen, asyncio.sleep(calm_s))
            come: list[asyncio.Task[None]] = []
            coming = self._newcomers(seen, rate, seconds, come)
            seen.flood_bytes, seen.flood_s = await _taken(seen, coming)
            stop.set()
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(done, BaseException):
                    seen.failed.append(f"stream: {done!r}")
            await asyncio.gather(*come)
        seen.syn_retransmits += syn_retransmits() - before
        return seen

    async def _newcomers(
        self, seen: Seen, rate: int, seconds: float, come: list[asyncio.Task[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
            one = _newcomer(self._protocol, self._address, seen, self._timeout_s)
            come.append(asyncio.create_task(one))
        await asyncio.sleep(max(0.0, start + seconds - loop.time()))


async def _taken(seen: Seen, wait: Awaitable[None]) -> tuple[int, float]:
    """Bytes of streams meanwhile, and how long it was."""
    before, begun = seen.stream_bytes, time.monotonic()
    await wait
    return seen.stream_bytes - before, time.monotonic() - begun


@contextmanager
def far_away(lab: Lab, delay_ns: int) -> Iterator[Namespace]:
    """A namespace of clients whose round trip to the router takes so long."""
    with ExitStack() as undo:
        far, line = (Namespace.create(f"{lab.prefix}-{part}") for part in ("far", "line"))
        undo.callback(far.close)
        undo.callback(line.close)
        links.prepare(far, {}, ipv6=True)
        links.prepare(line, {})
        ends = {
            end: tuple(f"{_FAR[family].format(end)}/{_FAR_BITS[family]}" for family in _FAR)
            for end in (1, 2)
        }
        links.connect(
            links.End(lab.router, FAR_INTERFACE, links.mac(4, 0, 1), ends[1]),
            links.End(line, "a", links.mac(4, 1, 1), gro=False),
        )
        links.connect(
            links.End(line, "b", links.mac(4, 1, 2), gro=False),
            links.End(far, "eth0", links.mac(4, 0, 2), ends[2]),
        )
        for gateways in _FAR.values():
            links.default_route(far, gateways.format(1))
        control = lab.directory / "far.sock"
        argv = [sys.executable, "-m", "xdp_router.lab.delay_line", "--a", "a", "--b", "b"]
        argv += ["--delay-ns", str(delay_ns), "--control", str(control), "--ready-fd", "1"]
        process = line.spawn(argv, name="far", env=lab.environment, stdout=-1)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield far
        finally:
            process.terminate()
            with contextlib.suppress(Exception):
                process.wait(5)
            process.kill()
            process.wait()
