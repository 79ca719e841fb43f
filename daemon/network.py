# SPDX-License-Identifier: Apache-2.0
"""What the network reports, brought to those whom it concerns: engine, maps, probe sender."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog

from xdp_router.adapters.netlink import LinkEvent, LinkInfo, Path
from xdp_router.adapters.probe_socket import ProbeTarget
from xdp_router.core.address import format_addr
from xdp_router.core.events import BackendState, Event
from xdp_router.core.model import Backend

from .executor import Executor
from .kernel_state import KernelState
from .logs import Sampler

AT_ONCE = 16
"""Backends of one address that change before the event loop has its turn: about 1 ms."""
NAMED = 32
"""Backends of one address that have a log line each."""
LINES_PER_SECOND = 200

_log = structlog.get_logger()


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
        self._sampler = Sampler(LINES_PER_SECOND)
        self._names: dict[int, str] = {}  # of the attached interfaces
        self._gone: set[int] = set()
        self._known: dict[int, tuple[Path | None, str]] = {}  # by address
        self._turns: dict[int, tuple[tuple[Path | None, str], Iterator[Backend]]] = {}
        self._turn: asyncio.Handle | None = None
        self.paths: dict[int, tuple[Path | None, str]] = {}
        """By backend id: its path, or None and the reason."""

    def attached(self, link: LinkInfo) -> None:
        """An interface is, or is about to be, attached: what arrives there may be ours."""
        self._names[link.ifindex] = link.name
        self._state.set_interface(link)

    def interface_name(self, ifindex: int) -> str:
        """Name of an attached interface; the number of another one."""
        return self._names.get(ifindex, str(ifindex))

    def interface_exists(self, ifindex: int) -> bool:
        """Whether an attached interface has not been deleted since."""
        return ifindex not in self._gone

    def begin(self, paths: Iterable[tuple[int, Path | None, str]]) -> set[int]:
        """Take the first paths, by address, before anybody makes decisions.

        Maps and probes have them afterwards; returns the ids of the backends that are up.
        """
        up = set()
        with self._state.gathered():
            for addr, found, why in paths:
                # One tuple for all: there may be 10,000 on a host.
                path, reason = known = self._known[addr] = self._usable(found, why)
                for backend in self._retired.get(addr, ()):
                    self._state.set_path(backend.id, path)
                for backend in self._by_addr.get(addr, ()):
                    self.paths[backend.id] = known
                    self._set_path(backend, path)
                    self._state.set_up(backend.id, path is not None)
                    if path is not None:
                        up.add(backend.id)
                self._report(addr, path, reason)
        return up

    def path_changed(self, addr: int, path: Path | None, reason: str) -> None:
        """The way to the backends at ``addr`` is now ``path``; None: lost, for ``reason``.

        If there are many of them, they come in turns, and the event loop goes on between.
        """
        path, reason = known = self._usable(path, reason)
        if self._known.get(addr) == known:
            return
        self._known[addr] = known
        for backend in self._retired.get(addr, ()):
            self._state.set_path(backend.id, path)
        self._report(addr, path, reason)
        backends = self._by_addr.get(addr, [])
        if len(backends) <= AT_ONCE:
            for backend in backends:
                self._change(backend, known)
            return
        self._turns[addr] = known, iter(backends)  # whatever was under way is out of date
        self._take_turns()

    def _take_turns(self) -> None:
        if self._turn is None and self._turns:
            self._turn = asyncio.get_running_loop().call_later(0, self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        # Who is gone first: each that is tried in vain costs a client a probe's time.
        lost = (addr for addr, ((path, _), _) in self._turns.items() if path is None)
        addr = next(lost, None) or next(iter(self._turns))
        known, backends = self._turns[addr]
        some = list(itertools.islice(backends, AT_ONCE))
        for backend in some:
            self._change(backend, known)
        if len(some) < AT_ONCE:
            del self._turns[addr]
        self._take_turns()

    def forget_retired(self, backend: Backend) -> None:
        """No flow has this retired backend any more: its path is nobody's affair."""
        there = self._retired[backend.endpoint.addr]
        there.remove(backend)
        if not there:
            del self._retired[backend.endpoint.addr]

    def close(self) -> None:
        """Let go of changes that wait for their turn."""
        self._turns.clear()

    def _usable(self, path: Path | None, reason: str) -> tuple[Path | None, str]:
        if path is not None and path.ifindex not in self._names:
            reason = f"its route leaves by interface number {path.ifindex}, which is not attached"
            return None, reason
        return path, reason

    def _change(self, backend: Backend, known: tuple[Path | None, str]) -> None:
        path, _ = self.paths[backend.id] = known
        if path is None:
            # Nobody may choose it any more before its path goes.
            self._handle(BackendState(backend.id, up=False))
            self._set_path(backend, None)
        else:
            self._set_path(backend, path)
            self._handle(BackendState(backend.id, up=True))

    def _report(self, addr: int, path: Path | None, reason: str) -> None:
        backends = self._by_addr.get(addr, [])
        for backend in backends[:NAMED]:
            if not self._sampler.take(time.monotonic_ns()):
                continue
            line: dict[str, Any] = {"backend": backend.name}
            if len(backends) > NAMED:  # one line for all that one host has
                line = {"backends": len(backends), "address": format_addr(addr), **line}
            skipped = self._sampler.skipped()
            if skipped:
                line["lines_skipped"] = skipped
            if path is None:
                _log.warning("backend_down", reason=reason, **line)
            else:
                via = self.interface_name(path.ifindex)
                _log.info("backend_up", interface=via, next_hop=path.dmac.hex(":"), **line)
            if len(backends) > NAMED:
                return

    def link_changed(self, event: LinkEvent) -> None:
        """An interface changed; others than the attached ones are nobody's affair here."""
        link = event.link
        if link.ifindex not in self._names:
            return
        self._names[link.ifindex] = link.name
        if event.what == "deleted":
            _log.error(
                "interface_gone",
                interface=link.name,
                mend="when it is back, stop the daemon and start it again",
            )
            self._gone.add(link.ifindex)
            self._executor.forget_interface(link.ifindex)
            return
        if event.what == "mac":
            self._state.set_interface(link)
        _log.info("interface_changed", interface=link.name, what=event.what)

    def _set_path(self, backend: Backend, path: Path | None) -> None:
        self._state.set_path(backend.id, path)
        endpoint = backend.endpoint
        target = ProbeTarget(path, endpoint.addr, endpoint.port) if path is not None else None
        self._executor.set_target(backend.id, target)
