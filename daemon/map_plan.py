# SPDX-License-Identifier: Apache-2.0
"""What services and backends of a configuration are in the maps, beside what goes on meanwhile.

The same for a router that begins, one that takes over, and one that is changed while it runs.
Nothing is written here, and no map read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Backend, Endpoint, Service

from .map_values import NOBODY, as_well, backend_value, service_value
from .service_rules import answers_for, goes_before

T = TypeVar("T")
Ref = tuple[int, int]
"""Ids of a backend and of its service."""


@dataclass(slots=True)
class Plan:
    """Values by key; ``services`` are written last, and by others."""

    services: dict[int, tuple[Service, abi.ServiceValue]] = field(default_factory=dict)
    backends: dict[int, abi.BackendValue] = field(default_factory=dict)
    index: dict[Endpoint, Ref] = field(default_factory=dict)
    others: dict[int, Ref] = field(default_factory=dict)
    """By id of a backend that its endpoint names before others: the first of these."""
    new: list[Service] = field(default_factory=list)
    """Services whose numbers may have been another one's."""
    new_backends: list[int] = field(default_factory=list)
    """Backends of the same kind."""

    def index_news(self, last: Plan) -> dict[Endpoint, Ref]:
        """What to write of ``index`` where ``last`` was written; paths have come and gone since.

        Of those in ``others`` one without a path answers for no probes.
        """
        followed = {self.backends[each].endpoint for each in self.others}
        followed |= {last.backends[each].endpoint for each in last.others}
        found = {
            at: ref for at, ref in self.index.items() if last.index.get(at) != ref or at in followed
        }
        for backend, other in self.others.items():
            if not self.backends[backend].ifindex:
                found[self.backends[backend].endpoint] = other
        return found


def make_plan(
    config: RouterConfig,
    retired: Iterable[Backend],
    running: Mapping[Endpoint, abi.ServiceValue],
    before: Mapping[int, abi.BackendValue],
    *,
    shared: Collection[Endpoint],
    is_stateless: Callable[[Service], bool],
    same: Mapping[int, tuple[Service, abi.ServiceValue]] | None = None,
) -> Plan:
    """``same``: what there is of services, by id; those that are the very same in ``config`` have
    the values that they had, because nothing else that these depend on has changed.

    ``running`` and ``before``: services and backends that are in the maps, and go on.

    ``shared``: endpoints whose reply tuples can collide.
    """
    plan = Plan()
    for service in config.services:
        had = same.get(service.id) if same is not None else None
        if had is not None and had[0] is service:
            plan.services[service.id] = had
            for backend in service.backends:
                plan.backends[backend.id] = before[backend.id]
                _put_index(plan, backend, service)
            continue
        value = service_value(service, config.settings.event_burst, stateless=is_stateless(service))
        if service.endpoint in running:
            was = running[service.endpoint]
            value = dataclasses.replace(value, hash_active=was.hash_active)
            if was.mode is service.mode:  # it has a table to pick by
                value = dataclasses.replace(value, mode=was.mode)
        else:
            plan.new.append(service)
        plan.services[service.id] = (service, value)
        for backend in service.backends:
            found = before.get(backend.id, NOBODY)
            if Endpoint(found.addr, found.port, found.proto) != backend.endpoint:
                found = NOBODY
                plan.new_backends.append(backend.id)
            elif found.service != service.id:  # an operator's word was about another one
                found = as_well(
                    dataclasses.replace(found, flags=found.flags & ~abi.BACKEND_DRAINING)
                )
            is_shared = backend.endpoint in shared
            plan.backends[backend.id] = backend_value(backend, found, shared=is_shared)
            _put_index(plan, backend, service)
            if value.flags & abi.SERVICE_STATELESS:
                plan.backends[backend.id] = answers_for(plan.backends[backend.id], service)
    for backend in retired:
        found = before[backend.id]
        # Not draining: that is an operator's word, which would hold if it came back.
        flags = found.flags & ~(abi.BACKEND_UP | abi.BACKEND_DRAINING)
        if backend.endpoint in shared:
            flags |= abi.BACKEND_SHARED
        plan.backends[backend.id] = dataclasses.replace(found, flags=flags)
        plan.index.setdefault(backend.endpoint, (backend.id, backend.service))
    return plan


def _put_index(plan: Plan, backend: Backend, service: Service) -> None:
    ref = (backend.id, service.id)
    known = plan.index.setdefault(backend.endpoint, ref)
    if known is ref:
        return
    if goes_before(plan.backends[backend.id], plan.backends[known[0]]):
        plan.index[backend.endpoint] = ref
        plan.others[backend.id] = known
    elif goes_before(plan.backends[known[0]], plan.backends[backend.id]):
        plan.others.setdefault(known[0], ref)


def news(values: Mapping[int, T], before: Mapping[int, T]) -> dict[int, T]:
    """Those that are not as they were."""
    return {each: value for each, value in values.items() if before.get(each) != value}


def names_of(config: RouterConfig) -> tuple[dict[int, str], dict[int, str]]:
    """Of services and of backends, by id."""
    services = config.services
    return {each.id: each.name for each in services}, {
        backend.id: backend.name for each in services for backend in each.backends
    }


def carried(
    config: RouterConfig,
    running: Mapping[Endpoint, abi.ServiceValue],
    before: Mapping[int, abi.BackendValue],
) -> frozenset[int]:
    """Running services whose consistent-hash tables name their own backends and no other."""
    had: dict[int, set[int]] = {}
    for backend, value in before.items():
        had.setdefault(value.service, set()).add(backend)
    return frozenset(
        service.id
        for service in config.services
        if service.endpoint in running
        and running[service.endpoint].id == service.id
        and had.get(service.id) == {backend.id for backend in service.backends}
    )
