# SPDX-License-Identifier: Apache-2.0
"""Tells of clients whose backends answer them past the router: at times, not for each of them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from xdp_router.core.address import format_addr
from xdp_router.core.model import Decision, Unfit

EVERY_NS = 600_000_000_000
"""One line a service within ten minutes."""

_log = structlog.get_logger()


class Beside:
    """Looks at decisions. ``backend_name`` and ``service_name`` give names by id."""

    def __init__(
        self, service_name: Callable[[int], str], backend_name: Callable[[int], str]
    ) -> None:
        self._service_name = service_name
        self._backend_name = backend_name
        self._told_ns: dict[int, int] = {}

    def look(self, decision: Decision) -> None:
        """Log ``client_beside_backend``, unless that was done for this service not long ago."""
        beside = [each for each, why in decision.unfit if why is Unfit.BESIDE_CLIENT]
        if not beside:
            return
        told_ns = self._told_ns.get(decision.service)
        if told_ns is not None and decision.decided_ns - told_ns < EVERY_NS:
            return
        self._told_ns[decision.service] = decision.decided_ns
        if decision.backend in beside:
            consequence = "no other backend is to be had: the connection fails without the mend"
        else:
            consequence = "they are passed over"
        _log.warning(
            "client_beside_backend",
            service=self._service_name(decision.service),
            client=format_addr(decision.key.client_addr),
            backends=[self._backend_name(each) for each in beside],
            reason="in the client's own subnet: a backend answers it directly, untranslated",
            consequence=consequence,
            mend='forwarding = "fullnat"; or on the backends, a route to the client\'s subnet by '
            "this router; or a subnet of their own for the backends",
        )
