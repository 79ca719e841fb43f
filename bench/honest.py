# SPDX-License-Identifier: Apache-2.0
"""Honest clients of an echo service: streams whose every byte is looked at, and newcomers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from xdp_router.lab import Lab, links
from xdp_router.lab.namespace import Namespace

Address = tuple[str, int]

BLOCK = 4_096
FAR_INTERFACE = "far0"
"""The router's end of the wire to clients that are far away."""

_FAR = "198.18.201"
_PAUSE_S = 0.2
_READY_S = 10.0


@dataclass
class Seen:
    """What clients saw. Times in milliseconds; ``failed`` holds what went wrong, as text."""

    streams_kept: int = 0
    stream_bytes: int = 0
    connect_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    syn_retransmits: int = 0


class _Stream:
    """One connection, echoing until it is told to stop."""

    def __init__(self, number: int, seen: Seen) -> None:
        self._rng = random.Random(number)
        self._seen = seen

    async def run(self, address: Address, stop: asyncio.Event, ready: asyncio.Barrier) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            await self._echo(reader, writer)
            await ready.wait()
            while not stop.is_set():
                await self._echo(reader, writer)
                await asyncio.sleep(_PAUSE_S)
            self._seen.streams_kept += 1
        finally:
            writer.close()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        payload = self._rng.randbytes(BLOCK)
        writer.write(payload)
        if await reader.readexactly(BLOCK) != payload:
            raise ConnectionError("other bytes came back")
        self._seen.stream_bytes += BLOCK


async def _newcomer(address: Address, seen: Seen, timeout_s: float) -> None:
    """Connect, send, get the same back, close."""
    begun = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*address)
            connected = time.monotonic()
            try:
                payload = random.randbytes(256)
                writer.write(payload)
                if await reader.readexactly(len(payload)) != payload:
                    raise ConnectionError("other bytes came back")
            finally:
                writer.close()
        seen.connect_ms.append((connected - begun) * 1e3)
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        seen.failed.append(f"after {time.monotonic() - begun:.2f} s: {error!r}")


def syn_retransmits() -> int:
    """SYNs that the calling thread's namespace has sent again."""
    lines = Path("/proc/thread-self/net/netstat").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names[1:], values[1:], strict=True))["TCPSynRetrans"])


class Clients:
    """``streams`` connections at work, and ``rate`` newcomers a second, in one namespace."""

    def __init__(self, namespace: Namespace, address: Address, timeout_s: float = 10.0) -> None:
        self._namespace = namespace
        self._address = address
        self._timeout_s = timeout_s

    def during(self, streams: int, rate: int, seconds: float) -> Seen:
        """Streams are open and have echoed before the time begins. Raises what keeps them."""
        return self._namespace.run(lambda: asyncio.run(self._during(streams, rate, seconds)))

    async def _during(self, streams: int, rate: int, seconds: float) -> Seen:
        seen, stop = Seen(), asyncio.Event()
        before = syn_retransmits()
        async with asyncio.timeout(seconds + 2 * self._timeout_s + _READY_S):
            ready = asyncio.Barrier(streams + 1)
            tasks = [
                asyncio.create_task(_Stream(number, seen).run(self._address, stop, ready))
                for number in range(streams)
            ]
            await ready.wait()
            newcomers = await self._newcomers(seen, rate, seconds)
            stop.set()
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(done, BaseException):
                    seen.failed.append(f"stream: {done!r}")
            await asyncio.gather(*newcomers)
        seen.syn_retransmits = syn_retransmits() - before
        return seen

    async def _newcomers(self, seen: Seen, rate: int, seconds: float) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        start, tasks = loop.time(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
            tasks.append(asyncio.create_task(_newcomer(self._address, seen, self._timeout_s)))
        await asyncio.sleep(max(0.0, start + seconds - loop.time()))
        return tasks


@contextmanager
def far_away(lab: Lab, delay_ns: int) -> Iterator[Namespace]:
    """A namespace of clients whose round trip to the router takes so long."""
    with ExitStack() as undo:
        far, line = (Namespace.create(f"{lab.prefix}-{part}") for part in ("far", "line"))
        for namespace in (far, line):
            undo.callback(namespace.close)
            links.prepare(namespace, {})
        links.connect(
            links.End(lab.router, FAR_INTERFACE, links.mac(4, 0, 1), (f"{_FAR}.1/24",)),
            links.End(line, "a", links.mac(4, 1, 1), gro=False),
        )
        links.connect(
            links.End(line, "b", links.mac(4, 1, 2), gro=False),
            links.End(far, "eth0", links.mac(4, 0, 2), (f"{_FAR}.2/24",)),
        )
        links.default_route(far, f"{_FAR}.1")
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
