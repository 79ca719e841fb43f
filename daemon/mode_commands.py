# SPDX-License-Identifier: Apache-2.0
"""Commands of the control socket about modes and scores: ``set_mode`` and ``push``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from xdp_router.adapters.control import CommandError
from xdp_router.core.config import RouterConfig
from xdp_router.core.config_mode import MODES
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import Backend, Service

from .pushed import read_pushed
from .reconfiguration import edit_of

if TYPE_CHECKING:
    from .app import Router

_SHOWN = 10
"""Names that a message lists."""
_Named = TypeVar("_Named", Service, Backend)


class ModeCommands:
    """Handlers. What they are told by name is looked up in the router's configuration."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._indexed: RouterConfig | None = None
        self._services: dict[str, Service] = {}
        self._backends: dict[str, Backend] = {}

    @property
    def handlers(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """By command."""
        return {"set_mode": self.set_mode, "push": self.push}

    async def set_mode(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Change the mode of ``service`` to ``mode``; its flows stay where they are.

        The same as ``service set NAME mode=MODE``.
        """
        self._index()
        service = _find(self._services, args.get("service"), "service")
        name = args.get("mode")
        mode = MODES.get(name) if isinstance(name, str) else None
        if mode is None:
            raise CommandError(f"mode {name!r}: expected one of {', '.join(MODES)}")
        before = service.mode
        edit = edit_of("service", {"verb": "set", "name": service.name, "keys": {"mode": name}})
        try:
            await self._router.reconfiguration.edit(edit)
        except XdpRouterError as error:
            raise CommandError(str(error)) from error
        return {
            "service": service.name,
            "mode": mode.name.lower(),
            "before": before.name.lower(),
        }

    def push(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Take in what is told of ``backend``: any of ``queue``, ``ttft_ms``,
        ``cache_hit``, ``cache_usage``."""
        self._index()
        backend = _find(self._backends, args.get("backend"), "backend")
        told, values = read_pushed(args, backend.name)
        roster = self._router.engine.roster
        roster.tell(backend, values, time.monotonic_ns())
        self._router.loop.obey(())  # it may want to be woken sooner now
        service = roster.services[backend.service]
        return {
            "backend": backend.name,
            "told": told,
            "holds_s": service.score_age_ns / 1e9,
            "mode": service.mode.name.lower(),
        }

    def _index(self) -> None:
        config = self._router.config
        if config is self._indexed:
            return
        self._indexed = config
        self._services = {service.name: service for service in config.services}
        self._backends = {
            backend.name: backend for service in config.services for backend in service.backends
        }


def _find(known: Mapping[str, _Named], name: object, what: str) -> _Named:
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        names = ", ".join(list(known)[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        raise CommandError(f"there is no {what} {name!r}; there are: {names}")
    return found
