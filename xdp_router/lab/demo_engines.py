# SPDX-License-Identifier: Apache-2.0
"""The scene of the gateway's demo: mock engines and the gateway, as processes of one namespace."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from .errors import LabError
from .namespace import Namespace, SpawnPolicy
from .processes import MARK, end_children

GATEWAY = ("127.0.0.1", 8080)
ENGINES = {
    "quick": (8001, ("--ttft-ms=30", "--stall-every-ms=400", "--stall-for-ms=500", "--seed=4")),
    "steady": (8002, ("--ttft-ms=60",)),
    "slow": (8003, ("--ttft-ms=250",)),
}
"""By name: port and options of ``xdp_router.lab.engine``."""

CONFIG = """\
[gateway]
metrics = "127.0.0.1:9851"

[[listener]]
name = "chat"
type = "llm"
address = "127.0.0.1:8080"

[listener.race]
hedge = "100ms"                  # then a second engine is asked; without it by recent first tokens

[[listener.backend]]
name = "quick"
address = "127.0.0.1:8001"

[[listener.backend]]
name = "steady"
address = "127.0.0.1:8002"

[[listener.backend]]
name = "slow"
address = "127.0.0.1:8003"

[[listener.route]]
name = "canary"                  # the first route that fits is taken
headers = { X-Canary = "yes" }
backends = ["slow"]

[[listener.route]]
name = "everybody"
backends = ["quick", "steady", "slow"]
"""
"""docs/gateway.md shows it."""

_READY_S = 30.0
_POLL_S = 0.02
_COMMAND_S = 30.0
_STOP_S = 10.0
_LOG_LINES = 10


class EnginesLab:
    """Built when it is made; ``close`` takes it away. Raises LabError, OSError."""

    def __init__(self, name: str, directory: Path) -> None:
        self.directory = directory
        self.control = directory / "gateway.sock"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        policy = SpawnPolicy(env={MARK: str(directory)})
        self.namespace = Namespace.create(name, policy=policy)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.namespace.run(_loopback_up)
            config = directory / "gateway.toml"
            config.write_text(CONFIG, encoding="utf-8")
            for engine, (port, options) in ENGINES.items():
                self._start(
                    engine, "lab.engine", "127.0.0.1", str(port), f"--name={engine}", *options
                )
            self._start(
                "gateway",
                "daemon.main",
                "gateway",
                f"--config={config}",
                f"--control={self.control}",
            )  # fmt: skip - argument by argument would say less
            for engine, (port, _) in ENGINES.items():
                self._wait(engine, ("127.0.0.1", port))
            self._wait("gateway", GATEWAY)
            undo.pop_all()

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with self._log(name).open("wb") as log:
            self._processes[name] = self.namespace.spawn(
                [sys.executable, "-m", f"xdp_router.{module}", *arguments],
                name=name,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _wait(self, name: str, address: tuple[str, int]) -> None:
        """Until it accepts: workers do when all is ready."""
        until_s = time.monotonic() + _READY_S
        while True:
            self.check(name)
            with contextlib.suppress(OSError):
                self.namespace.connect(address).close()
                return
            if time.monotonic() > until_s:
                raise LabError(f"{name} was not ready within {_READY_S:.0f} s\n{self._tail(name)}")
            time.sleep(_POLL_S)

    def check(self, name: str = "gateway") -> None:
        """Raise LabError, with the end of its log, if a process has ended."""
        code = self._processes[name].poll()
        if code is not None:
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            raise LabError(f"{name} has ended ({how})\n{self._tail(name)}")

    def _tail(self, name: str) -> str:
        text = self._log(name).read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()[-_LOG_LINES:]
        return "\n".join(["The end of its log:", *(lines or ["(empty)"])])

    def kill(self, engine: str) -> None:
        """SIGKILL an engine."""
        self._processes[engine].kill()
        self._processes[engine].wait()

    def ask(self, *command: str) -> Any:
        """What ``xdp-router gateway COMMAND`` knows, as JSON. Raises LabError if it fails."""
        return json.loads(self._run((*command, "--json"), subprocess.PIPE))

    def show(self, *command: str) -> None:
        """Let it print to our own output. Raises LabError if it fails."""
        sys.stdout.flush()
        self._run(command, None)

    def _run(self, command: tuple[str, ...], output: int | None) -> bytes:
        self.check()
        argv = [sys.executable, "-m", "xdp_router.cli.main", "gateway", "--control"]
        process = self.namespace.spawn(
            [*argv, str(self.control), *command], stdout=output, stderr=subprocess.PIPE
        )
        try:
            out, complaint = process.communicate(timeout=_COMMAND_S)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"'xdp-router gateway {' '.join(command)}' gave no answer") from error
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            self.check()
            raise LabError(f"xdp-router gateway {' '.join(command)}: {complaint.decode().strip()}")
        return out

    def stop(self) -> None:
        """SIGTERM to the gateway, and wait. Raises LabError if it does not end well."""
        self.check()
        process = self._processes["gateway"]
        process.terminate()
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise LabError(
                f"the gateway did not end within {_STOP_S:.0f} s\n{self._tail('gateway')}"
            ) from None
        if code:
            raise LabError(f"the gateway ended with exit code {code}\n{self._tail('gateway')}")

    def close(self) -> None:
        """End what runs. Calling it again does nothing."""
        end_children(self._processes.values())
        self.namespace.close()


def _loopback_up() -> None:
    """In the calling thread's namespace."""
    with IPRoute() as netlink:
        netlink.link("set", index=socket.if_nametoindex("lo"), state="up")
