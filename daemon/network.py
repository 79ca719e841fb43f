# SPDX-License-Identifier: Apache-2.0
"""What the network reports, brought to those whom it concerns: engine, maps, probe sender."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import structlog

from xdp_router.adapters.netlink import LinkEvent, LinkInfo, Path, Resolution
from xdp_router.adapters.probe_socket import ProbeTarget
from xdp_router.core.events import BackendPath, BackendState, Event
from xdp_router.core.model import Backend

from .executor import Executor
from .kernel_state import KernelState

_log = structlog.get_logger()


class Handoff(Protocol):
    """What hand-off to the kernel means for a path, see ``daemon/handoff.py``."""

    def takes_frames(self, ifindex: int) -> bool:
        """Whether XDP can send by an interface."""

    def unusable(self, egress: int, egresses: Collection[int]) -> str:
        """Why new flows must not go out by ``egress``; empty: they may."""


class Network:
    """Paths to the backends and state of the attached interfaces, as last reported.

    ``handle`` gives the engine an event. A backend counts as up while there is a path to it
    by an attached interface.
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        state: KernelState,
        executor: Executor,
        handle: Callable[[Event], None],
        retired: Iterable[Backend] = (),
    ) -> None:
        """``retired``: backends that keep their flows, and that the engine does not know."""
        self._state = state
        self._executor = executor
        self._handle = handle
        self._by_addr: dict[int, list[Backend]] = {}
        for backend in backends:
            self._by_addr.setdefault(backend.endpoint.addr, []).append(backend)
        self._retired: dict[int, list[Backend]] = {}
        for backend in retired:
            self._retired.setdefault(backend.endpoint.addr, []).append(backend)
        self._names: dict[int, str] = {}  # of the attached interfaces
        self._reported: dict[int, tuple[Path | None, str]] = {}  # by address
        self._latest: dict[int, tuple[Path | None, str]] = {}  # by address, if it is attached
        self._via: dict[int, int] = {}  # by address: the attached interface that led there last
        self._lost_by: dict[int, str] = {}  # by address: that interface's name, when it is gone
        self._written: dict[int, tuple[Path | None, str, bool]] = {}
        self.handoff: Handoff | None = None
        self.resolution: Callable[[int], Resolution | None] = lambda addr: None
        """What is known of the way to an address, path or not."""
        self.paths: dict[int, tuple[Path | None, str]] = {}
        """By backend id: its path, and why it is down, if it is; None: it has none."""
        self.by_kernel: set[int] = set()
        """Ids of backends whose packets are left to the kernel."""

    def attached(self, link: LinkInfo) -> None:
        """An interface is, or is about to be, attached: what arrives there may be ours."""
        self._names[link.ifindex] = link.name
        self._state.set_interface(link)
        for addr, (path, reason) in list(self._reported.items()):
            if path is not None and path.ifindex == link.ifindex:
                self.path_changed(addr, path, reason)

    def interface_coming(self, link: LinkInfo) -> None:
        """An interface is about to be attached; no path by it counts before it is."""
        self._state.set_interface(link)

    def interface_not_coming(self, link: LinkInfo) -> None:
        """It was not attached after all."""
        self._state.forget_interface(link.ifindex)

    def interface_gone(self, ifindex: int, name: str) -> None:
        """An attached interface is no more: nothing arrives there, nothing leaves by it."""
        self._names.pop(ifindex, None)
        for addr in [addr for addr, via in self._via.items() if via == ifindex]:
            del self._via[addr]
            self._lost_by[addr] = name
            self.path_changed(addr, None, f"interface {name} is gone")
        self._executor.forget_interface(ifindex)
        self._state.forget_interface(ifindex)

    def interface_name(self, ifindex: int) -> str:
        """Name of an attached interface; the number of another one."""
        return self._names.get(ifindex, str(ifindex))

    def path_changed(self, addr: int, path: Path | None, reason: str) -> None:
        """The way to the backends at ``addr`` is now ``path``; None: lost, for ``reason``."""
        self._reported[addr] = path, reason
        if path is not None and path.ifindex not in self._names:
            reason = f"its route leaves by {_name(path.ifindex)}, which is not attached"
            path = None
        elif path is not None:
            self._via[addr] = path.ifindex
            self._lost_by.pop(addr, None)
        elif (lost_by := self._lost_by.get(addr)) and lost_by not in reason:
            reason = f"{reason}: interface {lost_by} is gone"
        self._latest[addr] = (path, reason)
        self._apply(addr)

    def reconsider(self) -> None:
        """Hand-off to the kernel stands otherwise than before: apply that to every path."""
        for addr in list(self._latest):
            self._apply(addr)

    def _is_left_to_kernel(self, addr: int, path: Path | None) -> bool:
        if path is not None:
            return self.handoff is not None and not self.handoff.takes_frames(path.ifindex)
        # The kernel asks for the neighbour again, and keeps the packets until it answers.
        found = self.resolution(addr)
        return found is not None and found.neighbour_lost and found.ifindex in self._names

    def _apply(self, addr: int) -> None:
        path, reason = self._latest[addr]
        kernel = self._is_left_to_kernel(addr, path)
        if path is not None and self.handoff is not None:
            reason = self.handoff.unusable(path.ifindex, set(self._via.values()))
        for backend in self._retired.get(addr, ()):
            self._state.set_path(backend.id, path, kernel)
        for backend in self._by_addr.get(addr, ()):
            if self._written.get(backend.id) == (path, reason, kernel):
                continue
            self._written[backend.id] = (path, reason, kernel)
            self.paths[backend.id] = (path, reason)
            (self.by_kernel.add if kernel else self.by_kernel.discard)(backend.id)
            if path is None or reason:
                # Nobody may choose it any more before its path goes.
                self._handle(BackendState(backend.id, up=False))
                self._set_path(backend, path)
                _log.warning("backend_down", backend=backend.name, reason=reason)
                continue
            self._set_path(backend, path)
            self._handle(BackendPath(backend.id, path.ifindex, path.subnets))
            self._handle(BackendState(backend.id, up=True))
            _log.info(
                "backend_up",
                backend=backend.name,
                interface=self.interface_name(path.ifindex),
                next_hop=path.dmac.hex(":"),
                path="kernel" if kernel else "xdp",
            )

    def link_changed(self, event: LinkEvent) -> None:
        """An attached interface changed; others are nobody's affair here."""
        link = event.link
        if link.ifindex not in self._names:
            return
        self._names[link.ifindex] = link.name
        if event.what in ("mac", "mtu", "address"):
            self._state.set_interface(link)
        _log.info("interface_changed", interface=link.name, what=event.what)

    def _set_path(self, backend: Backend, path: Path | None) -> None:
        self._state.set_path(backend.id, path, backend.id in self.by_kernel)
        endpoint = backend.endpoint
        target = ProbeTarget(path, endpoint.addr, endpoint.port) if path is not None else None
        self._executor.set_target(backend.id, target)


def _name(ifindex: int) -> str:
    try:
        return f"interface {socket.if_indextoname(ifindex)}"
    except OSError:
        return f"interface number {ifindex}"
