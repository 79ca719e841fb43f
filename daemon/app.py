# SPDX-License-Identifier: Apache-2.0
"""Lifetime of the daemon: what is acquired, in which order, and how it is let go.

    checks (nothing changed yet) -> control socket -> reserved ports -> maps and programs,
    pinned -> maps filled, heartbeat -> XDP attached -> services opened -> ready

Shutdown is the reverse: every step registers its undo and goes on. A SIGKILL runs none of
them: the pinned links keep the data plane at work, and ``detach`` cleans up.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import netlink, xdp_link
from xdp_router.adapters.bpf_support import require_support
from xdp_router.adapters.control import ControlServer
from xdp_router.adapters.dataplane import DataPlane, instance_dir, link_pin
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.probe_socket import ProbeSocket, ProbeTarget
from xdp_router.adapters.reinject import Reinjector
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.adapters.sysctl import Sysctls
from xdp_router.core.config import RouterConfig
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.events import BackendState, FlowClosed
from xdp_router.core.model import NO_BACKEND, Backend, Decision
from xdp_router.core.probe_sequence import ProbeHashes, probe_seq
from xdp_router.core.selection import build_table

from .aging import Ager
from .executor import Executor
from .kernel_state import KernelState
from .loaders import make_loader
from .logs import Sampler
from .loop import EngineLoop
from .notify import notify
from .views import decision_line, handlers

DECISION_LINES_PER_SECOND = 100
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """What ``attach`` was asked for."""

    interfaces: tuple[str, ...]
    mode: xdp_link.AttachMode | None
    loader: str
    replace: bool
    control: Path
    pins: Path


class Router:
    """One attached router. Built by ``serve``; views read its fields."""

    def __init__(self, config: RouterConfig, options: AttachOptions) -> None:
        self.config = config
        self.options = options
        self.ready = False
        self.started_s = time.monotonic()
        self.links: list[xdp_link.XdpLink] = []
        self.program_id = 0
        self.paths: dict[int, tuple[netlink.Path | None, str]] = {}
        self.decisions_total = 0
        self.decisions_by_service: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._backends = [backend for service in config.services for backend in service.backends]
        self._by_addr: dict[int, list[Backend]] = {}
        for backend in self._backends:
            self._by_addr.setdefault(backend.endpoint.addr, []).append(backend)
        self._service_names = {service.id: service.name for service in config.services}
        self._backend_names = {backend.id: backend.name for backend in self._backends}
        self._sampler = Sampler(DECISION_LINES_PER_SECOND)
        self._tasks: set[asyncio.Task[None]] = set()

    def interface_name(self, ifindex: int) -> str:
        """Name of an interface that was seen; its number otherwise."""
        return self._names.get(ifindex, str(ifindex))

    async def serve(self, undo: contextlib.AsyncExitStack, stop: asyncio.Event) -> None:
        """Attach, run until ``stop``. What was acquired is on ``undo``."""
        found = self._check_interfaces()
        resolutions = netlink.resolve_paths(self._by_addr)
        netlink.require_attached(
            resolutions.values(),
            {link.ifindex for link in found},
            {addr: backends[0].name for addr, backends in self._by_addr.items()},
        )
        require_support()
        control = ControlServer(self.options.control, handlers(self), self._control_fault)
        await control.start()
        undo.push_async_callback(control.close)
        self._reserve_ports(undo)
        self._load(undo)
        self._start_engine(undo)
        for link in found:
            self._names[link.ifindex] = link.name
            self.state.set_interface(link)
        for addr, resolution in resolutions.items():
            self._path_changed(addr, resolution.path, resolution.reason)
        for link in found:
            self._attach(link, undo)
        self.state.open_services()
        self._watch(undo)
        self._spawn(self.ager.run(), "aging")
        self.ready = True
        _log.info(
            "ready",
            interfaces={link.interface: link.mode.value for link in self.links},
            loader=self.plane.loader,
            services=len(self.config.services),
            backends_up=f"{len(self.engine.up)}/{len(self._backends)}",
            program_id=self.program_id,
            pins=str(self.plane.pin_dir),
        )
        notify("READY=1")
        await stop.wait()
        self.ready = False
        notify("STOPPING=1")

    # Acquiring

    def _check_interfaces(self) -> list[netlink.LinkInfo]:
        found = []
        for name in self.options.interfaces:
            link = netlink.link_info(name)
            if not link.ethernet:
                raise XdpRouterError(
                    f"{name} is not an Ethernet interface ({link.kind or 'no link header'}): "
                    "XDP cannot forward there; attach the interfaces that clients and "
                    "backends are reached by"
                )
            if link.xdp_prog_id and not self.options.replace:
                raise xdp_link.AlreadyAttached(
                    name, link.xdp_prog_id, xdp_link.program_name(link.xdp_prog_id)
                )
            found.append(link)
        return found

    def _reserve_ports(self, undo: contextlib.AsyncExitStack) -> None:
        sysctls = undo.enter_context(Sysctls())
        settings = self.config.settings
        for warning in sysctls.reserve_ports(settings.probe_port_min, settings.probe_port_max):
            _log.warning("probe_port_in_use", detail=warning)

    def _load(self, undo: contextlib.AsyncExitStack) -> None:
        settings = self.config.settings
        sizes = Sizes(
            max_flows=settings.max_flows,
            services=len(self.config.services),
            backends=len(self._backends),
            interfaces=len(self.options.interfaces),
        )
        self.plane = DataPlane.create(
            make_loader(self.options.loader),
            sizes,
            instance_dir(self.options.pins, self.options.interfaces),
        )
        undo.callback(self.plane.close)
        undo.callback(self.plane.unpin)
        self.program_id = bpf.prog_info(self.plane.entry).id
        self.state = KernelState(self.plane, self.config)
        self.state.write_all()

    def _start_engine(self, undo: contextlib.AsyncExitStack) -> None:
        settings = self.config.settings
        hashes = ProbeHashes(self.state.probe_key)

        def sequence(backend: Backend, probe_port: int, nonce: int) -> int:
            path, _ = self.paths[backend.id]
            endpoint = backend.endpoint
            source = path.source_addr if path is not None else 0
            return probe_seq(hashes.get(endpoint.addr, endpoint.port, probe_port, source), nonce)

        self.engine = Engine(
            self.config.services,
            EngineSettings(
                coalesce_window_ns=settings.coalesce_window_ns,
                probe_rate=settings.probe_rate,
                probe_burst=settings.probe_burst,
                probe_port_min=settings.probe_port_min,
                probe_port_max=settings.probe_port_max,
                decisions_kept=settings.decisions_kept,
                max_open_decisions=settings.max_open_decisions,
            ),
            sequence,
            build_table,
        )
        self.sender = ProbeSocket()
        undo.callback(self.sender.close)
        self.executor = Executor(
            self.state,
            self._backends,
            Reinjector(self.plane.entry, self.state.reinject_mark),
            self.sender,
            self._log_decision,
        )
        ring_fd = self.plane.maps["first_packet_events"]
        ring = RingBuffer(ring_fd, bpf.map_info(ring_fd).max_entries)
        undo.callback(ring.close)
        self.loop = EngineLoop(
            self.engine, self.executor, ring, self.state.beat, settings.heartbeat_interval_ns
        )
        self.loop.start()
        undo.callback(self.loop.stop)
        self.ager = Ager(
            self.state.maps.flow_table, self.state.maps.pending_flows, settings, self._closed
        )

    def _attach(self, link: netlink.LinkInfo, undo: contextlib.AsyncExitStack) -> None:
        attached = xdp_link.attach(
            self.plane.entry, link.name, link.ifindex, self.options.mode, self.options.replace
        )
        undo.callback(attached.close)
        undo.callback(attached.detach)
        assert self.plane.pin_dir is not None
        attached.pin(link_pin(self.plane.pin_dir, link.name))
        self.links.append(attached)
        if attached.fallback_reason:
            _log.warning(
                "generic_mode",
                interface=link.name,
                reason=attached.fallback_reason,
                consequence="every packet takes the slower path through the network stack",
            )

    def _watch(self, undo: contextlib.AsyncExitStack) -> None:
        watcher = netlink.PathWatcher(self._path_changed, self._link_changed)
        watcher.start(self._by_addr)
        undo.callback(watcher.close)
        undo.push_async_callback(self._cancel_tasks)

    # Events from outside

    def _path_changed(self, addr: int, path: netlink.Path | None, reason: str) -> None:
        attached = {link.ifindex for link in self.links} or set(self._names)
        if path is not None and path.ifindex not in attached:
            reason = (
                f"its route leaves by {self.interface_name(path.ifindex)}, which is not attached"
            )
            path = None
        for backend in self._by_addr[addr]:
            before = self.paths.get(backend.id)
            self.paths[backend.id] = (path, reason)
            if before is not None and before == (path, reason):
                continue
            if path is None:
                self.loop.handle(BackendState(backend.id, up=False))
            self.state.set_path(backend.id, path)
            endpoint = backend.endpoint
            target = ProbeTarget(path, endpoint.addr, endpoint.port) if path else None
            self.executor.set_target(backend.id, target)
            if path is not None:
                self.loop.handle(BackendState(backend.id, up=True))
                _log.info(
                    "backend_up",
                    backend=backend.name,
                    interface=self.interface_name(path.ifindex),
                    next_hop=path.dmac.hex(":"),
                )
            else:
                _log.warning("backend_down", backend=backend.name, reason=reason)

    def _link_changed(self, event: netlink.LinkEvent) -> None:
        link = event.link
        if link.ifindex not in {attached.ifindex for attached in self.links}:
            return
        self._names[link.ifindex] = link.name
        if event.what == "deleted":
            _log.error(
                "interface_gone",
                interface=link.name,
                mend="attach again when it is back: xdp-routerd detach, then attach",
            )
            self.sender.forget(link.ifindex)
            return
        if event.what == "mac":
            self.state.set_interface(link)
        _log.info("interface_changed", interface=link.name, what=event.what)

    def _closed(self, event: FlowClosed) -> None:
        self.loop.handle(event)

    def _log_decision(self, decision: Decision) -> None:
        self.decisions_total += 1
        by_service = self.decisions_by_service
        by_service[decision.service] = by_service.get(decision.service, 0) + 1
        if not self._sampler.take(decision.decided_ns):
            return
        backend = decision.backend
        line = decision_line(
            decision,
            self._service_names[decision.service],
            "" if backend == NO_BACKEND else self._backend_names[backend],
            self._backend_names.__getitem__,
        )
        skipped = self._sampler.skipped()
        if skipped:
            line["lines_skipped"] = skipped
        if decision.error:
            _log.error("decision_lost", error=decision.error, **line)
        else:
            _log.info("decision", **line)

    def _control_fault(self, command: str, error: Exception) -> None:
        _log.error("control_fault", command=command, error=repr(error))

    # Tasks

    def _spawn(self, work: object, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task_failed", task=task.get_name(), error=repr(task.exception()))

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run(config: RouterConfig, options: AttachOptions) -> None:
    """Attach and serve until SIGTERM or SIGINT. Raises what kept it from starting."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    router = Router(config, options)
    async with contextlib.AsyncExitStack() as undo:
        await router.serve(undo, stop)
        _log.info("detaching", interfaces=list(options.interfaces))
    _log.info("stopped")
