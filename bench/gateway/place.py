# SPDX-License-Identifier: Apache-2.0
"""Where it all runs: a client, the proxies in the place of the router, three mock engines."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdp_router.lab import BackendSpec, Lab, LabSpec
from xdp_router.lab.namespace import Namespace

from . import cpu
from .answers import Call, parsed
from .peers import Address, Proxy

ENGINES = 3
_ENGINE_PORT, _FIRST_PORT = 9000, 8100
_ENGINE_READY_S, _GRACE_S = 20.0, 30.0
SPEC = LabSpec(tuple(BackendSpec(f"e{number}") for number in range(1, ENGINES + 1)))
DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Arm:
    """``targets``: where its clients connect to, in turn; ``pid``: its first process; 0: none.
    ``workers``: how many of it work; 0: it is beside any number."""

    name: str
    targets: tuple[Address, ...]
    pid: int = 0
    rate: float | None = None
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A running lab, and the arms that are to be had there; ``missing``: the others, and why."""

    lab: Lab
    engines: tuple[Address, ...]
    arms: tuple[Arm, ...]
    missing: dict[str, str]


def first(pid: int) -> None:
    """What is another machine's does not wait until what is measured leaves it a CPU."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


def first_too(arm: Arm) -> None:
    """A proxy with all its threads goes before what else the machine does: others' work is none
    of the figures, and no proxy's wakeups are as late as they are beside it."""
    for pid in cpu.tree(arm.pid) if arm.pid else ():
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                first(int(thread))


def end(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, and if that is too slow by SIGKILL."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_engine(
    namespace: Namespace, address: Address, options: Sequence[str], undo: ExitStack
) -> None:
    """A mock engine, ready. Raises RuntimeError if it does not come up."""
    argv = [sys.executable, "-m", "xdp_router.lab.engine", address[0], str(address[1]), *options]
    process = namespace.spawn(argv, stdout=subprocess.DEVNULL)
    undo.callback(end, process)
    wait_for(namespace, address, process, _ENGINE_READY_S, "the mock engine")
    first(process.pid)


def wait_for(
    namespace: Namespace,
    address: Address,
    process: subprocess.Popen[bytes],
    limit_s: float,
    name: str,
    log: Path | None = None,
) -> None:
    """Until somebody listens there. Raises RuntimeError, with what the process said."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            namespace.connect(address, timeout=1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                said = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log else ""
                raise RuntimeError(f"{name} did not start: {said}") from None
        time.sleep(0.05)


def folder_name(proxy: str) -> str:
    """Of a proxy's own files; a path with a blank in it is two words to some of them."""
    return re.sub(r"[^A-Za-z0-9]+", "-", proxy).strip("-")


def start_proxy(
    lab: Lab,
    proxy: Proxy,
    at: Address,
    engines: Sequence[Address],
    directory: Path,
    undo: ExitStack,
) -> Arm:
    """A proxy, ready. Raises RuntimeError, with what it said, if it does not come up."""
    folder = directory / folder_name(proxy.name)
    folder.mkdir()
    started = proxy.start(folder, at, engines)
    log = folder / "log"
    with log.open("wb") as output:
        process = lab.router.spawn(
            started.argv, name=proxy.name, env=started.env, stdout=output, stderr=subprocess.STDOUT
        )
    undo.callback(end, process)
    wait_for(lab.router, at, process, proxy.ready_s, proxy.name, log)
    return Arm(proxy.name, (at,), process.pid, proxy.rate, proxy.workers)


@contextmanager
def place(
    directory: Path, proxies: Sequence[Proxy], options: Sequence[str] = ()
) -> Iterator[Place]:
    """All of it, for as long as the block runs. ``options`` are the engines'."""
    missing: dict[str, str] = {}
    with Lab(SPEC) as lab, ExitStack() as undo:
        hosts = [host for host, _ in lab.addresses.backends]
        engines = tuple((host, _ENGINE_PORT) for host in hosts)
        for number, (namespace, address) in enumerate(zip(lab.backends, engines, strict=True), 1):
            start_engine(namespace, address, ("--name", f"e{number}", *options), undo)
        arms = [Arm(DIRECT, engines)]
        for port, proxy in enumerate(proxies, _FIRST_PORT):
            reason = proxy.missing()
            if not reason:
                at = (lab.addresses.client_router, port)
                try:
                    arms.append(start_proxy(lab, proxy, at, engines, directory, undo))
                except RuntimeError as error:
                    reason = str(error)
            if reason:
                missing[proxy.name] = reason
        yield Place(lab, engines, tuple(arms), missing)


def behave(place: Place, text: str) -> None:
    """What all engines do from now on. Raises RuntimeError if one does not."""
    for number in range(len(place.engines)):
        tell(place, number, "/mock", text)


def tell(place: Place, number: int, path: str, text: str | None = None) -> dict[str, Any]:
    """POST ``text`` to an engine of ``place``, or GET; what it has counted.

    Raises RuntimeError if it refuses.
    """
    address = place.engines[number]
    connection = http.client.HTTPConnection(*address)
    connection.sock = place.lab.backends[number].connect(address)
    with contextlib.closing(connection):
        connection.request("GET" if text is None else "POST", path, text)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the mock engine refuses {path} {text}: {said.decode()}")
        return dict(json.loads(said))


def calls(
    place: Place,
    arm: Arm,
    *options: str,
    limit_s: float = 60.0,
    client: str = "bench.gateway.client",
) -> list[Call]:
    """What has come of one slice of an arm's requests. ``client``: the module that makes them.

    Raises RuntimeError if the client failed or did not end within ``limit_s``.
    """
    targets = [f"{host}:{port}" for host, port in arm.targets]
    process = place.lab.client.spawn(
        [sys.executable, "-m", client, *targets, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first(process.pid)
    try:
        out, complaint = process.communicate(timeout=limit_s + _GRACE_S)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{arm.name}: the clients did not end") from error
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{arm.name}: {complaint.decode(errors='replace').strip()}")
    return parsed(out.decode())
