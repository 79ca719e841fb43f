# SPDX-License-Identifier: Apache-2.0
"""The real daemon in a lab: started, asked by its control socket, looked at by its pins."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.control import ControlError
from xdp_router.adapters.control_client import ControlClient
from xdp_router.adapters.dataplane import DataPlane, instance_dir
from xdp_router.lab import Lab, LabSpec, libc
from xdp_router.lab.spec import Family

_READY_S = 20.0
_STOP_S = 10.0
_POLL_S = 0.02
_PER_REQUEST = 2000


class Router:
    """A running daemon and its lab."""

    def __init__(
        self,
        lab: Lab,
        process: subprocess.Popen[bytes],
        control: Path,
        interfaces: Sequence[str],
    ) -> None:
        self.lab = lab
        self.process = process
        self.control = control
        self.plane = DataPlane.open(instance_dir(lab.directory / "bpf" / "xdp-router", interfaces))
        self.maps = Maps(self.plane.maps)

    def status(self) -> dict[str, Any]:
        """The daemon's status."""
        with ControlClient(self.control, timeout_s=10.0) as client:
            return dict(client.call("status"))

    def candidates(self, clients: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Candidates of the newest decision about each client, as far as they are kept."""
        found: dict[str, list[dict[str, Any]]] = {}
        with ControlClient(self.control, timeout_s=30.0) as client:
            for start in range(0, len(clients), _PER_REQUEST):
                found.update(
                    client.call("decisions", clients=list(clients[start : start + _PER_REQUEST]))
                )
        return found

    def explain(self, clients: Sequence[str]) -> list[dict[str, Any]]:
        """The time line of each client's newest decision."""
        with ControlClient(self.control, timeout_s=10.0) as client:
            return [dict(client.call("explain", client=each)) for each in clients]

    def counters(self) -> dict[str, int]:
        """The XDP program's counters."""
        return self.maps.counters.read()

    def rss_bytes(self) -> int:
        """The daemon's resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """Processor time that the daemon has used."""
        text = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(
    spec: LabSpec,
    settings: str = "",
    *,
    cpu: int | None = None,
    deadline: str = "50ms",
    family: Family = 4,
    protocol: str = "tcp",
    prepare: Callable[[Lab], Sequence[str]] = lambda lab: (),
    service: str = "",
    config: str | None = None,
) -> Iterator[Router]:
    """A lab with the daemon ready in it. ``settings``: lines of the ``[router]`` table, and
    ``service`` of the service's.

    ``cpu`` keeps the daemon on one CPU. ``prepare`` adds to the lab what is to be there when the
    router is attached, and gives the interfaces that it is attached to beside the lab's own.
    ``config`` goes in the place of what these say for the lab's one service.
    """
    with Lab(spec, prefix=f"xr-bench-{os.getpid()}") as lab:
        pins = lab.directory / "bpf"
        pins.mkdir()
        libc.mount("bpf", str(pins), "bpf")
        try:
            interfaces = (*lab.router_interfaces, *prepare(lab))
            text = lab.config_toml(deadline=deadline, family=family, protocol=protocol)
            text = text.replace("\n", f"\n{service}\n", 1)
            text = config or f"{text}\n[router]\n{settings}"
            process, control = _start(lab, pins / "xdp-router", interfaces, text, cpu)
            router = Router(lab, process, control, interfaces)
            try:
                yield router
            finally:
                router.plane.close()
                _stop(process)
        finally:
            libc.umount(str(pins))


def _start(
    lab: Lab,
    pins: Path,
    interfaces: Sequence[str],
    text: str,
    cpu: int | None,
) -> tuple[subprocess.Popen[bytes], Path]:
    control, log = lab.directory / "control.sock", lab.directory / "router.log"
    config = lab.directory / "router.toml"
    config.write_text(text, encoding="utf-8")
    argv = [sys.executable, "-m", "xdp_router.daemon.main", "attach", *interfaces]
    argv += ["--config", str(config), "--control", str(control), "--pins", str(pins)]
    argv += ["--loader", "object", "--log-format", "json"]
    with log.open("wb") as output:
        process = lab.router.spawn(argv, name="router", stdout=output, stderr=subprocess.STDOUT)
    if cpu is not None:
        os.sched_setaffinity(process.pid, {cpu})
    deadline_s = time.monotonic() + _READY_S
    while not _is_ready(control):
        if process.poll() is not None or time.monotonic() > deadline_s:
            said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"the daemon did not get ready: {said}")
        time.sleep(_POLL_S)
    return process, control


def _is_ready(control: Path) -> bool:
    try:
        with ControlClient(control, timeout_s=2.0) as client:
            return bool(client.call("status")["ready"])
    except ControlError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
