# SPDX-License-Identifier: Apache-2.0
"""The daemon as an operator runs it, in a lab's router namespace, and the commands beside it.

    with routed_lab(private_mounts, LabSpec(...)) as router:
        router.lab.client.connect(router.service)
        router.cli("flows", "--json")

Start it from the main thread: the kernel ends a daemon with the thread that started it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from tests.support.netns import mounts_under, running_lab, wait_for
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.control import ControlError
from xdp_router.adapters.control_client import ControlClient
from xdp_router.adapters.dataplane import DataPlane, find_instances
from xdp_router.adapters.netlink import LinkInfo, link_info
from xdp_router.cli.main import main
from xdp_router.lab import Lab, LabSpec, libc

T = TypeVar("T")

READY_S = 60.0
COMMAND_S = 60.0
CONTROL_S = 20.0
END_S = 60.0
"""Each takes a small part of that, unless others have the machine."""

Finished = subprocess.CompletedProcess[str]


def calm_config(spec: LabSpec, settings: str = "", **web: Any) -> str:
    """The lab's configuration with times that a busy machine keeps, where they don't matter.

    ``settings`` is further text of the [router] table; keywords go to ``LabSpec.config_toml``.
    """
    if "heartbeat_stale" not in settings:
        settings += '\nheartbeat_stale = "2s"'
    return f"[router]\n{settings}\n{spec.config_toml(**{'deadline': '1s', **web})}"


class Router:
    """One place for a daemon: its configuration, control socket, pins and log.

    ``bpffs`` is a mounted BPF file system; ``directory`` is the router's own.
    """

    def __init__(self, lab: Lab, directory: Path, bpffs: Path) -> None:
        self.lab = lab
        self.directory = directory
        self.control = directory / "control.sock"
        self.pins = bpffs / directory.name
        self.config = directory / "router.toml"
        self.log = directory / "router.log"
        self.xdp_mode = ""
        """For each ``start`` that does not say otherwise; empty: the daemon's own choice."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service(self) -> tuple[str, int]:
        """Where clients connect to."""
        return self.lab.addresses.service

    @property
    def pid(self) -> int:
        """Process id of the running daemon."""
        assert self._process is not None, "no daemon was started"
        return self._process.pid

    # The daemon

    def start(
        self,
        config: str | None = None,
        *options: str,
        interfaces: Sequence[str] | None = None,
    ) -> Router:
        """Attach and wait until packets are handled; fails with the log if that is never."""
        assert not self.running, "a daemon runs already"
        self.config.write_text(config or calm_config(self.lab.spec))
        argv = self._attach_argv(interfaces or self.lab.router_interfaces, *options)
        if self.xdp_mode and "--xdp-mode" not in options:
            argv += ["--xdp-mode", self.xdp_mode]
        argv += ["--log-format", "json", "--config", str(self.config)]
        with self.log.open("wb") as output:
            self._process = self.lab.router.spawn(
                argv, name="router", stdout=output, stderr=subprocess.STDOUT
            )
        wait_for(self._is_ready, READY_S, "the daemon is ready")
        return self

    def _attach_argv(self, interfaces: Sequence[str], *options: str) -> list[str]:
        argv = [sys.executable, "-m", "xdp_router.daemon.main", "attach", *interfaces]
        return [*argv, "--control", str(self.control), "--pins", str(self.pins), *options]

    def _is_ready(self) -> bool:
        if not self.running:
            pytest.fail(f"the daemon ended: {self.log.read_text()}")
        try:
            return bool(self.ask("status")["ready"])
        except ControlError:
            return False

    @property
    def running(self) -> bool:
        """Whether the daemon's process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self, number: int = signal.SIGTERM, timeout: float = END_S) -> int:
        """Send the daemon a signal and return its exit code."""
        assert self._process is not None, "no daemon was started"
        self._process.send_signal(number)
        return self._process.wait(timeout)

    def close(self) -> None:
        """Stop what still runs and remove what a killed daemon has left."""
        if self.running:
            self.stop()
        for instance in find_instances(self.pins):
            # Refused for a second after the last heartbeat: the daemon might be alive.
            wait_for(partial(self._detached, instance.interfaces), END_S, "detach")

    def _detached(self, interfaces: Sequence[str]) -> bool:
        return self.routerd("detach", *interfaces).returncode == 0

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The daemon's log lines so far, of one event or of all."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        found = [json.loads(line) for line in lines]
        return [line for line in found if name is None or line["event"] == name]

    # Commands

    def routerd(self, *args: str, pins: bool = True) -> Finished:
        """Run ``xdp-routerd ARGS`` to its end in the router's namespace."""
        env = {"XDP_ROUTER_PINS": str(self.pins)} if pins else {}
        return self.run([sys.executable, "-m", "xdp_router.daemon.main", *args], env)

    def attach_in_vain(self, interfaces: Sequence[str], *options: str) -> Finished:
        """Run an ``attach`` that is expected to refuse, to its end."""
        return self.run(self._attach_argv(interfaces, *options))

    def run(self, argv: Sequence[str], env: dict[str, str] | None = None) -> Finished:
        """Run a program to its end in the router's namespace."""
        process = self.lab.router.spawn(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, err = process.communicate(timeout=COMMAND_S)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(argv, process.returncode, out.decode(), err.decode())

    def cli(self, *args: str) -> Finished:
        """Run ``xdp-router ARGS`` to its end."""
        argv = [sys.executable, "-m", "xdp_router.cli.main"]
        argv += ["--control", str(self.control), "--pins", str(self.pins), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_S)

    def json(self, *args: str) -> Any:
        """What ``xdp-router ARGS --json`` prints, without the start of a process, which takes
        seconds on a busy machine; fails if the command does."""
        where = ["--control", str(self.control), "--pins", str(self.pins)]
        done = CliRunner().invoke(main, [*where, *args, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def ask(self, command: str, **args: object) -> Any:
        """Ask the control socket. Raises ControlError."""
        with ControlClient(self.control, timeout_s=CONTROL_S) as client:
            return client.call(command, **args)

    # What the kernel has

    def flow(self, peer: tuple[str, int]) -> dict[str, Any] | None:
        """The row of ``flows --json`` for one client's flow."""
        rows: list[dict[str, Any]] = self.json("flows", "--client", f"{peer[0]}:{peer[1]}")
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    def counters(self) -> dict[str, int]:
        """The data plane's counters, without the start of a process."""
        return self.maps_read(lambda maps: maps.counters.read())

    def maps_read(self, use: Callable[[Maps], T]) -> T:
        """What ``use`` finds in the pinned maps."""
        (instance,) = find_instances(self.pins)
        plane = DataPlane.open(instance.path)
        try:
            return use(Maps(plane.maps))
        finally:
            plane.close()

    @contextlib.contextmanager
    def counted(self) -> Iterator[Callable[[str], int]]:
        """Hands out a function: how far a counter has come since here."""
        before = self.counters()
        yield lambda name: self.counters()[name] - before[name]

    def links(self) -> dict[str, LinkInfo]:
        """The router's interfaces as the kernel sees them now."""
        return self.lab.router.run(
            lambda: {name: link_info(name) for name in self.lab.router_interfaces}
        )

    def left_behind(self) -> list[str]:
        """Pins, programs and files that a router which is gone should not have left."""
        left = [str(path) for path in self.pins.rglob("*") if not path.is_dir()]
        left += [f"program on {link.name}" for link in self.links().values() if link.xdp_prog_id]
        return left + ([str(self.control)] if self.control.exists() else [])


@contextlib.contextmanager
def own_bpffs(parent: Path) -> Iterator[Path]:
    """A BPF file system of one's own; whatever is pinned there goes with it."""
    directory = Path(tempfile.mkdtemp(prefix="bpf-", dir=parent))
    libc.mount("bpf", str(directory), "bpf")
    try:
        yield directory
    finally:
        libc.umount(str(directory))
        assert not mounts_under(directory)
        directory.rmdir()


@contextlib.contextmanager
def router_in(lab: Lab, private_mounts: Path) -> Iterator[Router]:
    """A router for a lab that is up, not started yet; gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="router-", dir=private_mounts))
    with own_bpffs(private_mounts) as bpffs:
        router = Router(lab, directory, bpffs)
        try:
            yield router
        finally:
            router.close()


@contextlib.contextmanager
def routed_lab(
    private_mounts: Path, spec: LabSpec, config: str | None = None, *options: str
) -> Iterator[Router]:
    """A lab with its router attached; ``config`` None: ``calm_config``, options for ``attach``."""
    with running_lab(spec) as lab, router_in(lab, private_mounts) as router:
        yield router.start(config, *options)


def wait_until_idle(router: Router, timeout: float = 5.0) -> None:
    """Return when the daemon has decided everything that it was asked."""
    wait_for(lambda: router.ask("status")["open_decisions"] == 0, timeout, "no decision is open")


def heartbeat_stale() -> None:
    """Return when XDP must have noticed that a daemon with a limit of 300 ms is gone."""
    time.sleep(0.4)


def drop_privileges_argv(module: str, args: Sequence[str]) -> list[str]:
    """A command that runs a module's ``main`` as nobody, imported before by root."""
    code = (
        "import importlib, os, sys\n"
        f"main = importlib.import_module({module!r}).main\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"sys.exit(main({list(args)!r}))\n"
    )
    return [sys.executable, "-c", code]
