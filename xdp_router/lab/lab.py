# SPDX-License-Identifier: Apache-2.0
"""Build and operate one lab; ``wiring`` has its plan."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from . import delay_control, links
from .errors import LabError
from .namespace import Namespace, SpawnPolicy
from .processes import MARK, Process, end_children, kill
from .readable import is_readable
from .spec import BackendSpec, Family, LabAddresses, LabSpec
from .stall import Stall
from .state import LabState
from .wiring import Wiring

DEFAULT_PREFIX = "xr-lab"

_READY_S = 20.0
_LOG_TAIL = 2000

BackendRef = int | str
"""A backend by its place in the spec (from 0) or by its name."""


class Lab:
    """A running lab; a context manager that builds it and takes it away.

    Without ``state`` everything ends with this process, however it ends. With it (see
    ``persist``) namespaces are named, and processes stay.
    Raises LabError for what the user can mend and OSError where the kernel refuses (needs root).
    """

    client: Namespace
    router: Namespace
    backends: tuple[Namespace, ...]
    delays: tuple[Namespace | None, ...]
    segment: Namespace | None
    wiring: Wiring

    def __init__(
        self,
        spec: LabSpec,
        *,
        prefix: str = DEFAULT_PREFIX,
        directory: Path | None = None,
        state: LabState | None = None,
    ) -> None:
        self.spec = spec
        self.prefix = prefix
        self.state = state
        self._own_directory = directory is None and state is None
        given = state.directory if state else directory
        self.directory = (given or Path(tempfile.mkdtemp(prefix=f"{prefix}-"))).resolve()
        self._children: list[subprocess.Popen[bytes]] = []
        self._recording = threading.Lock()
        self._servers: dict[str, Process] = {}
        self._policy = SpawnPolicy(
            kept=self.directory if state else None,
            env={MARK: str(self.directory), "PYTHONPATH": _python_path()},
            record=self._record,
        )
        self._namespaces: list[Namespace] = []

    def __enter__(self) -> Lab:
        try:
            self.build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def addresses(self) -> LabAddresses:
        """The IPv4 addresses of everything in the lab."""
        return self.spec.addresses

    def addresses_of(self, family: Family) -> LabAddresses:
        """The addresses of everything in the lab, of one family."""
        return self.spec.addresses_of(family)

    @property
    def environment(self) -> dict[str, str]:
        """What the lab's processes have in their environment beyond the caller's."""
        return dict(self._policy.env)

    @property
    def router_interfaces(self) -> tuple[str, ...]:
        """The router's interfaces: ``client0``, ``be1``, ``be2``, ...; of a segment ``lan0``."""
        return self.wiring.router_interfaces

    def config_toml(
        self,
        *,
        mode: str = "race",
        forwarding: str | None = None,
        deadline: str = "50ms",
        fallback: str | None = None,
        family: Family = 4,
        protocol: str = "tcp",
    ) -> str:
        """The router.toml for this lab: see ``LabSpec.config_toml``."""
        return self.spec.config_toml(
            mode=mode,
            forwarding=forwarding,
            deadline=deadline,
            fallback=fallback,
            family=family,
            protocol=protocol,
        )

    # Building

    def build(self) -> None:
        """Make namespaces and wires and start the servers; ready when it returns."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._make_namespaces(create=True)
        self.wiring.lay()
        ready = [self._start_delay_line(i) for i, ns in enumerate(self.delays) if ns]
        ready += [self._spawn_backend(i) for i in range(len(self.backends))]
        for wait in ready:
            wait.wait()

    def adopt(self) -> None:
        """Use the namespaces and processes of a kept lab. Raises LabError if some are gone."""
        self._make_namespaces(create=False)
        if self.state is not None:
            self._servers = {entry.name: entry for entry in self.state.processes}

    def close(self) -> None:
        """Let go; a lab that is not kept ends with all its processes. Can be called again."""
        if self.state is None:
            end_children(self._children)
            self._children.clear()
        for namespace in self._namespaces:
            namespace.close()
        self._namespaces.clear()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _make_namespaces(self, *, create: bool) -> None:
        def make(part: str) -> Namespace:
            name = f"{self.prefix}-{part}"
            path = self.state.netns_dir / name if self.state else None
            if create or path is None:
                namespace = Namespace.create(name, path, self._policy)
            else:
                namespace = Namespace.open(name, path, self._policy)
            self._namespaces.append(namespace)
            return namespace

        self.client = make("client")
        self.router = make("router")
        specs = list(enumerate(self.spec.backends, 1))
        self.backends = tuple(make(f"be{i}") for i, _ in specs)
        self.delays = tuple(make(f"delay{i}") if s.has_delay_line else None for i, s in specs)
        self.segment = make("segment") if self.spec.topology == "segment" else None
        self.wiring = Wiring(
            self.spec, self.client, self.router, self.backends, self.delays, self.segment
        )

    # Processes

    def _record(self, name: str, process: subprocess.Popen[bytes]) -> None:
        with self._recording:  # servers and router may be started side by side
            if self.state is not None:
                self.state.add_process(name, process.pid)
            self._children = [child for child in self._children if child.poll() is None]
            self._children.append(process)

    def _spawn_ready(
        self, namespace: Namespace, name: str, module: str, arguments: Sequence[str]
    ) -> _Ready:
        ours, theirs = os.pipe()
        log = self.directory / f"{name}.log"
        try:
            with log.open("wb") as output:
                process = namespace.spawn(
                    [sys.executable, "-m", module, *arguments, "--ready-fd", str(theirs)],
                    name=name,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs,),
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._servers[name] = Process.of(name, process.pid)
        return _Ready(name, ours, log)

    def _start_delay_line(self, index: int) -> _Ready:
        spec = self.spec.backends[index]
        namespace = self.delays[index]
        assert namespace is not None
        arguments = ["--a", "a", "--b", "b", "--delay-ns", str(spec.delay_ns)]
        arguments += ["--control", str(self._control_path(spec))]
        if spec.vlan is not None:
            arguments.append("--tags")
        if spec.stall is not None:
            arguments += ["--stall", json.dumps(dataclasses.asdict(spec.stall))]
        name = f"delay-{spec.name}"
        return self._spawn_ready(namespace, name, "xdp_router.lab.delay_line", arguments)

    def _spawn_backend(self, index: int) -> _Ready:
        spec = self.spec.backends[index]
        arguments = ["--name", spec.name, "--kind", spec.kind, "--port", str(spec.port)]
        name = f"backend-{spec.name}"
        return self._spawn_ready(self.backends[index], name, "xdp_router.lab.backend", arguments)

    def _control_path(self, spec: BackendSpec) -> Path:
        return self.directory / f"delay-{spec.name}.sock"

    def _index(self, backend: BackendRef) -> int:
        names = [spec.name for spec in self.spec.backends]
        if isinstance(backend, str):
            if backend not in names:
                raise LabError(f"no backend {backend!r} in this lab: it has {', '.join(names)}")
            return names.index(backend)
        if not 0 <= backend < len(names):
            raise LabError(f"no backend {backend} in this lab: it has 0 to {len(names) - 1}")
        return backend

    def _server(self, index: int) -> Process | None:
        process = self._servers.get(f"backend-{self.spec.backends[index].name}")
        return process if process is not None and process.alive else None

    # What can happen to a backend

    def backend_pid(self, backend: BackendRef) -> int | None:
        """The process id of the backend's server, or None while it does not run."""
        process = self._server(self._index(backend))
        return process.pid if process else None

    def start_backend(self, backend: BackendRef) -> None:
        """Start the server again after ``kill_backend``. Raises LabError if it runs."""
        index = self._index(backend)
        if self._server(index):
            raise LabError(f"backend {self.spec.backends[index].name} runs already")
        self._spawn_backend(index).wait()

    def kill_backend(self, backend: BackendRef) -> None:
        """SIGKILL the server: its port is closed and its kernel answers with RST."""
        self._signal(backend, signal.SIGKILL)

    def pause_backend(self, backend: BackendRef) -> None:
        """SIGSTOP the server: a hung application, whose kernel still accepts connections."""
        self._signal(backend, signal.SIGSTOP)

    def resume_backend(self, backend: BackendRef) -> None:
        """Undo ``pause_backend``."""
        self._signal(backend, signal.SIGCONT)

    def _signal(self, backend: BackendRef, number: signal.Signals) -> None:
        index = self._index(backend)
        process = self._server(index)
        if process is None:
            raise LabError(
                f"backend {self.spec.backends[index].name} does not run: start_backend() first"
            )
        if number != signal.SIGKILL:
            process.signal(number)
            return
        kill(process)
        for child in self._children:
            child.poll()

    def down_backend(self, backend: BackendRef) -> None:
        """Take the backend's own link down. A directly wired router interface loses its carrier."""
        links.set_up(self.backends[self._index(backend)], "eth0", False)

    def up_backend(self, backend: BackendRef) -> None:
        """Undo ``down_backend``."""
        index = self._index(backend)
        links.set_up(self.backends[index], "eth0", True)
        self.wiring.route_backend(index)

    def silence_backend(self, backend: BackendRef) -> None:
        """Let the backend lose every frame it gets: no answer of any kind; the carrier stays."""
        links.set_deaf(self.backends[self._index(backend)], "eth0", True)

    def unsilence_backend(self, backend: BackendRef) -> None:
        """Undo ``silence_backend``."""
        index = self._index(backend)
        links.set_deaf(self.backends[index], "eth0", False)
        self.wiring.start_decapsulation(index)

    # Delay lines

    def set_delay(self, backend: BackendRef, seconds: float) -> None:
        """Set the delay of the round trip; frames already on the line keep theirs.

        Raises LabError for a backend that is wired directly.
        """
        if seconds < 0:
            raise LabError(f"a delay of {seconds} s: it must not be negative")
        delay_control.control(self._line(backend), delay_ns=round(seconds * 1e9))

    def set_stall(
        self, backend: BackendRef, stall: Stall | None, start_ns: int | None = None
    ) -> None:
        """Stall from now on, or from ``start_ns`` of the wall clock, or no longer.

        Raises LabError for one that is wired directly.
        """
        delay_control.control(self._line(backend), stall=stall, start_ns=start_ns)

    def delay_counts(self, backend: BackendRef) -> dict[str, int]:
        """What the delay line counted: frames each way, lost ones, worst lateness in ns."""
        return delay_control.control(self._line(backend))

    def _line(self, backend: BackendRef) -> Path:
        spec = self.spec.backends[self._index(backend)]
        if not spec.has_delay_line:
            raise LabError(
                f"backend {spec.name} is wired directly: build the lab with "
                f"BackendSpec({spec.name!r}, delay_line=True) to change its delay"
            )
        return self._control_path(spec)


class _Ready:
    """Waits for a starting process to say that it serves."""

    def __init__(self, name: str, fd: int, log: Path) -> None:
        self._name = name
        self._fd = fd
        self._log = log

    def wait(self) -> None:
        """Return when the process is ready. Raises LabError, with its output, if it fails."""
        try:
            readable = is_readable(self._fd, _READY_S)
            if readable and os.read(self._fd, 1):
                return
            how = "ended at once" if readable else f"was not ready within {_READY_S:.0f} s"
        finally:
            os.close(self._fd)
        output = ""
        with contextlib.suppress(OSError):
            output = self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
        raise LabError(f"{self._name} {how}: {output.strip() or 'it said nothing'}")


def _python_path() -> str:
    # The servers must find this very package, also in a checkout that is not installed.
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
