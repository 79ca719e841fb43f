# SPDX-License-Identifier: Apache-2.0
"""Brings configuration and network state into the maps that the XDP program reads.

The daemon alone writes these maps; what it wrote last is kept here, so that a change
rewrites one value and nothing is read back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import secrets
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.names import Names
from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_index import Probed
from xdp_router.core import abi
from xdp_router.core.address import family_of
from xdp_router.core.config import RouterConfig
from xdp_router.core.config_wide import shared_endpoints
from xdp_router.core.model import Backend, Endpoint, Forwarding, Mode, Service
from xdp_router.core.probe_kinds import probed_beside

from .map_counts import fill_budgets, forget_counts
from .map_plan import Plan, carried, make_plan, names_of, news
from .map_values import NO_MAC, NOBODY, as_well, control_value
from .service_rules import ServiceRules, answers_for

_NS_PER_S = 1_000_000_000
_SETTLED = 32
"""Services that begin or cease to be stateless at once: 2 to 4 ms."""


class KernelState:
    """The written side of one data plane. Methods raise BpfError when a table is full."""

    def __init__(
        self,
        plane: DataPlane,
        config: RouterConfig,
        *,
        adopted: bool = False,
        retired: Sequence[Backend] = (),
    ) -> None:
        """``adopted``: the maps are in use, and what is in them goes on meanwhile.

        ``retired``: backends that only flows have; they keep their ids.
        """
        self._adopted = adopted
        self.maps = Maps(plane.maps)
        self._names = Names(plane.maps["names"])
        self._configure(config, retired)
        self.probe_key = (secrets.randbits(32), secrets.randbits(32))
        self.reinject_mark = secrets.randbits(63) + 1
        self._take(Plan())
        self._rules = ServiceRules(self.maps, config.services, adopted=adopted)
        self._interfaces: dict[int, abi.InterfaceValue] = {}
        self._handoff: dict[int, int] = {}
        self._gathered: dict[int, abi.BackendValue] | None = None
        self.is_lost: Callable[[], bool] = lambda: False
        """Whether the maps are a successor's: nothing that changes is written then."""
        self.former = self.maps.control.read()
        """``control`` as it was before ``write_all``."""
        self._opened, self._open, self._echo = False, set[Endpoint](), False
        self._probed: dict[Probed, tuple[int, int]] | None = None
        self.forwards = frozenset((4, 6))
        """Families that the kernel forwards: of others it tells no way of a stateless reply."""
        self.carried: frozenset[int] = frozenset()
        """Adopted services whose consistent-hash tables name their own backends and no other."""

    def _configure(self, config: RouterConfig, retired: Sequence[Backend]) -> None:
        self._config = config
        self._retired: dict[Endpoint, list[Backend]] = {}
        for backend in retired:
            self._retired.setdefault(backend.endpoint, []).append(backend)
        self.shared = shared_endpoints(config.services, retired)
        """Backends' endpoints whose reply tuples can collide."""
        self._tags = {
            backend.id: backend.vlan for service in config.services for backend in service.backends
        }

    def write_all(self) -> None:
        """Write control, services, backends (all of them down, unless adopted) and names."""
        now_ns = time.monotonic_ns()
        self._write_control(self.former if self._adopted else None, now_ns)
        running: dict[Endpoint, abi.ServiceValue] = {}
        before: dict[int, abi.BackendValue] = {}
        if self._adopted:
            running = self.maps.services.running()
            before = {each: as_well(value) for each, value in self.maps.backends.items()}
        for bucket in (abi.TOKENS_EVENTS, abi.TOKENS_ICMP, abi.TOKENS_ECHO):
            self.maps.tokens.fill(bucket, 0, now_ns - _NS_PER_S)
        plan = self._plan(running, before)
        fill_budgets(self.maps, self._config.services)
        if self._adopted:
            forget_counts(self.maps, plan)
        self._take(plan)
        self._names.write_all(*names_of(self._config))
        self.maps.backends.write_all(self._backends)
        self.maps.backend_index.write_all(plan.index)
        self._write_probed()
        self._rules.write(before)
        if self._adopted:
            self.carried = carried(self._config, running, before)
            self._forget_others(plan.index, before)

    def _plan(
        self,
        running: Mapping[Endpoint, abi.ServiceValue],
        before: Mapping[int, abi.BackendValue],
        same: Mapping[int, tuple[Service, abi.ServiceValue]] | None = None,
    ) -> Plan:
        return make_plan(
            self._config,
            self._all_retired(),
            running,
            before,
            shared=self.shared,
            is_stateless=self._is_stateless,
            same=same,
        )

    def change(self, config: RouterConfig, retired: Sequence[Backend]) -> Callable[[], None]:
        """Bring another configuration, with ids that fit, into the maps, but for its services:
        the function that is returned does the rest, when their hash tables are there.

        ``retired``: backends that only flows have from now on. What does not change is not
        written. Raises BpfError.
        """
        running = {service.endpoint: value for service, value in self._services.values()}
        before, services, names = self._backends, self._services, names_of(self._config)
        last = Plan(services, before, self._index, self._others)
        depends = (self._config.settings, self.shared)
        self._configure(config, retired)
        self._rules = self._rules.successor(config.services)
        control = self.maps.control.read()
        self._write_control(control, control.resumed_ns)  # it has not stood still
        same = services if depends == (config.settings, self.shared) else None
        plan = self._plan(running, before, same)
        fill_budgets(self.maps, plan.new)
        forget_counts(self.maps, plan)
        self._take(plan)
        self._names.write_all(*map(news, names_of(config), names))
        self.maps.backends.write_all(news(plan.backends, before))
        self.maps.backend_index.write_all(plan.index_news(last))
        self._write_probed()
        self._rules.write(before)
        # What is no more is retired, and keeps what it has for now.
        return partial(self.open_services, running)

    def _take(self, plan: Plan) -> None:
        self._services, self._backends = plan.services, plan.backends
        self._index, self._others = plan.index, plan.others

    def _is_stateless(self, service: Service) -> bool:
        """Whether a service may forward without entries: a retired backend counts, too."""
        return self._wants_stateless(service) and not self._sharing(service)

    def _wants_stateless(self, service: Service) -> bool:
        forwards = family_of(service.endpoint.addr) in self.forwards
        return service.stateless and forwards and service.forwarding is Forwarding.NAT

    def sharing(self, service: Service) -> list[str]:
        """Names of its backends whose replies may be another one's, or a retired one's."""
        return [backend.name for backend in self._sharing(service)]

    def _sharing(self, service: Service) -> list[Backend]:
        return [backend for backend in service.backends if backend.endpoint in self.shared]

    def is_stateless(self, service: int) -> bool:
        """Whether a service forwards without entries while it is over budget."""
        return bool(self._services[service][1].flags & abi.SERVICE_STATELESS)

    def stateless_waiting(self) -> dict[str, list[str]]:
        """Names of services that retired backends keep from being stateless, and of their own
        backends where these still have flows.
        """
        return {
            service.name: [backend.name for backend in self._sharing(service)]
            for service in self._config.services
            if self._wants_stateless(service) and self._sharing(service)
        }

    def settle_shared(self) -> None:
        """After ``forget_backend``: let services be stateless whose backends are theirs alone now.

        It looks at every backend, so that it is called once for all that are forgotten together.
        """
        retired = list(self._all_retired())
        before, self.shared = self.shared, shared_endpoints(self._config.services, retired)
        if self.shared == before or self.is_lost():
            return
        with self.gathered():
            for number, value in list(self._backends.items()):
                at = Endpoint(value.addr, value.port, value.proto)
                if at in before and at not in self.shared:
                    self.set_flag(number, abi.BACKEND_SHARED, False)
        for _ in self._settle_stateless():
            pass

    def set_forwards(self, families: Collection[int]) -> Iterator[None]:
        """Set of which families the kernel tells the ways of stateless replies; in pieces."""
        if self.forwards != frozenset(families) and not self.is_lost():
            self.forwards = frozenset(families)
            yield from self._settle_stateless()

    def _settle_stateless(self) -> Iterator[None]:
        """Let services be stateless that may be, and no other."""
        waiting = iter(list(self._services))
        while some := list(itertools.islice(waiting, _SETTLED)):
            if self.is_lost():
                return
            self._settle_some(some)
            yield

    def _settle_some(self, services: Iterable[int]) -> None:
        flag = abi.SERVICE_STATELESS
        known = [self._services[each] for each in services if each in self._services]
        begins = [
            service
            for service, value in known
            if self._is_stateless(service) and not value.flags & flag
        ]
        if begins:
            with self.gathered():
                for service in begins:
                    for backend in service.backends:
                        value = answers_for(self._backends[backend.id], service)
                        self._put_backend(backend.id, value)
        for service in begins:  # now that replies find their way without an entry
            old = self._services[service.id][1]
            self._put_service(service, dataclasses.replace(old, flags=old.flags | flag))
        for service, old in known:
            if old.flags & flag and not self._is_stateless(service):
                self._put_service(service, dataclasses.replace(old, flags=old.flags & ~flag))

    def _write_probed(self) -> None:
        """Say where probes go beside the backends' own endpoints, retired ones included."""
        backends = [each for service in self._config.services for each in service.backends]
        probed = probed_beside([*backends, *self._all_retired()])
        refs = {where: (each.id, each.service) for where, each in probed.items()}
        if refs != self._probed:
            self.maps.probe_index.replace(refs)
            self._probed = refs

    def _forget_others(self, indexed: Container[Endpoint], before: Iterable[int]) -> None:
        """Remove what a former configuration had, and no flow has."""
        for endpoint, _ in list(self.maps.backend_index.items()):
            if endpoint not in indexed:
                self.maps.backend_index.delete(endpoint)
        gone = (number for number in before if number not in self._backends)
        self.maps.backends.write_all(dict.fromkeys(gone, NOBODY))
        services = {*self._services, *(each.service for each in self._all_retired())}
        self._names.keep_only(services, self._backends)

    def forget_interfaces(self, attached: Collection[int]) -> None:
        """Forget interfaces that are not attached any more."""
        for ifindex, _ in list(self.maps.interfaces.items()):
            if ifindex not in attached:
                self.maps.interfaces.delete(ifindex)
        self._interfaces = {
            ifindex: value for ifindex, value in self._interfaces.items() if ifindex in attached
        }
        self._write_min_mtu()

    def forget_interface(self, ifindex: int) -> None:
        """Forget one: what arrives there is other traffic."""
        if self.is_lost():
            return
        self.maps.interfaces.delete(ifindex)
        self._interfaces.pop(ifindex, None)
        self._write_min_mtu()

    def open_services(self, before: Mapping[Endpoint, abi.ServiceValue] | None = None) -> None:
        """Write the services themselves, last: from now on their SYNs are held.

        ``before``: what was written last of those that were; None: the map tells.
        """
        values = self._rules.left_out()
        values |= {service.endpoint: value for service, value in self._services.values()}
        there = (
            self._open if before is not None else {each for each, _ in self.maps.services.items()}
        )
        gone = there - values.keys()
        echo = {
            each.endpoint.addr: value for each, value in self._services.values() if each.icmp_echo
        }
        # Ports that change hands are never nobody's: what is no more goes when all else is there.
        if values.keys() - there and not self.maps.services.have_room(values, echo):
            self.maps.services.delete_all(gone)
        for endpoint, value in values.items():
            if before is None or before.get(endpoint) != value:
                self.maps.services.write(endpoint, value)
        if before is None or echo or self._echo:
            self.maps.services.answer_echo(echo)
        self._rules.open_ranges()
        self.maps.services.delete_all(gone)
        self._rules.opened()
        self._opened, self._open, self._echo = True, set(values), bool(echo)
        self._write_flags()

    def forget_backend(self, backend: Backend) -> None:
        """Free the id of a retired backend that no flow has any more; then ``settle_shared``."""
        if self.is_lost():
            return
        left = [each for each in self._retired.pop(backend.endpoint, ()) if each.id != backend.id]
        if left:
            self._retired[backend.endpoint] = left
        self._backends.pop(backend.id, None)
        self._index.pop(backend.endpoint, None)  # whatever is there now
        index = self.maps.backend_index.read(backend.endpoint)
        if index is not None and index[0] == backend.id:
            if left:  # the replies of its flows are told by this alone until they are established
                self.maps.backend_index.write(backend.endpoint, left[0].id, left[0].service)
            else:
                self.maps.backend_index.delete(backend.endpoint)
        self.maps.backends.write(backend.id, NOBODY)
        self.maps.backend_loads.reset(backend.id)
        self._names.delete_backend(backend.id)
        number = backend.service
        if number not in self._services and all(x.service != number for x in self._all_retired()):
            self._names.delete_service(number)

    def _all_retired(self) -> Iterator[Backend]:
        return itertools.chain.from_iterable(self._retired.values())

    @property
    def generation(self) -> int:
        """How many daemons have had this data plane, this one included."""
        return self.former.generation + 1

    def beat(self, now_ns: int, resumed_ns: int) -> None:
        """Write the heartbeat, and the end of its newest pause."""
        self.maps.control.beat(now_ns, resumed_ns)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Backends that change within are written at the end, all at once."""
        self._gathered = {}
        try:
            yield
            self.maps.backends.write_all(self._gathered)
        finally:
            self._gathered = None

    def set_path(self, backend: int, path: Path | None, by_kernel: bool = False) -> None:
        """Set where a backend's frames go; None: nowhere, they are dropped as ``no_path``.

        ``by_kernel``: they are left to the kernel instead, path or not.
        """
        old = self._backends[backend]
        kernel = abi.BACKEND_KERNEL if by_kernel else 0
        vlan = self._vlan(backend, path)
        kept = old.flags & ~(abi.BACKEND_KERNEL | abi.BACKEND_STAGE)
        stage = abi.BACKEND_STAGE if vlan or old.flags & abi.BACKEND_TUNNEL else 0
        self._put_backend(
            backend,
            dataclasses.replace(
                old,
                flags=kept | kernel | stage,
                ifindex=path.ifindex if path else 0,
                probe_addr=path.source_addr if path else 0,
                dmac=path.dmac if path else NO_MAC,
                smac=path.smac if path else NO_MAC,
                vlan=vlan,
            ),
        )
        if backend in self._others and not self.is_lost():
            # Without a path it answers for no probes, which the others at its endpoint may send.
            index = (backend, old.service) if path else self._others[backend]
            self.maps.backend_index.write(old.endpoint, *index)

    def _vlan(self, backend: int, path: Path | None) -> int:
        """What becomes of tags (``abi.VLAN_*``): as configured, else as the path has it."""
        before = self._backends[backend].vlan
        if backend not in self._tags:  # a retired one, of whose configuration nothing is known
            return before
        tag = self._tags[backend]
        if tag is None and path is None:
            return before
        return abi.vlan_of(tag if path is None else path.tag(tag))

    def set_up(self, backend: int, up: bool) -> None:
        """Set whether XDP may choose a backend."""
        self.set_flag(backend, abi.BACKEND_UP, up)

    def set_draining(self, backend: int, draining: bool) -> None:
        """Set whether a backend is to keep its flows and get no new ones."""
        self.set_flag(backend, abi.BACKEND_DRAINING, draining)

    def set_share(self, backend: int, share: int) -> None:
        """Set how often, out of 256, a backend may be picked in mode ``inline``; 0: always."""
        self._put_backend(backend, dataclasses.replace(self._backends[backend], share=share))

    def set_flag(self, backend: int, flag: int, on: bool) -> None:
        """Set one of a backend's flags (``BACKEND_*``)."""
        old = self._backends[backend]
        flags = old.flags | flag if on else old.flags & ~flag
        self._put_backend(backend, dataclasses.replace(old, flags=flags))

    @property
    def draining(self) -> frozenset[int]:
        """Ids of the backends that get no new flows; those that a former daemon drained, too."""
        flag = abi.BACKEND_DRAINING
        return frozenset(each for each, value in self._backends.items() if value.flags & flag)

    def publish_hash_table(self, service_id: int, slots: tuple[int, ...]) -> None:
        """Write the table that is not in use, then switch to it."""
        if self.is_lost():
            return
        service, value = self._services[service_id]
        half = 1 - value.hash_active
        self.maps.hash_tables.write(service_id, half, slots)
        self._put_service(service, dataclasses.replace(value, hash_active=half))

    def set_mode(self, service_id: int, mode: Mode) -> None:
        """Set how first packets of a service are decided; flows are not touched."""
        service, value = self._services[service_id]
        if value.mode is not mode and not self.is_lost():
            self._put_service(service, dataclasses.replace(value, mode=mode))

    def _put_service(self, service: Service, value: abi.ServiceValue) -> None:
        self._services[service.id] = (service, value)
        if self.maps.services.read(service.endpoint) is not None:
            self.maps.services.write(service.endpoint, value)

    def set_interface(self, link: LinkInfo) -> None:
        """Tell XDP an attached interface's MAC, address and MTU, and how to answer by it."""
        if self.is_lost():
            return
        # XDP_TX on veth wakes the other end only if that has a program; a redirect always.
        flags = abi.IF_BOUNCE_REDIRECT if link.kind == "veth" else 0
        value = abi.InterfaceValue(link.mac, NO_MAC, flags, link.addr, link.mtu, link.addr6)
        self._interfaces[link.ifindex] = value
        self._write_interface(link.ifindex)
        self._write_min_mtu()

    def _write_min_mtu(self) -> None:
        if self._interfaces:
            mtus = [value.mtu for value in self._interfaces.values()]
            self.maps.control.change_min_mtu(min(mtus))

    def set_handoff(self, flags: Mapping[int, int]) -> None:
        """Set how hand-off to the kernel stands, by interface number (``IF_HANDOFF_*``, ...)."""
        if self.is_lost():
            return
        self._handoff = dict(flags)
        self._write_flags()
        for ifindex in self._interfaces:
            self._write_interface(ifindex)

    def _write_flags(self) -> None:
        lacking = any(each & abi.IF_NO_XMIT for each in self._handoff.values())
        flags = abi.CONTROL_NO_XMIT if lacking else 0
        flags |= self._rules.control_flags
        if self._adopted and not self._opened:  # what is in the maps is looked for as before
            flags |= self.former.flags & (abi.CONTROL_RANGES | abi.CONTROL_ECHO)
        self.maps.control.set_flags(flags)

    def _write_interface(self, ifindex: int) -> None:
        value = self._interfaces[ifindex]
        flags = value.flags | self._handoff.get(ifindex, 0)
        self.maps.interfaces.write(ifindex, dataclasses.replace(value, flags=flags))

    def backend_value(self, backend: int) -> abi.BackendValue:
        """What was written last for a backend."""
        return self._backends[backend]

    def vlan(self, backend: int) -> int:
        """What becomes of tags of frames to a backend (``abi.VLAN_*``)."""
        return self._backends.get(backend, NOBODY).vlan

    def _write_control(self, former: abi.ControlValue | None, resumed_ns: int) -> None:
        self.maps.control.write(
            control_value(
                self._config,
                former,
                resumed_ns,
                generation=self.generation,
                probe_key=self.probe_key,
                reinject_mark=self.reinject_mark,
            )
        )

    def _put_backend(self, backend: int, value: abi.BackendValue) -> None:
        self._backends[backend] = value
        if self.is_lost():
            return
        if self._gathered is not None:
            self._gathered[backend] = value
        else:
            self.maps.backends.write(backend, value)
