# SPDX-License-Identifier: Apache-2.0
"""Lifetime of the daemon: what is acquired, in which order, and how it is let go.

    lock -> checks (nothing changed yet) -> control socket -> maps and programs, pinned ->
    reserved ports -> maps filled, heartbeat, unlocked -> XDP attached -> services opened -> ready

A data plane that a daemon has left is taken over instead of made: its maps, with new programs,
by the attachments that are there (``adapters/adoption.py``). It is never without a program, and
until the first heartbeat XDP decides by itself, as it did before.

Shutdown is the reverse: every step registers its undo and goes on. A SIGKILL runs none of
them: the pinned links keep the data plane at work; the next ``attach`` takes it over, or
``detach`` cleans up, by the notes that are pinned with it. So it is with ``--persist``, and when
what was taken over cannot be brought to work: connections are not cut for that.

Commands are answered from ready on: until then nothing here gives up the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Collection, Iterable, Sequence

import structlog

from xdp_router.adapters import adoption, netlink, xdp_link
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_support import require_support
from xdp_router.adapters.connection_probes import ConnectionProbes
from xdp_router.adapters.control import ControlServer
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.loader import make_loader
from xdp_router.adapters.map_sizes import sizes_of
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pin_lock import PinLock
from xdp_router.adapters.pins import instance_dir
from xdp_router.adapters.probe_socket import ProbeSocket
from xdp_router.adapters.reinject import Reinjector
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core.config import RouterConfig
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.model import Backend
from xdp_router.core.selection import build_table

from . import takeover
from .aging import Ager
from .attach_options import AttachOptions
from .attachments import Attachments
from .decision_report import DecisionReport
from .direct_paths import require_on_link
from .draining import Draining
from .event_feed import EventFeed
from .executor import Executor
from .figures import Figures, serve_metrics
from .flow_ends import FlowEnds
from .flow_mover import FlowMover
from .garbage import GarbageKeeper
from .gateway.child import GatewayChild, begin_gateway, hurry_gateway
from .handoff import Handoff
from .health_keeper import HealthKeeper
from .heartbeat import Heartbeat
from .host_changes import HostChanges
from .kernel_state import KernelState
from .loads import load_reader
from .logs import listen, log_fault
from .loop import EngineLoop
from .map_values import left_out
from .mode_commands import ModeCommands
from .nat_ports import NatPorts
from .network import Network
from .notify import notify
from .ownership import NotOurs, Ownership
from .preflight import check_interfaces, report_host, report_limits
from .probe_numbers import ProbeNumbers
from .reconfiguration import Reconfiguration
from .reply_paths import ReplyPaths
from .retirement import Retirement
from .scraper import of_router as scraper_of
from .service_watch import ServiceWatch
from .shares import SharesKeeper
from .signals import Signals, go_on, held
from .stateless import ForwardingKeeper, StatelessReport
from .steering import begin_steering
from .tasks import Tasks, keep_up
from .usage_keeper import UsageKeeper
from .views import handlers
from .watchdog import Watchdog

QUIET = 200
"""Open decisions up to which a look at all of them takes no noticeable time."""

_log = structlog.get_logger()


class Router:
    """One attached router. Built by ``serve``; views read its fields."""

    def __init__(self, config: RouterConfig, options: AttachOptions) -> None:
        self.config = config
        self.options = options
        self.ready = False
        self.started_s = time.monotonic()
        self.gateway: GatewayChild | None = None
        self.watcher: netlink.PathWatcher | None = None
        self.program_id = 0
        self.decisions = DecisionReport(
            lambda service: self._service_names.get(service, str(service)),
            # Events are put into words later: its backend may be gone by then.
            lambda backend: self._backend_names.get(backend, f"backend {backend}"),
        )
        self.feed = EventFeed(self.decisions.line)
        self.decisions.feed = self.feed.decision
        self.tasks = Tasks()
        self._former: adoption.Former | None = None
        self._leave_behind = False
        self._service_names: dict[int, str] = {}
        self._backend_names: dict[int, str] = {}
        self.reconfiguration = Reconfiguration(self, options.source, options.document)
        self.number(config, ())

    def number(self, config: RouterConfig, retired: Sequence[Backend]) -> None:
        """This is the configuration from now on, with ids. ``retired``: only flows have these."""
        self.config = config
        self._retired = tuple(retired)
        self._backends = [backend for service in config.services for backend in service.backends]
        # Decisions that are open may name who has just gone.
        self._service_names |= {service.id: service.name for service in config.services}
        self._backend_names |= {each.id: each.name for each in (*retired, *self._backends)}

    async def serve(self, undo: contextlib.AsyncExitStack, stop: asyncio.Event) -> None:
        """Attach, run until ``stop``. What was acquired is on ``undo``."""
        undo.callback(listen(self.feed.log_line))
        lock = PinLock(self.options.pins)
        undo.callback(lock.release)
        await takeover.lock_pins(lock, lambda: go_on(stop, False))
        # Its own data plane is not "another XDP program", which --replace would remove.
        self._find_former(undo)
        found = check_interfaces(
            self.options.interfaces,
            self._former.links if self._former is not None else {},
            replace=self.options.replace,
        )
        names = {backend.endpoint.addr: backend.name for backend in reversed(self._backends)}
        configured = dict(names)
        for backend in self._retired:
            names.setdefault(backend.endpoint.addr, backend.name)
        resolutions = netlink.resolve_paths(names)
        needed = [resolutions[addr] for addr in configured]
        netlink.require_attached(needed, {link.ifindex for link in found}, configured)
        require_on_link(self._backends, resolutions)
        with held():
            require_support()
        native = self.options.mode is not xdp_link.AttachMode.GENERIC
        report_host(self.config, found, native=native)
        draining = Draining(self)
        self._control = ControlServer(
            self.options.control,
            {**handlers(self), "backend_flows": draining.flows},
            self._control_fault,
            self.options.control_group,
            {
                **draining.handlers(),
                **self.reconfiguration.handlers(),
                **ModeCommands(self).handlers,
            },
        )
        await self._control.start()
        undo.push_async_callback(self._control.close)
        await serve_metrics(self, undo)
        self._load(undo)
        changes = self.host_changes = self._change_host(undo)
        self._fill_maps()
        self.steering = begin_steering(self, undo, adopted=self._former is not None)
        self._start_engine(undo)
        known = {number: value.mac for number, value in self.state.maps.interfaces.items()}
        self.attachments.remember(known, found)
        self.handoff = Handoff(
            self.config,
            changes,
            self.state,
            self.network,
            lambda: self.attachments.links,
            self._retired,
        )
        self.handoff.look()
        self.state.forget_interfaces({link.ifindex for link in found})
        for link in found:
            self.network.attached(link)
        self.network.resolution = resolutions.get
        paths = ((addr, found.path, found.reason) for addr, found in resolutions.items())
        ill = left_out({each.id: self.state.backend_value(each.id) for each in self._backends})
        up = self.network.begin(paths, ill)
        self.loop.run(self.engine.begin(up, self.state.draining, ill, time.monotonic_ns()))
        go_on(stop, self._leave_behind)
        self.loop.publish(self.state.carried)
        # What came with the configuration is there to stay: looking at all of it takes long.
        garbage = GarbageKeeper(self._is_quiet)
        garbage.step()
        deadlines = {service.id: service.deadline_ns for service in self.config.services}
        waiting = takeover.drain_leftovers(self._ring, deadlines)
        if self._former is not None:
            waiting[:0] = takeover.leftover_events(self._former.plane, self.plane, deadlines)
        self.loop.start()
        lock.release()  # the heartbeat says from here on whose it is
        for first in waiting:
            self.loop.handle(first)
        undo.callback(lambda: self.attachments.close(detach=self.takes_away()))
        for link in found:
            self.attachments.attach(link)
        self.steering.change(self.config)
        self.handoff.look()  # with a program on it a device may take frames
        self.state.open_services()
        self._watch(undo, names)
        undo.push_async_callback(self.tasks.cancel)
        keep_up(self, garbage)
        lost: list[NotOurs] = []

        def leave(why: NotOurs) -> None:
            lost.append(why)
            self._leave_behind = False
            stop.set()

        self.tasks.keep(Ownership(self.plane, self.attachments.links, leave).run, "ownership")
        settings = self.config.settings
        ports = range(settings.probe_port_min, settings.probe_port_max + 1)
        self.tasks.spawn(self.numbers.warm(self._backends, ports), "probe numbers")
        begin_gateway(self, undo)
        go_on(stop, self._leave_behind)
        self.loop.ready()
        self.ready = True
        if self._former is not None:
            self._former.plane.close()  # nobody runs its programs any more: the kernel lets them go
        self._leave_behind = self.options.persist
        _log.info(
            "ready",
            interfaces={link.interface: link.mode.value for link in self.attachments.links},
            loader=self.plane.loader,
            services=len(self.config.services),
            backends_up=f"{self.engine.up_count}/{len(self._backends)}",
            program_id=self.program_id,
            pins=str(self.plane.pin_dir),
        )
        notify("READY=1")
        self.tasks.keep(Watchdog(self._one_line).run, "watchdog")
        await stop.wait()
        self.ready = False
        notify("STOPPING=1")
        if lost:
            _log.error("data_plane_lost", reason=str(lost[0]), consequence="this daemon ends")
            raise lost[0]

    def _one_line(self) -> str:
        """For ``systemctl status``."""
        return (
            f"{self.attachments}: {self.engine.up_count} of {len(self._backends)} backends up, "
            f"{self.ager.flows} flows, {self.decisions.total} decisions"
        )

    # Acquiring

    def _change_host(self, undo: contextlib.AsyncExitStack) -> HostChanges:
        notes = Notes(self.plane.maps["notes"])
        notes.write(Note.CONTROL_SOCKET, str(self.options.control.absolute()))
        changes = HostChanges(notes, adopted=self._former is not None)
        # Who detached us has put it all back, and a successor has made it its own.
        pins = self.plane.pin_dir
        assert pins is not None
        undo.callback(
            lambda: changes.restore(self.options.pins, pins) if self.takes_away() else None
        )
        changes.reserve_ports(self.config.reserved_ports)
        return changes

    def _sizes(self, retired: int = 0) -> Sizes:
        """``retired``: how many such backends there will be beside those that are known."""
        flows = self._former is not None and self._former.has_ipv6_flows
        interfaces = len(self.options.interfaces)
        return sizes_of(self.config, interfaces, self._retired, others=retired, ipv6_flows=flows)

    def _load(self, undo: contextlib.AsyncExitStack) -> None:
        sizes = self._sizes()
        if self._former is not None:
            self._adopt(self._former, sizes, undo)
            return
        with held():
            self.plane = DataPlane.create(
                make_loader(self.options.loader),
                sizes,
                instance_dir(self.options.pins, self.options.interfaces),
            )
        undo.callback(self.plane.close)
        undo.callback(self._unpin)
        self._make_attachments()

    def _make_attachments(self) -> Attachments:
        self.program_id = bpf.prog_info(self.plane.entry).id
        options = self.options
        self.attachments = Attachments(
            self.plane, options.interfaces, options.mode, options.replace
        )
        return self.attachments

    def _fill_maps(self) -> None:
        adopted = self._former is not None
        self.state = KernelState(self.plane, self.config, adopted=adopted, retired=self._retired)
        self.forwarding = ForwardingKeeper(
            self.config,
            lambda: (
                [each.name for each in self.attachments if each.ifindex]
                if self.ready  # before, all are there, but not attached
                else self.options.interfaces
            ),
            self.state.set_forwards,
        )
        self.forwarding.look()
        self.state.write_all()
        report_limits(self.config, self.rooms)
        self._stateless = StatelessReport()
        self._stateless.tell(self.state.stateless_waiting())
        self.service_watch = ServiceWatch(
            self.state.maps, self.config.services, self.config.settings
        )
        self.shares = SharesKeeper(
            self.state.maps, self.config.settings.event_rate, lambda: self.state.is_lost()
        )

    @property
    def rooms(self) -> dict[int, int]:
        """Connections that there is room for, by family."""
        tables = self.state.maps.by_family.items()
        return {family: each.flows.max_entries // 2 for family, each in tables}

    def _start_engine(self, undo: contextlib.AsyncExitStack) -> None:
        settings = self.config.settings
        self.numbers = ProbeNumbers(
            self.state.probe_key, lambda backend: self.state.backend_value(backend).probe_addr
        )
        self.engine = Engine(
            self.config.services,
            EngineSettings.of(settings),
            self.numbers.sequence,
            build_table,
            random.Random().randrange,
            load_reader(self.state.maps),
        )
        self.sender = ProbeSocket()
        undo.callback(self.sender.close)
        self.executor = Executor(
            self.state,
            self._backends,
            Reinjector(self.plane.entry, self.state.reinject_mark, self.plane.maps["leaving"]),
            self.sender,
            self.decisions.report,
            NatPorts(self.config, lambda backend: self.state.backend_value(backend).probe_addr),
        )
        undo.callback(self.executor.close)
        maps = self.state.maps
        self.figures = Figures(self.config, maps, self.plane.maps, self.decisions, self.executor)
        self.scraper = scraper_of(self)
        ring_fd = self.plane.maps["first_packet_events"]
        ring = self._ring = RingBuffer(ring_fd, bpf.map_info(ring_fd).max_entries)
        undo.callback(ring.close)
        former = self.state.former  # zeros unless it was adopted
        heartbeat = Heartbeat(self.state.beat, settings.heartbeat_stale_ns, former.heartbeat_ns)
        self.heartbeat = heartbeat
        self.loop = EngineLoop(
            self.engine,
            self.executor,
            ring,
            heartbeat.beat,
            settings.heartbeat_interval_ns,
            self.plane.owns_pins,
        )
        undo.callback(lambda: heartbeat.last(time.monotonic_ns()) if self._stays() else None)
        undo.callback(self.loop.stop)
        mark = self.state.reinject_mark
        ends = FlowEnds(
            maps.by_family.values(), Reinjector(self.plane.entry, mark), self.sender.send_frame
        )
        lost = self.loop.is_lost
        self.health = HealthKeeper(self.config, maps, ends, self.loop.handle, lost)
        self.executor.about_health = self.health.obey
        self.executor.connections = ConnectionProbes(self.tasks.spawn, self.loop.handle)
        self.state.is_lost = self.loop.is_lost
        self.network = Network(
            self._backends, self.state, self.executor, self.loop.handle, self._retired
        )
        undo.callback(self.network.close)
        self.retirement = Retirement(self._retired, self._forget_retired, self._settle_shared)
        self.ager = Ager(
            maps.flow_table,
            maps.pending_flows,
            settings,
            self.loop.handle,
            pauses=heartbeat.pauses,
            former_resumed_ns=former.resumed_ns,
            retirement=self.retirement,
            is_lost=self.loop.is_lost,
            others=(maps.by_family[6],),
            usage=UsageKeeper(maps.usage, maps.backend_loads),
            traffic=self.figures.traffic,
            flood=maps.by_family[4].flood,
            mover=FlowMover.of(maps, self.plane.drop_previous, self.loop.is_lost),
        )

    def _watch(self, undo: contextlib.AsyncExitStack, addrs: Iterable[int]) -> None:
        paths = ReplyPaths(
            self.state.maps.by_family.values(),
            Reinjector(self.plane.entry, self.state.reinject_mark ^ 1),
        )

        def back(link: netlink.LinkInfo, former: Collection[int]) -> None:
            self.handoff.look(briefly=True)
            self.tasks.spawn(paths.lead(link, former), "reply paths")

        self.attachments.watch(self.network, back)
        watcher = netlink.PathWatcher(self.network.path_changed, self.attachments.link_changed)
        watcher.start(addrs)
        undo.callback(watcher.close)
        self.watcher = watcher
        self.network.resolution = watcher.resolution

    # Taking over, and leaving behind

    def _find_former(self, undo: contextlib.AsyncExitStack) -> None:
        options = self.options
        former = takeover.find_former(options.pins, options.interfaces, options.mode)
        self._former = former
        if former is not None:
            undo.callback(former.close)
            self.number(*former.renumber(self.config, self._sizes))
            adoption.require_room(former, self._sizes())

    def _adopt(
        self, former: adoption.Former, sizes: Sizes, undo: contextlib.AsyncExitStack
    ) -> None:
        def taken(plane: DataPlane) -> None:
            self.plane = plane
            undo.callback(plane.close)
            # From here on connections are not cut because the rest does not work.
            self._leave_behind = True
            undo.callback(self._unpin)

        with held():
            takeover.switch(former, make_loader(self.options.loader), sizes, taken)
        self._make_attachments().adopt(former.links.values())
        takeover.report(former, self.plane.pin_dir, list(self._retired))

    def _stays(self) -> bool:
        """Whether the data plane goes on when this daemon ends."""
        return self._leave_behind and self.plane.owns_pins()

    def takes_away(self) -> bool:
        """Whether everything goes with this daemon."""
        return not self._leave_behind and self.plane.owns_pins()

    def _unpin(self) -> None:
        if not self._leave_behind:
            self.plane.unpin()

    # What has happened

    def _forget_retired(self, backend: Backend) -> None:
        self.engine.standing.forget_retired(backend.id)
        self.network.forget_retired(backend)
        self.state.forget_backend(backend)

    def _settle_shared(self) -> None:
        self.state.settle_shared()
        self.tell_stateless()

    def tell_stateless(self) -> None:
        """Log which services wait for others' flows to end, if these are others than before."""
        self._stateless.tell(self.state.stateless_waiting())

    def _control_fault(self, command: str, error: Exception) -> None:
        _log.error("control_fault", command=command, error=repr(error))

    def _is_quiet(self) -> bool:
        return self.engine.open_decisions <= QUIET and not self._control.connections


async def run(config: RouterConfig, options: AttachOptions, signals: Signals) -> None:
    """Attach and serve until SIGTERM or SIGINT. Raises what kept it from starting."""
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(log_fault)
    router = Router(config, options)
    signals.connect(stop, router.reconfiguration.hang_up, lambda: hurry_gateway(router))
    async with contextlib.AsyncExitStack() as undo:
        await router.serve(undo, stop)
        event = "leaving_attached" if options.persist else "detaching"
        _log.info(event, interfaces=list(options.interfaces))
    _log.info("stopped")
