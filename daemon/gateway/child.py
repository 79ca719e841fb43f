# SPDX-License-Identifier: Apache-2.0
"""The gateway as a child of the router's daemon (``attach --gateway``): started with it, started
again when it ends, told when the configuration is read again, and ended with it.

It is a process of its own: its work must not hold up first packets. If the daemon is killed the
gateway goes on; the next daemon's gateway takes its sockets over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from xdp_router.adapters.control import ControlError
from xdp_router.adapters.control_client import ControlClient
from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon.attach_options import AttachOptions

from . import spawning
from .upgrade import PARENT_VARIABLE

if TYPE_CHECKING:
    from xdp_router.daemon.app import Router

CONTROL_VARIABLE: Final = "XDP_ROUTER_GATEWAY_CONTROL"
LIVED_S: Final = 10.0
PAUSE_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Before it is started again, by how often it has ended early in a row."""
GRACE_S: Final = 10.0
"""How long beyond drain_timeout it may take to end, before it is killed."""

_log = structlog.get_logger()


def control_of(options: AttachOptions) -> Path:
    """The gateway's control socket: beside the daemon's, unless the environment names another."""
    named = os.environ.get(CONTROL_VARIABLE)
    return Path(named) if named else options.control.with_name("gateway.sock")


def begin_gateway(router: Router, undo: contextlib.AsyncExitStack) -> None:
    """Run it as long as the router runs, if it is wanted; say so if its listeners are nobody's."""
    options, config = router.options, router.config.gateway
    if not options.gateway:
        if config.listeners:
            _log.warning(
                "listeners_not_served",
                listeners=[each.name for each in config.listeners],
                mend="attach with --gateway, or run 'xdp-routerd gateway --config FILE'",
            )
        return
    assert options.source is not None  # or the command line was refused
    child = router.gateway = GatewayChild(
        options.source.path, control_of(options), options.control_group, options.log_format
    )
    undo.push_async_callback(child.stop)
    child.follow(config)


def hurry_gateway(router: Router) -> None:
    """A further signal has come that is to stop the router."""
    if router.gateway is not None:
        router.gateway.hurry()


class GatewayChild:
    """There is a process as long as there are listeners."""

    def __init__(
        self, config: Path, control: Path, group: int | None = None, log_format: str = "console"
    ) -> None:
        self._argv = [
            *spawning.python("xdp_router.daemon"),
            *("gateway", "--config", str(config), "--control", str(control)),
            *("--log-format", log_format),
            *(("--control-group", str(group)) if group is not None else ()),
        ]
        self._control = control
        self._drain_s = 0.0
        self._wanted = False
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._hurry: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none just now."""
        return self._process.pid if self._process is not None else None

    def follow(self, config: GatewayConfig) -> None:
        """The file was read, for good, and says this of the gateway."""
        self._drain_s = config.drain_timeout_ns / 1e9
        if not config.listeners:
            self._wanted = False
            if self._process is not None:
                self._process.send_signal(signal.SIGTERM)
            return
        self._wanted = True
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="gateway")

    async def stop(self) -> None:
        """Have it finish its streams, in their time, and end."""
        self._wanted = False
        keeper = self._keeper
        if keeper is None:
            return
        if self._process is not None:
            await self._drain(self._process)
        else:
            keeper.cancel()  # it waits to start it again
        try:
            async with asyncio.timeout(self._drain_s + GRACE_S):
                await asyncio.wait({keeper})
        except TimeoutError:
            if self._process is not None:
                _log.warning("gateway_killed", pid=self._process.pid, reason="it did not end")
                self._process.kill()
            await asyncio.wait({keeper})

    def hurry(self) -> None:
        """It is asked to end, and streams are not to be waited for any more."""
        if self._process is not None and not self._wanted and self._hurry is None:
            self._hurry = asyncio.create_task(self._drain(self._process, now=True))

    async def _drain(self, process: subprocess.Popen[bytes], *, now: bool = False) -> None:
        # Not by a signal, if possible: systemd and terminals have sent one to it as well, and a
        # second one means that streams are not waited for.
        try:
            await asyncio.to_thread(self._ask_to_drain, now)
        except ControlError:
            process.send_signal(signal.SIGTERM)

    def _ask_to_drain(self, now: bool) -> None:
        with ControlClient(self._control, in_all=True) as client:
            if client.call("status")["pid"] != self.pid:
                raise ControlError("it is another gateway's")
            client.call("drain", now=now)

    def _is_wanted(self) -> bool:  # a call: it changes while others have their turn
        return self._wanted

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            env={**spawning.environment(), PARENT_VARIABLE: str(os.getpid())},
            process_group=0,  # a Ctrl-C is the daemon's to pass on
        )
        return self._process

    async def _keep(self) -> None:
        failures = 0
        while self._wanted:
            begun_s = time.monotonic()
            process = self._spawn()
            _log.info("gateway_started", pid=process.pid, control=str(self._control))
            try:
                status = await asyncio.shield(spawning.watch_exit(process))
            finally:
                self._process = None
            if not self._is_wanted():
                _log.info("gateway_ended", pid=process.pid)
                return
            failures = 0 if time.monotonic() - begun_s > LIVED_S else failures + 1
            pause_s = PAUSE_S[min(failures, len(PAUSE_S) - 1)]
            _log.error(
                "gateway_died", pid=process.pid, status=status, consequence="it is started again"
            )
            await asyncio.sleep(pause_s)
