# SPDX-License-Identifier: Apache-2.0
"""Notices that the data plane is no longer this daemon's.

A daemon that was stopped for a while (SIGSTOP, a suspended machine) is taken for gone: somebody
may have detached it, and another one may be at work since.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.xdp_link import XdpLink
from xdp_router.core.errors import XdpRouterError

LOOK_EVERY_S = 0.5
SETTLE_S = 0.1


class NotOurs(XdpRouterError):
    """Somebody else has taken the data plane away."""


class Ownership:
    """Looks at pins and attachments, and calls ``on_lost`` with the first that is not ours."""

    def __init__(
        self, plane: DataPlane, links: Sequence[XdpLink], on_lost: Callable[[NotOurs], None]
    ) -> None:
        self._plane = plane
        self._links = links
        self._on_lost = on_lost

    async def run(self) -> None:
        """Look until something is lost, or cancelled."""
        while True:
            lost = self.look()
            if lost is not None:
                # An interface may have been made anew under the same number just now, and
                # netlink has told nobody yet.
                await asyncio.sleep(SETTLE_S)
                lost = self.look()
            if lost is not None:
                self._on_lost(lost)
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> NotOurs | None:
        """What is no longer ours, if anything. Raises BpfError."""
        if not self._plane.owns_pins():
            return NotOurs(
                f"the pins in {self._plane.pin_dir} are gone or another daemon's: this one was "
                "detached, or its data plane taken over, as if it were gone"
            )
        for link in self._links:
            if not bpf.link_info(link.fd).ifindex and _exists(link.ifindex):
                return NotOurs(
                    f"{link.interface}: somebody has detached this router's program (xdp-routerd "
                    "detach, or attach --replace)"
                )
        return None


def _exists(ifindex: int) -> bool:
    try:
        socket.if_indextoname(ifindex)
    except OSError:
        return False  # the link went with its interface, which is another matter
    return True
