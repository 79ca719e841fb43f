# SPDX-License-Identifier: Apache-2.0
"""What each tenant may use: requests a second, streams at a time, and how urgent it is.

Tenants that the configuration names have limits of their own. All others are told apart by name,
within a bound: whoever invents names shares one bucket with everybody that does.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdp_router.core.listeners import Listener, TenantLimits
from xdp_router.core.ratelimit import TokenBucket

from .errors import MessageError

OTHERS_KEPT = 10_000
"""Unnamed tenants that are told apart."""
NAME_MOST = 256
"""Characters of such a name; longer ones share the bucket of those that are not told apart."""


@dataclass(slots=True)
class Tenant:
    """One tenant, as long as the worker lives."""

    name: str
    limits: TenantLimits
    bucket: TokenBucket | None
    extra_legs: TokenBucket | None
    streams: int = 0


class Refused(MessageError):
    """Too much of one tenant. ``after_s``: when to come again."""

    def __init__(self, reason: str, after_s: int) -> None:
        super().__init__(429, reason)
        self.after_s = after_s


class Tenants:
    """Of one listener in one worker of ``workers``, which share the limits evenly."""

    def __init__(self, listener: Listener, workers: int) -> None:
        self._workers = workers
        self._named = {each.name: each for each in listener.tenants}
        self._others = listener.other_tenants
        self._priorities = dict(listener.priorities)
        self._known: dict[str, Tenant] = {}

    def admit(self, name: str, now_ns: int) -> Tenant:
        """The tenant, with one stream more; ``release`` ends it. Raises Refused."""
        tenant = self._known.get(name) or self._new(name, now_ns)
        limits = tenant.limits
        if limits.streams and tenant.streams >= self._share(limits.streams):
            raise Refused("too many requests of this tenant at a time", 1)
        if tenant.bucket is not None and not tenant.bucket.take(now_ns):
            raise Refused("too many requests of this tenant", 1)
        tenant.streams += 1
        return tenant

    def release(self, tenant: Tenant) -> None:
        """A request has ended."""
        tenant.streams -= 1

    def urgency(self, tenant: Tenant, asked: str) -> float:
        """How much more latency counts for it: by its own class, else the one it asks for."""
        return self._priorities.get(tenant.limits.priority or asked, 1.0)

    def has_extra_leg(self, tenant: Tenant, now_ns: int) -> bool:
        """Whether ``extra_leg`` would say yes."""
        return tenant.extra_legs is None or tenant.extra_legs.available(now_ns) > 0

    def extra_leg(self, tenant: Tenant, now_ns: int) -> bool:
        """Whether it may have one leg more than a request needs; if so, that is counted."""
        return tenant.extra_legs is None or tenant.extra_legs.take(now_ns)

    def _new(self, name: str, now_ns: int) -> Tenant:
        limits = self._named.get(name, self._others)
        full = len(self._known) >= OTHERS_KEPT + len(self._named)
        if limits is self._others and (full or len(name) > NAME_MOST):
            name = ""
            found = self._known.get(name)
            if found is not None:
                return found
        tenant = Tenant(
            name,
            limits,
            self._bucket(limits.rate, limits.burst, now_ns) if limits.rate else None,
            self._bucket(limits.rate, limits.burst, now_ns) if limits.rate else None,
        )
        self._known[name] = tenant
        return tenant

    def _bucket(self, rate: int, burst: int, now_ns: int) -> TokenBucket:
        return TokenBucket(self._share(rate), self._share(burst), now_ns)

    def _share(self, limit: int) -> int:
        return max(1, limit // self._workers)
