# SPDX-License-Identifier: Apache-2.0
"""What the control socket answers about events, and to a shell that completes names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from xdp_router.adapters.control import CommandError
from xdp_router.core.address import format_client, format_endpoint
from xdp_router.core.event_names import reject_unknown
from xdp_router.core.model import Endpoint

from .event_feed import KEPT

if TYPE_CHECKING:
    from .app import Router

NAMES_MAX = 200
"""More nobody wants to see below a prompt."""
_LOOKED_AT = 20_000
"""Names that are compared at most: about 2 ms."""


class EventViews:
    """Reads a router; changes nothing."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def events(
        self, args: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]] | AsyncIterator[list[dict[str, Any]]]:
        """The newest ``limit`` that are kept, or with ``follow`` those from now on; ``names``: of
        these alone."""
        names = args.get("names") or []
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise CommandError("names: expected a list of names of events")
        try:
            reject_unknown(names)
        except ValueError as error:
            raise CommandError(str(error)) from error
        if args.get("follow"):
            return self._router.feed.follow(frozenset(names))
        limit = args.get("limit", KEPT)
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 2 * KEPT:
            raise CommandError(f"limit: expected a whole number from 1 to {2 * KEPT}")
        return self._router.feed.newest(limit, frozenset(names))


class NameViews:
    """Names that begin as what was typed so far."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def names(self, args: Mapping[str, Any]) -> list[str]:
        """``kind``: service, backend (with ``service``: of that one), or client or address (of the
        newest decisions); ``prefix``."""
        kind, prefix = args.get("kind"), args.get("prefix", "")
        found: Iterable[str]
        if kind == "service":
            found = (service.name for service in self._router.config.services)
        elif kind == "backend":
            found = (
                backend.name
                for service in self._router.config.services
                if args.get("service") in (None, service.name)
                for backend in service.backends
            )
        elif kind in ("client", "address"):
            clients = (
                Endpoint(each.key.client_addr, each.key.client_port, each.key.proto)
                for each in self._router.engine.decisions
            )
            found = map(format_client if kind == "client" else format_endpoint, clients)
        else:
            raise CommandError("kind: expected service, backend, client or address")
        begun = (each for each in islice(found, _LOOKED_AT) if each.startswith(str(prefix)))
        return list(islice(dict.fromkeys(islice(begun, NAMES_MAX)), NAMES_MAX))
