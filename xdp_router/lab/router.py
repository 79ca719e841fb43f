# SPDX-License-Identifier: Apache-2.0
"""The router in a lab: the daemon and the command line as an operator runs them, as processes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .errors import LabError
from .lab import DEFAULT_PREFIX, Lab
from .persist import DEFAULT_DIRECTORY, down, up
from .readable import is_readable
from .spec import LabSpec

LOG_LINES = 10
_READY_S = 30.0
_POLL_S = 0.2
_STOP_S = 10.0
_COMMAND_S = 30.0


class LabRouter:
    """The daemon in a lab's router namespace, and the commands that ask it.

    ``pins`` must lie on a BPF file system. When it is made, packets are handled. Raises LabError,
    with the end of the daemon's log, when the daemon does not come up or has ended.
    """

    def __init__(self, lab: Lab, config: str, pins: Path) -> None:
        self.lab = lab
        self.log = lab.directory / "router.log"
        self.control = lab.directory / "control.sock"
        self.pins = pins
        file = lab.directory / "router.toml"
        file.write_text(config, encoding="utf-8")
        self._environment = {
            "XDP_ROUTER_CONTROL": str(self.control),
            "XDP_ROUTER_PINS": str(pins),
        }
        argv = [sys.executable, "-m", "xdp_router.daemon.main", "attach", *lab.router_interfaces]
        argv += ["--config", str(file)]
        notify = lab.directory / "notify.sock"
        with contextlib.ExitStack() as undo:
            ready = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            ready.bind(str(notify))
            undo.callback(notify.unlink)
            output = undo.enter_context(self.log.open("wb"))
            self._process = lab.router.spawn(
                argv,
                name="router",
                env={**self._environment, "NOTIFY_SOCKET": str(notify)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            self._wait_ready(ready)

    def _wait_ready(self, ready: socket.socket) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            self.check()
            if is_readable(ready, _POLL_S) and b"READY=1" in ready.recv(4096):
                return
        raise LabError(f"the router was not ready within {_READY_S:.0f} s\n{self._tail()}")

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise LabError, with the end of the log, if the daemon has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            raise LabError(f"the router has ended ({how})\n{self._tail()}")

    def _tail(self) -> str:
        text = ""
        with contextlib.suppress(OSError):
            text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()[-LOG_LINES:]
        return "\n".join(["The end of its log:", *(lines or ["(empty)"])])

    def ask(self, *command: str) -> Any:
        """What ``xdp-router COMMAND --json`` prints. Raises LabError if it fails."""
        return json.loads(self._run((*command, "--json"), subprocess.PIPE))

    def show(self, *command: str) -> None:
        """Let ``xdp-router COMMAND`` print to our own output. Raises LabError if it fails."""
        sys.stdout.flush()
        self._run(command, None)

    def _run(self, command: tuple[str, ...], output: int | None) -> bytes:
        self.check()
        # As a process of the lab, it ends with the lab at the latest.
        process = self.lab.router.spawn(
            [sys.executable, "-m", "xdp_router.cli.main", *command],
            name="command",
            env=self._environment,
            stdout=output,
            stderr=subprocess.PIPE,
        )
        try:
            out, complaint = process.communicate(timeout=_COMMAND_S)
        except subprocess.TimeoutExpired as error:
            raise LabError(
                f"xdp-router {' '.join(command)} gave no answer within {_COMMAND_S:.0f} s\n"
                f"{self._tail()}"
            ) from error
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            self.check()  # the daemon's end explains more than the command's complaint
            raise LabError(f"xdp-router {' '.join(command)}: {complaint.decode().strip()}")
        return out

    def stop(self) -> None:
        """SIGTERM, and wait: the daemon detaches by itself. Raises LabError if it does not."""
        self.check()
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise LabError(
                f"the router did not end within {_STOP_S:.0f} s\n{self._tail()}"
            ) from None
        if code != 0:
            raise LabError(f"the router ended with exit code {code}\n{self._tail()}")


def up_with_router(
    spec: LabSpec,
    *,
    directory: Path = DEFAULT_DIRECTORY,
    prefix: str = DEFAULT_PREFIX,
    config: str | None = None,
) -> LabRouter:
    """A lab that stays (see ``up``) with a router that stays; let go of it by ``lab.close()``.

    ``config``: what the router is to do; None: TCP over IPv4, by the lab's method. Raises LabError
    and OSError; nothing is left of a failed attempt.
    """
    lab = up(spec, directory=directory, prefix=prefix)
    try:
        return LabRouter(lab, config or lab.config_toml(), lab.directory / "bpf" / "xdp-router")
    except BaseException:
        lab.close()
        down(directory=directory, prefix=prefix)
        raise
