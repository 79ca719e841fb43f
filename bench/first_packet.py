# SPDX-License-Identifier: Apache-2.0
"""First packets through the real daemon: how late they leave, and how many a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from xdp_router.adapters import xdp_link
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.core import abi
from xdp_router.core.model import FlowKey
from xdp_router.lab import BackendSpec, LabSpec, links
from xdp_router.lab.namespace import Namespace

from . import programs
from .frames import SYN, tcp_frame
from .router import Router, running
from .rows import Options, Row, percentile, summary
from .traffic import CLIENT_BASE, CLIENT_PORT_MIN, NAT
from .wake import described, wake_up_us
from .wire import Generator, Receiver

THREE = (BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3"))
DAEMON_CPU, OTHER_CPU = 0, 1
_SPIN_NS = 100_000
_LED = ("RACE_WON", "TIE")
"""Reasons of flows that had a race of their own."""
_DRAIN_S = 0.3
_CLIENT_PORTS = 1 << 15
_SERVICE = NAT.service
_PROBE_PORTS = 1_000


class SynLoad:
    """New connections from the client's namespace: SYNs made in the kernel, counted (or timed)
    at the backends, where they go no further. The backends' kernels answer the probes.
    """

    def __init__(self, router: Router, options: Options, receiver: str, entries: int = 1) -> None:
        self._undo = ExitStack()
        lab = router.lab
        self.loaded = programs.load("wire", options.directory, entries={"wire_arrivals": entries})
        self._undo.callback(self.loaded.close)
        self.generator = Generator(self.loaded, lab.client, "eth0", self._undo)
        self.receiver = Receiver(self.loaded)
        self._client = lab.client
        for backend in lab.backends:
            self._attach(backend, self.loaded.programs[receiver])
        dmac, smac = (bytes.fromhex(links.mac(0, 0, end).replace(":", "")) for end in (1, 2))
        self._frame = tcp_frame(
            dmac, smac, (CLIENT_BASE, CLIENT_PORT_MIN), (_SERVICE.addr, _SERVICE.port), SYN
        )
        self._next = 0
        self._warm(router)

    def _attach(self, namespace: Namespace, prog_fd: int) -> None:
        index = links.ifindex(namespace, "eth0")
        native = xdp_link.AttachMode.NATIVE
        link = namespace.run(lambda: xdp_link.attach(prog_fd, "eth0", index, native))
        self._undo.callback(link.close)

    def _warm(self, router: Router) -> None:
        """The first ones resolve nothing and load nothing any more."""
        self.send(200, 200)
        time.sleep(_DRAIN_S)
        router.status()

    def send(self, rate: int, count: int, each_ns: int = 1_000_000) -> tuple[int, float]:
        """Open loop: ``rate`` a second from due times, all that is due every ``each_ns``.

        Returns the number of the first flow, and the rate that was reached.
        """
        first = self._next
        self._next += count
        self.generator.configure(0, self._frame, first=first)

        def body() -> float:
            with programs.pinned(OTHER_CPU):
                start_ns, sent = time.monotonic_ns(), 0
                while sent < count:
                    now_ns = time.monotonic_ns()
                    due = min(count, (now_ns - start_ns) * rate // 1_000_000_000 + 1)
                    if due > sent:
                        self.generator.send(due - sent)
                        sent = due
                    wake_ns = max(each_ns, 1_000_000_000 // rate)
                    _sleep_until(start_ns + ((now_ns - start_ns) // wake_ns + 1) * wake_ns)
                return count * 1e9 / (time.monotonic_ns() - start_ns)

        return first, self._client.run(body)

    def close(self) -> None:
        """Take the receivers away."""
        self._undo.close()


def _sleep_until(due_ns: int) -> None:
    """Sleep, then spin the rest: a timer alone is late by 60 us."""
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > _SPIN_NS:
        time.sleep((left_ns - _SPIN_NS) / 1e9)
    while time.monotonic_ns() < due_ns:
        pass


def client_of(flow: int) -> tuple[int, int]:
    """Address and port of a generated flow."""
    return CLIENT_BASE + flow // _CLIENT_PORTS, CLIENT_PORT_MIN + flow % _CLIENT_PORTS


def race_overhead(options: Options) -> Iterator[Row]:
    """What the router adds to the round trip that a race has to wait for."""
    rate, count = 1_000, options.pick(2_000, 8_000)
    wakes = wake_up_us(options.pick(500, 2_000), DAEMON_CPU, OTHER_CPU)
    settings = 'coalesce_window = "0ns"\nprobe_rate = 100000\nprobe_burst = 10000\n'
    settings += "max_flows = 1000\ndecisions_kept = 20000\n"
    with running(LabSpec(THREE), settings, cpu=DAEMON_CPU) as router, ExitStack() as undo:
        load = SynLoad(router, options, "time_syns", entries=4 * (count + _PROBE_PORTS))
        undo.callback(load.close)
        # A probe port's keyed hash is computed at its first use, in Python: all of them, once.
        cold, _ = load.send(rate, _PROBE_PORTS)
        time.sleep(_DRAIN_S)
        cold_flows = _timeline(router, load, range(cold, cold + _PROBE_PORTS))
        before = router.status()["engine"]
        first, reached = load.send(rate, count)
        time.sleep(_DRAIN_S)
        engine = router.status()["engine"]
        flows = _timeline(router, load, range(first, first + count))
        phases = _phases(router, [flow["client"] for flow in flows[:: max(1, len(flows) // 300)]])
        counters = router.counters()
    own = [flow for flow in flows if flow["reason"] in _LED]
    added = [flow["fppl_us"] - flow["rtt_us"] for flow in own]
    kernel = [flow["xdp_fppl_us"] - flow["rtt_us"] for flow in own]
    p50, p99 = percentile(added, 0.5), percentile(added, 0.99)
    told = ", ".join(f"{name} {each.get('median', 0):.0f} us" for name, each in phases.items())
    changed = {
        name: value - before.get(name, 0)
        for name, value in engine.items()
        if value != before.get(name, 0)
    }
    yield Row(
        "race leaders: FPPL minus the winner's RTT, 1,000 conn/s",
        "p50 <= 100 us, p99 <= 1 ms",
        f"p50 {p50:.0f} us, p99 {p99:.0f} us; RTT p50 "
        f"{percentile([flow['rtt_us'] for flow in own], 0.5):.0f} us; {len(own):,} of {count:,} "
        f"led a race ({told})",
        bool(own) and p50 <= 100 and p99 <= 1_000,
        f"open loop, {reached:.0f} SYNs/s reached, coalesce_window 0; from XDP's first sight to "
        "the SYN's arrival at the backend's XDP, one clock; daemon on one CPU, everything else "
        f"on the other; three backends wired directly; after {_PROBE_PORTS:,} races that use "
        f"each probe port for the first time; {described(wakes)}, and it is in the figure once",
        {
            "fppl_minus_rtt_us": summary(added),
            "cold_fppl_minus_rtt_us": summary(
                [f["fppl_us"] - f["rtt_us"] for f in cold_flows if f["reason"] in _LED]
            ),
            "until_xdp_forwards_us": summary(kernel),
            "rtt_us": summary([flow["rtt_us"] for flow in own]),
            "wake_up_us": summary(wakes),
            "phases_us": phases,
            "engine": changed,
            "counters": {name: value for name, value in counters.items() if value},
        },
    )


def _timeline(router: Router, load: SynLoad, flows: range) -> list[dict[str, Any]]:
    """For each flow that the kernel's tables still know: when it was seen, decided, out."""
    arrivals = BpfMap(load.loaded.maps["wire_arrivals"])
    names = ["b1", "b2", "b3"]
    found = []
    for flow in flows:
        addr, port = client_of(flow)
        raw = router.maps.pending_flows.read(
            abi.pack_flow_key(FlowKey(addr, port, _SERVICE.addr, _SERVICE.port), abi.Kind.FORWARD)
        )
        key = addr.to_bytes(4, "big"), port.to_bytes(2, "big")
        number = int.from_bytes(key[0], "little") << 16 | int.from_bytes(key[1], "little")
        arrived = arrivals.read(number.to_bytes(8, "little"))
        if raw is None or arrived is None:
            continue
        entry = abi.unpack_pending(raw)
        found.append((f"{abi.format_addr(addr)}:{port}", entry, int.from_bytes(arrived, "little")))
    candidates = router.candidates([client for client, _, _ in found])
    lines = []
    for client, entry, arrived_ns in found:
        rtts = {each["backend"]: each["rtt_us"] for each in candidates.get(client, [])}
        rtt_us = rtts.get(names[entry.backend]) if entry.backend < len(names) else None
        if rtt_us is None:
            continue
        lines.append(
            {
                "client": client,
                "reason": entry.reason.name,
                "rtt_us": rtt_us,
                "fppl_us": (arrived_ns - entry.seen_ns) / 1e3,
                "xdp_fppl_us": entry.fppl_ns / 1e3,
            }
        )
    return lines


def _phases(router: Router, clients: list[str]) -> dict[str, Any]:
    """Where the time goes, from the daemon's own time lines."""
    phases: dict[str, list[float]] = {
        "seen to first probe": [],
        "first to last probe": [],
        "last probe or answer to decided": [],
        "decided to out": [],
    }
    for told in router.explain(clients):
        at: dict[str, list[float]] = {}
        for entry in told["timeline"]:
            at.setdefault(entry["what"], []).append(entry["t_us"])
        if told["reason"].upper() not in _LED or "answer" not in at or "re-injected" not in at:
            continue
        probes, decided = at["probe"], at["decided"][0]
        phases["seen to first probe"].append(probes[0])
        phases["first to last probe"].append(probes[-1] - probes[0])
        begin = max(probes[-1], min(at["answer"]))
        phases["last probe or answer to decided"].append(decided - begin)
        phases["decided to out"].append(at["re-injected"][0] - decided)
    return {name: summary(values) for name, values in phases.items()}


_STEPS = (10_000, 15_000, 20_000, 25_000, 30_000, 40_000)


def decided_rate(options: Options) -> Iterator[Row]:
    """The most first packets a second that one core decides."""
    settings = "event_rate = 10000000\nservice_event_rate = 10000000\nevent_burst = 1000000\n"
    settings += "max_flows = 1000\n"
    seconds = options.pick(1, 3)
    steps: list[dict[str, Any]] = []
    with running(LabSpec(THREE), settings, cpu=DAEMON_CPU) as router, ExitStack() as undo:
        load = SynLoad(router, options, "count_syns")
        undo.callback(load.close)
        for offered in _STEPS:
            steps.append(_step(router, load, offered, seconds))
            if steps[-1]["decided"] < 0.7 * offered:
                break
    best = max(step["decided"] for step in steps)
    clean = [s["decided"] for s in steps if s["by_xdp"] <= 0.001 * s["offered"] * seconds]
    told = "; ".join(
        f"{s['offered'] / 1000:.0f}k offered: {s['decided'] / 1000:.1f}k, cpu {s['cpu']:.0%}"
        for s in steps
    )
    yield Row(
        "first packets decided a second, one core, coalescing",
        ">= 20,000",
        f"{best:,.0f} ({told})",
        best >= 20_000,
        f"open-loop SYNs by live frames, what is due each ms, {seconds} s a step; counted at the "
        "backends, those that the daemon decided and re-injected within the step; daemon on one "
        "CPU, all else on the other; log sampled as by default; without XDP having to decide: "
        f"{max(clean, default=0):,.0f}",
        {"steps": steps},
    )


def _step(router: Router, load: SynLoad, offered: int, seconds: int) -> dict[str, Any]:
    before, arrived = router.counters(), load.receiver.count()
    cpu, at = router.cpu_seconds(), time.monotonic()
    _, reached = load.send(offered, offered * seconds)
    took = time.monotonic() - at
    after, cpu = router.counters(), router.cpu_seconds() - cpu
    arrived = load.receiver.count() - arrived
    change = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    time.sleep(2 * _DRAIN_S)
    by_xdp = change.get("decided_fallback", 0) + change.get("decided_hash", 0)
    return {
        "offered": offered,
        "reached": reached,
        "decided": min(change.get("reinjected", 0), arrived) / took,
        "by_xdp": by_xdp,
        "cpu": cpu / took,
        "counters": change,
    }
