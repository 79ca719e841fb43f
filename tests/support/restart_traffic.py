# SPDX-License-Identifier: Apache-2.0
"""Clients that a router's restarts must not be noticed by: a process in the client's namespace.

    python -m tests.support.restart_traffic ADDRESS PORT STREAMS CONNECTIONS_PER_SECOND

Writes what has happened so far as a line of JSON each quarter of a second; ends by SIGTERM.
Streams compare each byte that comes back. A connection asks who answers, within ten seconds.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.netns import wait_for
from tests.support.router import Router

CHUNK = 2_000
PAUSE_S = 0.15
PATIENCE_S = 10.0
REPORT_S = 0.25
PORTS = range(10_000, 30_000)
"""Which clients have: none that the kernel gives to connections of a test itself. To the same
server by another service, from the same port, is the same reply tuple, and refused."""


class _Traffic:
    def __init__(self, address: tuple[str, int], streams: int, rate: int) -> None:
        self._address = address
        self._count = streams
        self._rate = rate
        first = random.randrange(len(PORTS))
        self._ports = itertools.cycle((*PORTS[first:], *PORTS[:first]))
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.done = {"streams": 0, "exchanges": 0, "slowest_stream": 0, "connected": 0}
        self.faults: list[str] = []

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        for number in range(self._count):
            self._open.append(await self._connection())
            self.done["streams"] = number + 1
        echoed = [0] * self._count
        talkers = [asyncio.create_task(self._talk(n, stop, echoed)) for n in range(self._count)]
        dialler = asyncio.create_task(self._dial(stop))
        while not stop.is_set():
            self._report(echoed)
            await asyncio.sleep(REPORT_S)
        await asyncio.wait([*talkers, dialler, *self._tasks])
        self._report(echoed)

    def _report(self, echoed: list[int]) -> None:
        self.done["exchanges"], self.done["slowest_stream"] = sum(echoed), min(echoed)
        print(json.dumps({**self.done, "faults": self.faults[:20]}), flush=True)

    async def _talk(self, number: int, stop: asyncio.Event, echoed: list[int]) -> None:
        reader, writer = self._open[number]
        bytes_of = random.Random(number)
        try:
            while not stop.is_set():
                payload = bytes_of.randbytes(CHUNK)
                writer.write(payload)
                if await asyncio.wait_for(reader.readexactly(CHUNK), PATIENCE_S) != payload:
                    self.faults.append(f"stream {number}: other bytes after {echoed[number]}")
                    return
                echoed[number] += 1
                await asyncio.sleep(PAUSE_S)
        except (OSError, EOFError) as error:
            self.faults.append(f"stream {number}: {error!r} after {echoed[number]}")
        finally:
            writer.close()

    async def _dial(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stop.is_set():
            task = loop.create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _connect(self) -> None:
        try:
            await asyncio.wait_for(self._ask(), PATIENCE_S)
        except (OSError, EOFError) as error:
            self.faults.append(f"connection {self.done['connected']}: {error!r}")

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        anywhere = "::" if ":" in self._address[0] else "0.0.0.0"
        for port in itertools.islice(self._ports, len(PORTS)):
            local = anywhere, port
            try:
                return await asyncio.open_connection(*self._address, local_addr=local)
            except OSError as error:
                # Of a run before this one, maybe, whose connections are not forgotten yet.
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, f"all ports from {PORTS[0]} on are in use")

    async def _ask(self) -> None:
        reader, writer = await self._connection()
        try:
            writer.write(b"WHO\n")
            name = await reader.readline()
            if not name.endswith(b"\n"):
                self.faults.append(f"connection: {name!r} instead of a name")
            self.done["connected"] += 1
        finally:
            writer.close()


class RestartTraffic:
    """The process, from the test's side; a context manager."""

    def __init__(
        self, router: Router, streams: int, rate: int, service: tuple[str, int] | None = None
    ) -> None:
        """``service``: another one than the lab's of IPv4."""
        self._router = router
        address, port = service or router.service
        self._argv = [address, str(port), str(streams), str(rate)]
        self._streams = streams
        self._log = router.config.with_name(f"traffic-{address.replace(':', '.')}.log")

    def __enter__(self) -> RestartTraffic:
        argv = [sys.executable, "-m", "tests.support.restart_traffic", *self._argv]
        with self._log.open("wb") as output:
            self._process = self._router.lab.client.spawn(
                argv,
                env={"PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_for(lambda: self.now()["slowest_stream"] > 0, 30, "all streams have begun")
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(3 * PATIENCE_S)

    def now(self) -> dict[str, Any]:
        """What has happened so far."""
        assert self._process.poll() is None or self._process.returncode == 0, self._text()
        lines = [line for line in self._text().splitlines() if line.startswith("{")]
        nothing: dict[str, Any] = {"slowest_stream": 0, "connected": 0, "faults": []}
        found: dict[str, Any] = json.loads(lines[-1]) if lines else nothing
        assert not found["faults"], found["faults"]
        return found

    def wait_for_more(self, connections: int) -> None:
        """Return when every stream has got on, and so many connections were made, since here."""
        before = self.now()

        def more() -> bool:
            now = self.now()
            return bool(
                now["slowest_stream"] > before["slowest_stream"]
                and now["connected"] >= before["connected"] + connections
            )

        wait_for(more, 15, "traffic")

    def _text(self) -> str:
        text = self._log.read_text()
        return text[: text.rfind("\n") + 1]


if __name__ == "__main__":
    address, port, streams, rate = sys.argv[1:]
    asyncio.run(_Traffic((address, int(port)), int(streams), int(rate)).run())
