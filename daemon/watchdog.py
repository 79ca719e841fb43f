# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that the event loop turns, and in a line what it does (sd_watchdog_enabled(3)).

Sent from the loop itself, so that a loop that hangs is not hidden by a thread that does not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from .notify import notify

STATUS_EVERY_S = 5.0
_US_PER_S = 1e6


def watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    """How often a sign of life is due: half of what systemd waits. None: it does not watch."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None  # meant for our parent
    text = environment.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) / _US_PER_S / 2


class Watchdog:
    """Sends ``WATCHDOG=1`` in time and ``STATUS=`` when ``status()`` says something new."""

    def __init__(self, status: Callable[[], str]) -> None:
        self._status = status
        self._interval_s = watchdog_interval_s(os.environ, os.getpid())

    async def run(self) -> None:
        """Send until cancelled; ends at once without a supervisor."""
        if not os.environ.get("NOTIFY_SOCKET"):
            return
        loop = asyncio.get_running_loop()
        pause_s = min(self._interval_s or STATUS_EVERY_S, STATUS_EVERY_S)
        said, say_at_s = "", 0.0
        while True:
            lines = ["WATCHDOG=1"] if self._interval_s else []
            if loop.time() >= say_at_s:
                say_at_s = loop.time() + STATUS_EVERY_S
                status = self._status()
                if status != said:
                    said = status
                    lines.append(f"STATUS={status}")
            if lines:
                notify("\n".join(lines))
            await asyncio.sleep(pause_s)
