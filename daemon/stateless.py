# SPDX-License-Identifier: Apache-2.0
"""Services that forward without an entry while they are over budget: may they, and do they?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog

from xdp_router.adapters import sysctl
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.kernel_forwarding import mend
from xdp_router.core import abi
from xdp_router.core.address import family_of
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Service

_NS_PER_S = 1e9
LOOK_S = 2.0
_log = structlog.get_logger()


class ForwardingKeeper:
    """Looks whether the kernel forwards, and says so to whoever writes the maps, and in the log.

    Only where it forwards what comes in does it tell XDP the way to a client that no entry knows.
    """

    def __init__(
        self,
        config: RouterConfig,
        interfaces: Callable[[], Iterable[str]],
        tell: Callable[[Collection[int]], Iterable[None]],
    ) -> None:
        """``interfaces``: names of those that are attached at the moment; ``tell``: what is to
        know, at each look, of which families nothing is in the way, in pieces."""
        self._wanting: dict[int, list[str]] = {}
        self.change(config)
        self._interfaces = interfaces
        self._tell = tell
        self.off: dict[int, tuple[str, ...]] = {}
        """Sysctls that are 0 and must not be, by family."""

    def change(self, config: RouterConfig) -> None:
        """Look for the services of this configuration from the next time on."""
        self._wanting = {}
        for service in config.services:
            if service.stateless:
                family = family_of(service.endpoint.addr)
                self._wanting.setdefault(family, []).append(service.name)

    def obstacle(self, family: int) -> str:
        """Why no service of a family may be stateless; empty: they may."""
        off = self.off.get(family, ())
        verb = "are" if len(off) > 1 else "is"
        return f"{', '.join(off)} {verb} 0: the kernel tells no way to a client" if off else ""

    def look(self) -> None:
        """Look now."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """The same in pieces."""
        interfaces, before = list(self._interfaces()), self.off
        self.off = {family: _off(interfaces, family) for family in self._wanting}
        yield from self._tell({4, 6} - {family for family, off in self.off.items() if off})
        for family, services in list(self._wanting.items()):
            off, was = self.off.get(family, ()), before.get(family, ())
            if off and off != was:
                _log.warning(
                    "stateless_impossible",
                    services=services,
                    reason=self.obstacle(family),
                    consequence="over budget their flows have entries, in flood_flows",
                    mend=mend((name, "1") for name in off),
                )
            elif was and not off:
                _log.info("stateless_possible", services=services)

    async def run(self) -> None:
        """Look again and again until cancelled: sysctls change without a word."""
        while True:
            await asyncio.sleep(LOOK_S)
            for _ in self.steps() if self._wanting else ():
                await asyncio.sleep(0)


class StatelessReport:
    """Tells which services wait, to be stateless, for backends that only flows have."""

    def __init__(self) -> None:
        self._waiting: Mapping[str, Sequence[str]] = {}

    def tell(self, waiting: Mapping[str, Sequence[str]]) -> None:
        """``waiting``: as KernelState has it; what has changed since last time is logged."""
        for service, backends in waiting.items():
            if service not in self._waiting:
                _log.warning(
                    "stateless_waits",
                    service=service,
                    reason=f"connections of a former configuration go to {', '.join(backends)}",
                    consequence="until they end, flows over budget have entries, in flood_flows",
                )
        for service in self._waiting:
            if service not in waiting:
                _log.info("stateless_allowed", service=service)
        self._waiting = dict(waiting)


def _off(interfaces: Iterable[str], family: int) -> tuple[str, ...]:
    names = (sysctl.of_interface(each, "forwarding", ipv6=family == 6) for each in interfaces)
    return tuple(name for name in names if not _is_on(name))


def _is_on(name: str) -> bool:
    with contextlib.suppress(sysctl.SysctlError):
        return sysctl.read(name) != "0"
    return False


def stateless_view(maps: Maps, service: Service) -> dict[str, Any]:
    """For ``services``: how it stands with a service's flows that have no entry.

    ``enabled``: whether it forwards without one. ``for_s``: for so long segments without an entry
    are hashed; 0: they are not. ``why``: the budget that was spent last. ``forwarded``: packets
    that went to backends without an entry since the daemon was started.
    """
    value = maps.services.read(service.endpoint)
    left_ns = maps.pressure.stateless_until_ns(service.id) - time.monotonic_ns()
    why = maps.pressure.why(service.id)
    return {
        "enabled": value is not None and bool(value.flags & abi.SERVICE_STATELESS),
        "for_s": round(max(0, left_ns) / _NS_PER_S, 3),
        "why": why.name if why is not None else "",
        "forwarded": sum(maps.tokens.asked(abi.TOKENS_SERVICE + service.id)),
    }
