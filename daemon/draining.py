# SPDX-License-Identifier: Apache-2.0
"""``drain`` and ``undrain``: a backend gets no new flows, and those it has go on to their end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from xdp_router.adapters.bpf_maps import FlowTables
from xdp_router.adapters.control import CommandError, Handler
from xdp_router.core import abi
from xdp_router.core.events import BackendDrain
from xdp_router.core.model import Backend

from .aging import BATCH, in_batches

if TYPE_CHECKING:
    from .app import Router

_SHOWN = 10
_log = structlog.get_logger()


async def count_flows(tables: Iterable[FlowTables], backend: int) -> int:
    """How many flows a backend has: established ones, and those whose handshake is under way.

    One that has ended counts until its entries are gone, after its linger. Raises BpfError.
    """
    total = 0
    for each in tables:
        async for batch in in_batches(each.flows.batches(BATCH)):
            total += abi.count_flows_of(batch.values, backend, each.family)
        for table in each.both:
            async for batch in in_batches(table.batches(BATCH)):
                found = abi.pending_of_backend(batch.values, backend, each.family)
                size = len(batch.keys) // (batch.count or 1)
                for index in found:
                    key = batch.keys[index * size : (index + 1) * size]
                    if abi.key_kind(key) is not abi.Kind.FORWARD:
                        continue
                    # That of an established flow is out of use, and stays for a while.
                    total += each.flows.read(abi.without_kind(key)) is None
    return total


class Draining:
    """The commands, of one router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def handlers(self) -> dict[str, Handler]:
        """For the control socket, by command: those that change something."""
        return {"drain": self.drain, "undrain": self.undrain}

    def drain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """``backend`` gets no new flows from now on."""
        return self._set(args, draining=True)

    def undrain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """``backend`` gets new flows again."""
        return self._set(args, draining=False)

    async def flows(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """How many flows ``backend`` has, and whether it drains."""
        backend = self._find(args)
        tables = self._router.state.maps.by_family.values()
        return {
            "backend": backend.name,
            "draining": self._router.engine.backends.is_draining(backend.id),
            "flows": await count_flows(tables, backend.id),
        }

    def _find(self, args: Mapping[str, Any]) -> Backend:
        name = args.get("backend")
        known = [each for service in self._router.config.services for each in service.backends]
        for each in known:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in known[:_SHOWN])
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        raise CommandError(f"no backend is called {name!r}; there are {names}{more}")

    def _set(self, args: Mapping[str, Any], *, draining: bool) -> dict[str, Any]:
        backend = self._find(args)
        engine = self._router.engine
        before = engine.backends.is_draining(backend.id)
        self._router.loop.handle(BackendDrain(backend.id, draining))
        (service,) = (each for each in self._router.config.services if each.id == backend.service)
        nobody = not any(each.id in engine.up for each in service.backends)
        warning = ""
        if draining and nobody:
            warning = (
                f"no other backend of service {service.name} can take its new flows: "
                "they are refused"
            )
        if before is not draining:
            event = "backend_draining" if draining else "backend_undrained"
            _log.info(event, backend=backend.name, service=service.name)
        return {
            "backend": backend.name,
            "service": service.name,
            "draining": draining,
            "changed": before is not draining,
            "warning": warning,
        }
