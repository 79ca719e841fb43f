# SPDX-License-Identifier: Apache-2.0
"""Another configuration while the router runs: ``reload`` and SIGHUP.

    read, parse -> ids that fit the running flows -> what differs -> what cannot change, refused
    as a whole -> ways to new backends -> all of it at once, between two turns of the event loop

What the maps have in the end is what a daemon that was restarted with that configuration would
have written; both ways go by the same functions. Flows of services and backends that are removed
go on until they end, as they do over a restart (``retirement``).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from xdp_router.adapters import adoption, netlink
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.control import CommandError, Handler
from xdp_router.adapters.host_checks import HostWarning
from xdp_router.core.changes import Change, Changes, diff
from xdp_router.core.config import RouterConfig, read_document
from xdp_router.core.config_direct import speaks_ipv6
from xdp_router.core.config_edit import Edit, EditError, Verb, apply_edit
from xdp_router.core.config_gateway import require_services
from xdp_router.core.engine import EngineSettings
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.identity import Known, renumber, vanished
from xdp_router.core.model import Backend, Endpoint, Service

from . import garbage
from .config_file import ConfigFile, document_of
from .direct_paths import require_on_link
from .preflight import new_limit_faults, report, report_limits, service_faults, unreached

if TYPE_CHECKING:
    from .app import Router

_REMAKE = "restart the daemon with --persist: it makes larger maps, and connections go on"
_NOWHERE = (-1, Endpoint(0, 0, 0))
"""Service and address of a backend that there is not."""
_CUT_SHORT = "restart the daemon with --persist: connections go on"
_LINES_LOGGED = 50
_CHANGED = "the configuration with this change"
_log = structlog.get_logger()


class CannotChange(XdpRouterError):
    """Something of it does not change while the router runs: none of it was done."""


class Reconfiguration:
    """Brings other configurations to one router, one at a time."""

    def __init__(
        self, router: Router, source: ConfigFile | None, document: Mapping[str, Any] | None = None
    ) -> None:
        """``source`` None: the router was configured by flags, which ``document`` stands for."""
        self._router = router
        self._source = source
        # What runs, as a file would have it; edits that were not saved included.
        self._document = document_of(source.text) if source is not None else document
        self._lock = asyncio.Lock()
        self._hung_up = False

    def handlers(self) -> dict[str, Handler]:
        """For the control socket, by command."""
        return {
            "reload": self._reload,
            "service": partial(self._edit, "service"),
            "backend": partial(self._edit, "backend"),
        }

    def hang_up(self) -> None:
        """SIGHUP came: read the file again; once for all that come before that has begun."""
        if not self._hung_up:
            self._hung_up = True
            self._router.tasks.spawn(self._on_hangup(), "reload")

    async def _on_hangup(self) -> None:
        try:
            await self.reload()
        except XdpRouterError as error:
            self._hung_up = False  # it may not have come to read anything
            _log.error("reload_refused", reason=str(error), consequence="nothing has changed")

    async def _reload(self, args: Mapping[str, Any]) -> dict[str, Any]:
        dry_run = bool(args.get("dry_run"))
        try:
            changes = await self.reload(dry_run=dry_run)
        except XdpRouterError as error:
            raise CommandError(str(error)) from error
        return changes_view(changes, applied=not dry_run)

    async def reload(self, *, dry_run: bool = False) -> Changes:
        """Read the file again, and do what it says. Raises XdpRouterError: nothing was done."""
        if self._source is None:
            raise CannotChange(
                "the router was configured by flags, there is no file to read: attach with "
                "--config FILE"
            )
        if not self._router.ready:
            raise CannotChange("the router is not ready yet: try again when it is")
        async with self._lock:
            self._hung_up = False
            text = await asyncio.to_thread(self._source.read)
            wanted = await asyncio.to_thread(self._source.parse, text)
            require_services(wanted.services, self._source.shown)
            document = await asyncio.to_thread(document_of, text)
            changes = await self.bring(wanted, dry_run=dry_run)
            if not dry_run:
                self._source.text = text
                self._document = document
                if self._router.gateway is not None:
                    self._router.gateway.follow(wanted.gateway)
            return changes

    async def _edit(self, what: str, args: Mapping[str, Any]) -> dict[str, Any]:
        dry_run, save = bool(args.get("dry_run")), bool(args.get("save"))
        try:
            changes = await self.edit(edit_of(what, args), dry_run=dry_run, save=save)
        except XdpRouterError as error:
            raise CommandError(str(error)) from error
        file = self._source.shown if save and not dry_run and self._source is not None else ""
        return {**changes_view(changes, applied=not dry_run), "saved": file}

    async def edit(self, edit: Edit, *, dry_run: bool = False, save: bool = False) -> Changes:
        """Edit what runs, and with ``save`` its file. Raises XdpRouterError: nothing was done."""
        if save and self._source is None:
            raise CannotChange(
                "the router was configured by flags, there is no file to save it to: leave out "
                "--save"
            )
        if not self._router.ready or self._document is None:
            raise CannotChange("the router is not ready yet: try again when it is")
        async with self._lock:
            document = await asyncio.to_thread(copy.deepcopy, dict(self._document))
            wanted = await asyncio.to_thread(self._edited, document, edit)
            with contextlib.ExitStack() as saving:
                if save and self._source is not None:
                    text = await asyncio.to_thread(self._source.edited, edit)
                    if not dry_run:
                        saving.enter_context(self._source.written(text))
                changes = await self.bring(wanted, dry_run=dry_run)
                if not dry_run:
                    self._document = document
            return changes

    def _edited(self, document: dict[str, Any], edit: Edit) -> RouterConfig:
        max_flows = self._router.config.settings.max_flows
        with garbage.postponed():
            apply_edit(document, read_document(document, _CHANGED, max_flows), edit)
            wanted = read_document(document, _CHANGED, max_flows)
        require_services(wanted.services, _CHANGED)
        return wanted

    async def bring(self, wanted: RouterConfig, *, dry_run: bool = False) -> Changes:
        """Have ``wanted``, whose ids are its own. Raises XdpRouterError: nothing was done."""
        router = self._router
        config, retired = await asyncio.to_thread(self._numbered, wanted, router.config)
        changes = await asyncio.to_thread(diff, router.config, config)
        self._require_possible(changes, wanted)
        known = {
            each.endpoint.addr for service in router.config.services for each in service.backends
        }
        backends = [each for service in config.services for each in service.backends]
        names = {each.endpoint.addr: each.name for each in reversed(backends)}
        resolutions = await asyncio.to_thread(netlink.resolve_paths, names.keys() - known)
        attached = {link.ifindex for link in router.attachments.links}
        netlink.require_attached(resolutions.values(), attached, names)
        require_on_link(backends, {**self._resolutions(known), **resolutions})
        known_ids = {each.id for service in router.config.services for each in service.backends}
        new = [each for each in backends if each.id not in known_ids]
        lost = unreached(new, {**self._resolutions(known), **resolutions}, config.services)
        told = [*lost, *new_limit_faults(router.config, config, router.rooms)]
        before = {service.endpoint for service in router.config.services}
        added = [service for service in config.services if service.endpoint not in before]
        found = await asyncio.to_thread(self._judged, added)
        told += [f"{each.text}: {each.mend}" for each in found]
        changes = dataclasses.replace(changes, warnings=tuple(told))
        if dry_run:
            return changes
        if not changes:
            self._tell(changes)
            return changes
        await asyncio.to_thread(router.steering.prepare, config)
        if router.state.is_lost() or not router.ready:
            raise CannotChange("the data plane is another daemon's by now")
        if {each.id for each in retired} != self._would_retire(config):
            # Meanwhile some of them have retired for good.
            config, retired = self._numbered(wanted, router.config)
        try:
            self._apply(config, retired, resolutions)
        except XdpRouterError as error:  # a map that refuses, though there was room
            _log.error("reload_cut_short", reason=str(error), mend=_CUT_SHORT)
            raise CannotChange(f"cut short: {error}: {_CUT_SHORT}") from error
        self._tell(changes)
        report_limits(config, router.rooms)
        report(found)
        return changes

    def _judged(self, services: list[Service]) -> list[HostWarning]:
        interfaces = [link.interface for link in self._router.attachments.links]
        try:
            return service_faults(services, interfaces)
        except netlink.HostError as error:  # what it would have warned of is not known
            _log.error("services_not_checked", reason=str(error))
            return []

    def _resolutions(self, addrs: Iterable[int]) -> dict[int, netlink.Resolution]:
        watcher = self._router.watcher
        found = {addr: watcher.resolution(addr) for addr in addrs} if watcher is not None else {}
        return {addr: each for addr, each in found.items() if each is not None}

    def _would_retire(self, config: RouterConfig) -> set[int]:
        """Ids that flows may have once ``config``, which has ids, runs, and that it has not."""
        router = self._router
        known = {each.id for service in router.config.services for each in service.backends}
        known.update(each.id for each in router.retirement.backends)
        return known - {each.id for service in config.services for each in service.backends}

    def _numbered(
        self, wanted: RouterConfig, now: RouterConfig
    ) -> tuple[RouterConfig, list[Backend]]:
        """``wanted`` with ids that the flows of ``now`` understand, and backends that they alone
        have. Raises DoesNotFit.
        """
        router = self._router
        running = [each for service in now.services for each in service.backends]
        all_known = {each.id: each for each in (*router.retirement.backends, *running)}
        # Tables that wait to be made anew may name who is gone: nobody gets that number yet.
        named = dict.fromkeys(router.engine.tables.named(), _NOWHERE)
        fds = router.plane.maps
        known = Known(
            {service.endpoint: service.id for service in now.services},
            named | {each.id: (each.service, each.endpoint) for each in all_known.values()},
            *adoption.rooms_of(fds),
            {each.id: each.forwarding for each in all_known.values()},
            bpf.map_info(fds["services"]).max_entries,
            "the running data plane",
            _REMAKE,
        )
        gone = vanished(wanted, known)
        retired = [all_known[each] for each in sorted(gone) if each in all_known]
        return _interned(renumber(wanted, known, gone), now), retired

    def _require_possible(self, changes: Changes, wanted: RouterConfig) -> None:
        refused = changes.refused
        has_ipv6 = bpf.map_info(self._router.plane.maps["flow_table6"]).max_entries > 1
        # Of those that the gateway takes up nothing is in the tables.
        routed = [service for service in wanted.services if not service.listener]
        if not has_ipv6 and speaks_ipv6(routed, ()):
            refused.append(
                "the first service or backend of IPv6, for which there are no tables: restart the "
                "daemon with --persist: connections go on"
            )
        if refused:
            raise CannotChange(
                "cannot change while the router runs, so nothing was changed: " + "; ".join(refused)
            )

    def _apply(
        self,
        config: RouterConfig,
        retired: list[Backend],
        resolutions: Mapping[int, netlink.Resolution],
    ) -> None:
        """In one go: the event loop has no turn meanwhile."""
        router, settings = self._router, config.settings
        before = {each.id for service in router.config.services for each in service.backends}
        router.host_changes.reserve_ports(config.reserved_ports)
        router.forwarding.change(config)
        router.forwarding.look()  # first: what may be stateless goes by it
        finish = router.state.change(config, retired)
        commands = router.engine.apply(
            config.services,
            EngineSettings.of(settings),
            time.monotonic_ns(),
            [each.id for each in retired],
        )
        router.executor.change(config, retired)
        router.figures.change(config)
        router.health.change(config)
        router.loop.obey(commands)
        finish()
        router.steering.change(config)
        for gone in {each.id for each in router.config.services} - {
            each.id for each in config.services
        }:
            router.decisions.by_service.pop(gone, None)
        router.number(config, retired)
        router.service_watch.change(config.services, settings)
        router.shares.change(settings.event_rate)
        router.scraper.change(config.services)
        router.ager.change(settings)
        router.heartbeat.change(settings.heartbeat_stale_ns)
        router.loop.change(settings.heartbeat_interval_ns)
        router.retirement.change(retired)
        backends = [each for service in config.services for each in service.backends]
        watcher = router.watcher
        assert watcher is not None  # there is one as long as the router is ready
        # It has not looked there yet.
        router.network.resolution = lambda addr: watcher.resolution(addr) or resolutions.get(addr)
        router.network.change(backends, retired)
        for addr, found in resolutions.items():
            router.network.path_changed(addr, found.path, found.reason)
        watcher.watch({each.endpoint.addr for each in (*backends, *retired)})
        router.handoff.change(config, retired)
        router.handoff.look(briefly=True)
        router.tell_stateless()
        ports = range(settings.probe_port_min, settings.probe_port_max + 1)
        new = [each for each in backends if each.id not in before]
        router.tasks.spawn(router.numbers.warm(new, ports), "probe numbers")

    def _tell(self, changes: Changes) -> None:
        lines = [str(line) for line in changes.lines]
        more = len(lines) - _LINES_LOGGED
        _log.info(
            "reconfigured",
            changes=lines[:_LINES_LOGGED] + ([f"and {more} more"] if more > 0 else []),
            draining=[backend.name for backend in self._router.retirement.backends],
        )


def _interned(config: RouterConfig, now: RouterConfig) -> RouterConfig:
    """``config`` with the very services, and backends, of ``now`` where they are equal: who looks
    for what differs has little to look at then."""
    services = {service.id: service for service in now.services}
    backends = {backend.id: backend for service in now.services for backend in service.backends}
    found = []
    for service in config.services:
        if services.get(service.id) == service:
            found.append(services[service.id])
            continue
        members = (
            backends[each.id] if backends.get(each.id) == each else each
            for each in service.backends
        )
        found.append(dataclasses.replace(service, backends=tuple(members)))
    return dataclasses.replace(config, services=tuple(found))


def edit_of(what: str, args: Mapping[str, Any]) -> Edit:
    """What a request asks for. Raises EditError."""
    verbs = {verb.value: verb for verb in Verb}
    verb = verbs.get(str(args.get("verb")))
    name, keys, backends = args.get("name", ""), args.get("keys", {}), args.get("backends", [])
    tables = [keys, *backends] if isinstance(backends, list) else [None]
    if verb is None or not isinstance(name, str) or not all(isinstance(t, dict) for t in tables):
        raise EditError(
            f"{what}: expected verb ({', '.join(verbs)}), name (text), keys (an object) and "
            "backends (a list of objects)"
        )
    return Edit(what, verb, name, keys, tuple(backends))


def changes_view(changes: Changes, *, applied: bool) -> dict[str, Any]:
    """For the control socket."""
    return {
        "applied": applied,
        "changes": [_view(line) for line in changes.lines],
        "warnings": list(changes.warnings),
    }


def _view(line: Change) -> dict[str, Any]:
    return {
        "change": line.kind.value,
        "what": line.what,
        "name": line.name,
        "service": line.where,
        "keys": {key: {"before": before, "after": after} for key, before, after in line.keys},
        "text": str(line),
    }
