# SPDX-License-Identifier: Apache-2.0
"""How ``services`` and ``status`` tell what becomes of first packets beyond a budget, and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from xdp_router.core.address import family_of
from xdp_router.core.model import Service

if TYPE_CHECKING:
    from .app import Router

_NS_PER_S = 1e9
_NAMED = 3


def flood_mode(*, stateless: bool) -> str:
    """What becomes of a service's first packets over budget: ``stateless``: they have no entry;
    else the table that their entries go to.
    """
    return "stateless" if stateless else "flood_flows"


def flood_view(router: Router, service: Service) -> dict[str, Any]:
    """For ``services``.

    ``mode``: see ``flood_mode``; ``obstacle``: why not stateless, if that is wanted. ``active``:
    whether segments without an entry are hashed now, ``since_s``: for how long they have been, as
    far as this daemon has seen it; ``reason``: the budget that was spent last, or ``table_full``
    where a connection has found no place in ``flow_table``.
    """
    state, now_ns = router.state, time.monotonic_ns()
    stateless = state.is_stateless(service.id)
    until_ns = state.maps.pressure.stateless_until_ns(service.id)
    active = until_ns > now_ns
    seen = router.service_watch.floods.get(service.id)
    return {
        "mode": flood_mode(stateless=stateless),
        "obstacle": _obstacle(router, service) if service.stateless and not stateless else "",
        "active": active,
        "since_s": (
            round((now_ns - (seen.seen_ns if seen else now_ns)) / _NS_PER_S, 1) if active else None
        ),
        "reason": _reason(router, service, until_ns, now_ns) if active else "",
    }


def _reason(router: Router, service: Service, until_ns: int, now_ns: int) -> str:
    why = router.state.maps.pressure.why(service.id)
    why = router.service_watch.reason(service.id, until_ns, why, now_ns)
    return why.name if why is not None else "table_full"


def _obstacle(router: Router, service: Service) -> str:
    """Which of the conditions does not hold; those of the file alone are refused by ``check``."""
    obstacle = router.forwarding.obstacle(family_of(service.endpoint.addr))
    if obstacle:
        return obstacle
    names = router.state.sharing(service)
    others = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return (
        f"connections of a former configuration go to {', '.join(names[:_NAMED])}{others}"
        if names
        else "not written yet"
    )
