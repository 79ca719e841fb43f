# SPDX-License-Identifier: Apache-2.0
"""Whole connections through the real daemon: a backend that stalls, and what probing costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from xdp_router.lab import BackendSpec, LabSpec, Stall, links

from . import haproxy
from .forwarding import nftables, round_robin_rules
from .router import Router, running
from .rows import Options, Row, percentile, summary

Address = tuple[str, int]
_TIMEOUT_S = 5.0
_WAY_NS = 500_000
_NFTABLES: Address = ("198.18.100.2", 80)
_HAPROXY: Address = (haproxy.ADDRESS, 80)


async def first_byte(address: Address, source: str) -> float:
    """Milliseconds from before the connect to the first byte of the answer."""
    start_ns = time.perf_counter_ns()
    reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
    try:
        writer.write(b"WHO\n")
        if not await reader.read(64):
            raise ConnectionResetError("closed without an answer")
        return (time.perf_counter_ns() - start_ns) / 1e6
    finally:
        writer.close()


async def _open_loop(
    arms: Mapping[str, Callable[[], Awaitable[float]]], rate: int, seconds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Each arm ``rate`` times a second, arms taking turns, nobody waiting for anybody."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    failed = dict.fromkeys(arms, 0)

    async def one(name: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                samples[name].append(await arms[name]())
        except (OSError, TimeoutError):
            failed[name] += 1

    loop = asyncio.get_running_loop()
    start, tasks = loop.time(), set()
    gap = 1 / (rate * len(arms))
    names = list(arms)
    for number in range(rate * seconds * len(arms)):
        await asyncio.sleep(max(0.0, start + number * gap - loop.time()))
        task = asyncio.create_task(one(names[number % len(names)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return samples, failed


def stall(options: Options) -> Iterator[Row]:
    """First-byte latency while one of three backends stalls 50 ms, 200 ms of each 500 ms."""
    rate, seconds = options.pick(40, 60), options.pick(10, 40)
    spec = LabSpec(
        (
            BackendSpec("b1", delay_ns=_WAY_NS),
            BackendSpec("b2", delay_ns=_WAY_NS, stall=Stall()),
            BackendSpec("b3", delay_ns=_WAY_NS),
        ),
        # One for each arm: all of them meet the same backends, and NAT keeps source ports.
        client_addresses=4,
    )
    with running(spec) as router, ExitStack() as undo:
        lab = router.lab
        nftables(lab.router, round_robin_rules(_NFTABLES, lab.addresses.backends))
        haproxy.start(lab, options.directory, {"leastconn": _HAPROXY}, undo)
        backends = lab.addresses.backends
        turn = iter(range(1 << 30))
        own = lab.addresses.clients
        arms: dict[str, Callable[[], Awaitable[float]]] = {
            "race": lambda: first_byte(lab.addresses.service, own[0]),
            "nftables round robin": lambda: first_byte(_NFTABLES, own[1]),
            "backends in turn": lambda: first_byte(backends[next(turn) % len(backends)], own[2]),
            "haproxy leastconn": lambda: first_byte(_HAPROXY, own[3]),
        }
        samples, failed = lab.client.run(lambda: asyncio.run(_open_loop(arms, rate, seconds)))
        engine = router.status()["engine"]
    p99 = {name: percentile(values, 0.99) for name, values in samples.items()}
    others = ("nftables round robin", "backends in turn", "haproxy leastconn")
    ratios = {name: p99[name] / p99["race"] for name in others if p99["race"]}
    worst = min(ratios.values(), default=0.0)
    yield Row(
        "first-byte p99 with one of three backends stalling",
        ">= 20 x lower than round robin and HAProxy leastconn",
        "; ".join(
            f"{name} p50 {percentile(values, 0.5):.1f}, p99 {p99[name]:.1f} ms"
            for name, values in samples.items()
        )
        + f"; {worst:.0f} x",
        worst >= 20 and not failed["race"],
        f"{rate} conn/s of each arm in turn for {seconds} s, open loop; 0.5 ms wires by delay-line "
        f"processes, one stalling 50 ms in 200 of each 500 ms; failed: {sum(failed.values())}",
        {
            **{name: summary(values) for name, values in samples.items()},
            "failed": failed,
            "engine": {name: value for name, value in engine.items() if value},
        },
    )


_SYN, _SYNACK, _RST = 58, 58, 54
"""Bytes of a probe's three frames: SYN and SYN-ACK with an MSS option, RST without any."""


class _Download(asyncio.Protocol):
    """Fetches one document and says when it has all of it."""

    def __init__(self, request: bytes, size: int) -> None:
        self._request = request
        self._left = size
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left <= 0 and not self.done.done():
            self.done.set_result(True)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(False)


async def _download(address: Address, size: int) -> float:
    request = b"GET /bytes/%d HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n" % size
    loop = asyncio.get_running_loop()
    start_ns = time.perf_counter_ns()
    _, protocol = await loop.create_connection(lambda: _Download(request, size), *address)
    if not await protocol.done:
        raise ConnectionResetError("the download ended early")
    return (time.perf_counter_ns() - start_ns) / 1e6


def probe_share(options: Options) -> Iterator[Row]:
    """Bytes of probes against bytes that were forwarded."""
    rate, seconds, size = 1_000, options.pick(2, 6), 64_000
    spec = LabSpec(tuple(BackendSpec(f"b{number}", kind="http") for number in (1, 2, 3)))
    with running(spec, "probe_rate = 100000\n") as router:
        lab = router.lab
        before, start_ns = _traffic(router), time.monotonic_ns()
        arms = {"download": lambda: _download(lab.addresses.service, size)}
        samples, failed = lab.client.run(lambda: asyncio.run(_open_loop(arms, rate, seconds)))
        took_s = (time.monotonic_ns() - start_ns) / 1e9
        after = _traffic(router)
    done = len(samples["download"])
    change = {name: after[name] - before[name] for name in after}
    probes = change["probes"]
    probe_bytes = change["probes"] * _SYN + change["answers"] * (_SYNACK + _RST)
    forwarded = change["wire_bytes"] - probe_bytes
    share = probe_bytes / forwarded if forwarded else 1.0
    yield Row(
        "probe traffic, 3 candidates, 64 kB a connection",
        "<= 1 % of forwarded bytes at 1,000 conn/s",
        f"{100 * share:.2f} % at {done / took_s:,.0f} conn/s: {probes:,} probes, "
        f"{probe_bytes / 1e6:.2f} MB of {forwarded / 1e6:.0f} MB",
        share <= 0.01 and done > 0,
        "share = races/s x candidates x 170 bytes (SYN 58, SYN-ACK 58, RST 54) / forwarded "
        "bytes/s, races/s <= min(conn/s, 1 / coalesce_window); forwarded bytes from the router's "
        f"interfaces, both directions once; {done:,} of {rate * seconds:,} downloads done",
        {
            "share": share,
            "offered_per_s": rate,
            "done_per_s": done / took_s,
            "failed": failed,
            "download_ms": summary(samples["download"]),
            **change,
        },
    )


def _traffic(router: Router) -> dict[str, int]:
    engine: dict[str, Any] = router.status()["engine"]
    lab = router.lab
    wire_bytes = 0
    for namespace in lab.backends:
        stats = links.with_netlink(
            namespace,
            lambda netlink: netlink.link("get", index=netlink.link_lookup(ifname="eth0")[0]),
        )[0].get_attr("IFLA_STATS64")
        wire_bytes += stats["rx_bytes"] + stats["tx_bytes"]
    return {
        "probes": engine["probe_sent"],
        "answers": engine["probes_synack"],
        "races": engine["races_started"],
        "wire_bytes": wire_bytes,
    }
