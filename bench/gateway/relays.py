# SPDX-License-Identifier: Apache-2.0
"""How much a ``tls`` listener relays on one core, beside HAProxy's TCP mode."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.rows import Row, Table
from xdp_router.lab import BackendSpec, Lab, LabSpec

from . import cpu
from .peers import Address, Proxy, Started, no_gateway, no_program, start_gateway
from .place import DIRECT, end, start_proxy, wait_for
from .run import turns
from .tls_ends import LEAD_S, NAME

OURS, HAPROXY, SPLICE = "xdp-router", "HAProxy", "HAProxy, splice"
_PORT, _FIRST_PORT = 9443, 8443
_SPEC = LabSpec((BackendSpec("e1"),))
_READY_S = 20.0
_LATE_S = 30.0
_FULL = 0.9
CASES = ((1, True), (16, True), (1, False), (16, False))
"""Connections, and whether the bytes behind the ClientHello are bare."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one arm. ``busy``: the proxy's CPU time by the time it took; ``silent``:
    connections without a byte until the end, since their first packet was lost among the others'.
    """

    arm: str
    connections: int
    bare: bool
    bytes: int
    seconds: float
    busy: float
    silent: int = 0

    @property
    def gbit_s(self) -> float:
        """What came."""
        return self.bytes * 8 / self.seconds / 1e9


def haproxy(directory: Path, at: Address, ends: Sequence[Address], splice: bool = False) -> Started:
    """One thread, TCP mode; SNI is read, as ours has to read it."""
    (host, port), (_, bare) = ends
    config = directory / "haproxy.cfg"

    def listener(name: str, at_port: int, to_port: int) -> str:
        return f"""listen {name}
  bind {at[0]}:{at_port}
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req.ssl_sni -i {NAME} }}
  tcp-request content reject
  server e1 {host}:{to_port}
"""

    config.write_text(
        f"""global
  maxconn 4000
  nbthread 1
defaults
  mode tcp
  timeout connect 5s
  timeout client 300s
  timeout server 300s
{"  option splice-auto" if splice else ""}
{listener("tls", at[1], port)}{listener("bare", at[1] + 1, bare)}""",
        encoding="utf-8",
    )
    return Started(("haproxy", "-db", "-f", str(config)))


def gateway_toml(at: Address, ends: Sequence[Address]) -> str:
    """Our own: two listeners, for bytes that are TLS to the end and for those that are not."""
    lines = ["[gateway]", "access_log = false"]
    for number, (host, port) in enumerate(ends):
        lines += ["[[listener]]", f'name = "l{number}"', 'type = "tls"', 'mode = "inline"']
        # A SYN that is lost is sent again after 1 s, and full wires lose some.
        lines += [f'address = "{at[0]}:{at[1] + number}"', 'connect_timeout = "5s"']
        lines += ["[[listener.route]]", f'names = ["{NAME}"]', 'backends = ["e1"]']
        lines += ["[[listener.backend]]", 'name = "e1"', f'address = "{host}:{port}"']
    return "\n".join(lines) + "\n"


def gateway(directory: Path, at: Address, ends: Sequence[Address]) -> Started:
    """One worker of ours."""
    return start_gateway(directory, gateway_toml(at, ends))


PROXIES = (
    Proxy(HAPROXY, haproxy, no_program("haproxy")),
    Proxy(SPLICE, partial(haproxy, splice=True), no_program("haproxy")),
    Proxy(OURS, gateway, no_gateway),
)


def certificate(directory: Path) -> tuple[str, str]:
    """Paths of a chain and its key, made by openssl. Raises OSError, RuntimeError."""
    chain, key = str(directory / "chain.pem"), str(directory / "key.pem")
    options = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-x509")
    argv = ("openssl", "req", *options, "-subj", f"/CN={NAME}", "-keyout", key, "-out", chain)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"openssl req: {done.stderr.strip()}")
    return chain, key


def _keep_to(pid: int, cpus: set[int]) -> None:
    for each in cpu.tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is gone by now
            for thread in os.listdir(f"/proc/{each}/task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cpus)


def measure(
    directory: Path,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
    proxies: Sequence[Proxy] = PROXIES,
) -> tuple[list[Turn], dict[str, str]]:
    """Every case of every arm, in turn; and the arms that cannot be had, with the reason.

    The proxies have the first CPU, both ends the others, if there are any. Raises OSError,
    RuntimeError.
    """
    found: list[Turn] = []
    missing: dict[str, str] = {}
    directory.mkdir()
    cpus = sorted(os.sched_getaffinity(0))
    ours, others = {cpus[0]}, set(cpus[1:]) or {cpus[0]}
    chain, key = certificate(directory)
    with Lab(_SPEC) as lab, ExitStack() as undo:
        host, _ = lab.addresses.backends[0]
        ends = ((host, _PORT), (host, _PORT + 1))
        argv = [sys.executable, "-m", "bench.gateway.tls_ends", "serve", host, str(_PORT)]
        server = lab.backends[0].spawn([*argv, chain, key], stdout=subprocess.DEVNULL)
        undo.callback(end, server)
        wait_for(lab.backends[0], ends[0], server, _READY_S, "the TLS server")
        _keep_to(server.pid, others)
        arms: dict[str, tuple[Address, int]] = {DIRECT: (ends[0], 0)}
        for number, proxy in enumerate(proxies):
            reason = proxy.missing()
            at = (lab.addresses.client_router, _FIRST_PORT + 10 * number)
            try:
                if not reason:
                    arm = start_proxy(lab, proxy, at, ends, directory, undo)
                    _keep_to(arm.pid, ours)
                    arms[proxy.name] = (at, arm.pid)
            except RuntimeError as error:
                reason = str(error)
            if reason:
                missing[proxy.name] = reason
        for number in range(rounds):
            for connections, bare in CASES:
                for name in turns(tuple(arms), number):
                    at, pid = arms[name]
                    found.append(_turn(lab, name, at, pid, connections, bare, seconds, others))
            progress(f"relays: round {number + 1} of {rounds}")
    return found, missing


def _turn(
    lab: Lab,
    name: str,
    at: Address,
    pid: int,
    connections: int,
    bare: bool,
    seconds: float,
    cpus: set[int],
) -> Turn:
    argv = [sys.executable, "-m", "bench.gateway.tls_ends", "fetch", at[0], str(at[1] + bare)]
    argv += ["--connections", str(connections), "--seconds", str(seconds)]
    before_ns = cpu.used_ns(pid) if pid else 0
    process = lab.client.spawn([*argv, *(["--bare"] if bare else [])], stdout=subprocess.PIPE)
    try:
        os.sched_setaffinity(process.pid, cpus)
        out, _ = process.communicate(timeout=seconds + _LATE_S)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: nothing came to an end") from error
    finally:
        process.kill()
        process.wait()
    said = json.loads(out)
    if said["errors"] or not said["bytes"]:
        raise RuntimeError(f"{name}: {'; '.join(said['errors']) or 'no bytes came'}")
    used_ns = cpu.used_ns(pid) - before_ns if pid else 0
    # The lead has cost CPU, too, and is in both: 0.5 s of the same work.
    busy = used_ns / 1e9 / (said["seconds"] + LEAD_S)
    return Turn(name, connections, bare, said["bytes"], said["seconds"], busy, said["silent"])


_COLUMNS = ("", "case", "Gbit/s", "proxy's core busy", "Gbit/s of a busy core")


def row_of(found: Sequence[Turn], missing: dict[str, str]) -> Row:
    """A line for each arm and case, medians of the rounds."""
    lines: list[tuple[str, ...]] = []
    values = {}
    full: dict[tuple[int, bool], dict[str, float]] = {}
    for connections, bare in CASES:
        case = f"{connections} connection{'s' * (connections > 1)}, {'bare' if bare else 'TLS'}"
        mine = [each for each in found if (each.connections, each.bare) == (connections, bare)]
        for arm in dict.fromkeys(each.arm for each in mine):
            turned = [each for each in mine if each.arm == arm]
            gbit_s = statistics.median(each.gbit_s for each in turned)
            busy = statistics.median(each.busy for each in turned)
            of_core = gbit_s / min(1.0, busy) if busy else 0.0
            full.setdefault((connections, bare), {})[arm] = of_core
            silent = sum(each.silent for each in turned)
            told_of = {"gbit_s": gbit_s, "busy": busy, "of_core": of_core, "silent": silent}
            values[f"{arm}, {case}"] = told_of
            shown = (f"{100 * busy:.0f} %", f"{of_core:.1f}") if busy else ("", "")
            lines.append((arm, case, f"{gbit_s:.1f}", *shown))
    told = []
    for case_of, arms in full.items():
        if arms.get(OURS) and arms.get(HAPROXY):
            what = "bare" if case_of[1] else "TLS"
            told.append(f"{case_of[0]} {what}: {arms[OURS] / arms[HAPROXY]:.2f} of HAProxy's")
    without = "".join(f"; no {name}: {why}" for name, why in missing.items())
    return Row(
        "gateway: tls relay",
        "no goal: beside HAProxy's TCP mode",
        ", ".join(told) or "see the table",
        None,
        "bytes a receiver got, one core for the proxy and the others for both ends; where the "
        f"proxy's core is not busy, below {100 * _FULL:.0f} %, the ends are what is slow, and what "
        "counts is the last column: what came by the CPU time that the proxy had. TLS: encrypted "
        "and decrypted by the ends; bare: a ClientHello, then bytes that cost the ends nothing; "
        f"{DIRECT} is the way without a proxy" + without,
        values,
        Table(_COLUMNS, tuple(lines)),
    )
