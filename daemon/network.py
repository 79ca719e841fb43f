# SPDX-License-Identifier: Apache-2.0
"""What the network reports, brought to those whom it concerns: engine, maps, probe sender."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from xdp_router.adapters.connection_probes import ConnectionTarget, connection_target
from xdp_router.adapters.netlink import LinkEvent, LinkInfo, Path, Resolution
from xdp_router.adapters.probe_frames import probe_target
from xdp_router.adapters.probe_socket import Target
from xdp_router.core.address import family_of, format_addr
from xdp_router.core.events import BackendPath, BackendState, Event
from xdp_router.core.model import CONNECTIONS, Backend

from .direct_paths import Known, usable
from .executor import Executor
from .kernel_state import KernelState
from .logs import Sampler

AT_ONCE = 16
"""Backends that change before the event loop has its turn: about 1 ms."""
JUDGED = 256
"""Addresses that are looked at before that: about 1 ms."""
NAMED = 32
"""Backends of one address that have a log line each."""
LINES_PER_SECOND = 200


@dataclass(slots=True)
class _Change:
    """What is known of an address, and the backends there that are still to have it."""

    known: Known
    backends: Iterator[Backend]
    told: bool = False
    """Whether it is in the log."""


_log = structlog.get_logger()


class Handoff(Protocol):
    """What hand-off to the kernel means for a path, see ``daemon/handoff.py``."""

    def takes_frames(self, ifindex: int) -> bool:
        """Whether XDP can send by an interface."""

    def unusable(self, egress: int, egresses: Collection[int], family: int) -> str:
        """Why new flows of a family must not go out by ``egress``; empty: they may."""


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
        """``retired``: backends that keep their flows, and that the engine has never known."""
        self._state = state
        self._executor = executor
        self._handle = handle
        self._by_addr = _by_addr(backends)
        self._retired = _by_addr(retired)
        self._formerly: set[int] = set()
        """Ids of the retired ones that the engine has known, which looks at their health still."""
        self._sampler = Sampler(LINES_PER_SECOND)
        self._names: dict[int, str] = {}  # of the attached interfaces
        self._reported: dict[int, tuple[Path | None, str]] = {}  # by address
        self._latest: dict[int, tuple[Path | None, str]] = {}  # by address, if it is attached
        self._via: dict[int, int] = {}  # by address: the attached interface that led there last
        self._egresses: Counter[int] = Counter()  # how many addresses each of these leads to
        self._lost_by: dict[int, str] = {}  # by address: that interface's name, when it is gone
        self._known: dict[int, Known] = {}  # by address: what the backends have, or will have
        # Ordered ones, because the first of a plain dict is ever farther away.
        self._unjudged: OrderedDict[int, None] = OrderedDict()  # addresses
        self._untold: dict[int, bool] = {}
        """By address whose neighbour had not answered when it was first heard of, and who is not
        said to be down for that: whether it was heard of again."""
        self._lost: OrderedDict[int, _Change] = OrderedDict()  # by address: who has to go down
        self._turns: OrderedDict[int, _Change] = OrderedDict()  # by address: the others
        self._left = 0
        """Backends that may still change before the event loop has its turn."""
        self._turn: asyncio.Handle | None = None
        self._vlan_ignored: set[int] = set()  # ids of backends of which that was told
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
        for addr, (path, _) in self._reported.items():
            if path is not None and link.ifindex in _interfaces(path):
                self._unjudged[addr] = None
        self._judge_now()

    def interface_coming(self, link: LinkInfo) -> None:
        """An interface is about to be attached; no path by it counts before it is."""
        self._state.set_interface(link)

    def interface_not_coming(self, link: LinkInfo) -> None:
        """It was not attached after all."""
        self._state.forget_interface(link.ifindex)

    def interface_gone(self, ifindex: int, name: str) -> None:
        """An attached interface is no more: nothing arrives there, nothing leaves by it."""
        self._names.pop(ifindex, None)
        reason = f"interface {name} is gone"
        for addr in [addr for addr, via in self._via.items() if via == ifindex]:
            self._lead(addr, None)
            self._lost_by[addr] = name
            path, _ = self._reported[addr]
            if path is None or ifindex in _interfaces(path):
                self._reported[addr] = None, reason
            self._unjudged[addr] = None
        self._judge_now()
        self._executor.forget_interface(ifindex)
        self._state.forget_interface(ifindex)

    def interface_name(self, ifindex: int) -> str:
        """Name of an attached interface; the number of another one."""
        return self._names.get(ifindex, str(ifindex))

    def begin(
        self, paths: Iterable[tuple[int, Path | None, str]], held_back: Collection[int] = ()
    ) -> set[int]:
        """Take the first paths, by address, before anybody makes decisions.

        Maps and probes have them afterwards; returns the ids of the backends that are up. Of those
        in ``held_back`` XDP is not told so.
        """
        for addr, path, reason in paths:
            self._note(addr, path, reason)
        up = set()
        with self._state.gathered():
            for addr in self._latest:
                # One tuple for all: there may be 10,000 on a host.
                known = self._known[addr] = self._judge(addr)
                self._set_retired(addr, known)
                for backend in self._by_addr.get(addr, ()):
                    path, reason = self._set_path(backend, known)
                    is_up = path is not None and not reason
                    self._state.set_up(backend.id, is_up and backend.id not in held_back)
                    if path is not None:
                        self._handle(BackendPath(backend.id, path.ifindex, path.subnets))
                        if not reason:
                            up.add(backend.id)
                if self._next_hop_is_lost(addr):
                    self._untold[addr] = False
                else:
                    self._report(addr, known)
        return up

    def change(self, backends: Iterable[Backend], retired: Iterable[Backend]) -> None:
        """Have these backends from now on, whom engine and maps know already.

        Those of an address that is known get its path at once, or in their turn.
        """
        before = {each.id: each for there in self._by_addr.values() for each in there}
        egresses = set(self._egresses)
        self._by_addr, self._retired = _by_addr(backends), _by_addr(retired)
        addrs = self._by_addr.keys() | self._retired.keys()
        for addr in self._reported.keys() - addrs:
            self._forget(addr)
        now = {each.id for there in self._by_addr.values() for each in there}
        self._formerly |= before.keys()
        self._formerly &= {each.id for there in self._retired.values() for each in there}
        for gone in before.keys() - now:
            self.paths.pop(gone, None)
            self.by_kernel.discard(gone)
            self._vlan_ignored.discard(gone)
        for addr, known in self._known.items():
            queue = next((each for each in (self._lost, self._turns) if addr in each), None)
            if queue is not None:  # whoever is left there may be another one by now
                queue[addr] = _Change(known, iter(self._by_addr.get(addr, ())), queue[addr].told)
                continue
            there = self._by_addr.get(addr, ())
            changed = [
                each for each in there if (was := before.get(each.id)) is not each and was != each
            ]
            if len(changed) > AT_ONCE:
                self._turns[addr] = _Change(known, iter(changed), told=True)
                continue
            for backend in changed:
                self._change(backend, known)
        if self._egresses.keys() != egresses:
            self.reconsider()
        self._take_turns()

    def path_changed(self, addr: int, path: Path | None, reason: str) -> None:
        """The way to the backends at ``addr`` is now ``path``; None: lost, for ``reason``.

        If there are many of them, they come in turns, and the event loop goes on between. So it
        is with all that concerns many addresses.
        """
        if addr in self._by_addr or addr in self._retired:
            if addr in self._untold:
                self._untold[addr] = True
            elif addr not in self._reported and path is None and self._next_hop_is_lost(addr):
                self._untold[addr] = False
            self._reported[addr] = path, reason
            self._unjudged[addr] = None
            self._judge_now()

    def reconsider(self) -> None:
        """Hand-off to the kernel stands otherwise than before: apply that to every path."""
        self._unjudged.update(dict.fromkeys(self._latest))
        self._judge_now()

    def forget_retired(self, backend: Backend) -> None:
        """No flow has this retired backend any more: its path is nobody's affair."""
        self._formerly.discard(backend.id)
        self._executor.set_target(backend.id, None)
        addr = backend.endpoint.addr
        there = self._retired[addr]
        there.remove(backend)
        if there:
            return
        del self._retired[addr]
        if addr not in self._by_addr:
            egresses = set(self._egresses)
            self._forget(addr)
            if self._egresses.keys() != egresses:
                self.reconsider()

    def _forget(self, addr: int) -> None:
        known: tuple[dict[int, Any], ...] = (
            *(self._reported, self._latest, self._known, self._lost_by, self._unjudged),
            *(self._lost, self._turns, self._untold),
        )
        for each in known:
            each.pop(addr, None)
        self._lead(addr, None)

    def close(self) -> None:
        """Let go of changes that wait for their turn."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        for waiting in (self._unjudged, self._lost, self._turns):
            waiting.clear()

    def link_changed(self, event: LinkEvent) -> None:
        """An attached interface changed; others are nobody's affair here."""
        link = event.link
        if link.ifindex not in self._names:
            return
        self._names[link.ifindex] = link.name
        if event.what in ("mac", "mtu", "address"):
            self._state.set_interface(link)
        _log.info("interface_changed", interface=link.name, what=event.what)

    # What is known of an address

    def _note(self, addr: int, path: Path | None, reason: str) -> None:
        self._reported[addr] = path, reason
        if path is not None and path.ifindex not in self._names and self._is_below(path):
            path = path.by_interface_below()
        if path is not None and path.ifindex not in self._names:
            reason = f"its route leaves by {_name(path.ifindex)}, which is not attached"
            path = None
        elif path is not None:
            self._lead(addr, path.ifindex)
            self._lost_by.pop(addr, None)
        elif (lost_by := self._lost_by.get(addr)) and lost_by not in reason:
            reason = f"{reason}: interface {lost_by} is gone"
        self._latest[addr] = path, reason

    def _is_below(self, path: Path) -> bool:
        return path.below is not None and path.below.ifindex in self._names

    def _lead(self, addr: int, ifindex: int | None) -> None:
        before = self._via.pop(addr, None)
        if ifindex is not None:
            self._via[addr] = ifindex
            self._egresses[ifindex] += 1
        if before is not None:
            self._egresses[before] -= 1
            if not self._egresses[before]:
                del self._egresses[before]

    def _judge(self, addr: int) -> Known:
        path, reason = self._latest[addr]
        if path is not None and self.handoff is not None:
            reason = self.handoff.unusable(path.ifindex, self._egresses, family_of(addr))
        return (path, reason), self._is_left_to_kernel(addr, path)

    def _is_left_to_kernel(self, addr: int, path: Path | None) -> bool:
        if path is not None:
            return self.handoff is not None and not self.handoff.takes_frames(path.ifindex)
        # The kernel asks for the neighbour again, and keeps the packets until it answers.
        return self._next_hop_is_lost(addr)

    def _next_hop_is_lost(self, addr: int) -> bool:
        found = self.resolution(addr)
        return found is not None and found.neighbour_lost and found.ifindex in self._names

    # Bringing it to the backends

    def _judge_now(self) -> None:
        """At once as far as it takes no time, unless others wait for their turn already."""
        if self._turn is None:
            self._left = AT_ONCE
            self._judge_some()
        self._take_turns()

    def _judge_some(self) -> None:
        for _ in range(JUDGED):
            if not self._unjudged:
                break
            addr, _nothing = self._unjudged.popitem(last=False)
            before = set(self._egresses)
            self._note(addr, *self._reported[addr])
            self._apply(addr)
            if self._egresses.keys() != before:
                # By which interfaces clients come follows from where backends are.
                self._unjudged.update(dict.fromkeys(self._latest))

    def _apply(self, addr: int) -> None:
        known = self._judge(addr)
        heard_again = self._untold.get(addr)
        if heard_again:
            del self._untold[addr]
        is_told = heard_again is not False
        if self._known.get(addr) == known:
            if heard_again:
                self._report(addr, known)
            return
        self._known[addr] = known
        path, reason = known[0]
        self._set_retired(addr, known)
        self._lost.pop(addr, None)  # whatever was under way is out of date
        self._turns.pop(addr, None)
        backends = self._by_addr.get(addr, [])
        if len(backends) <= self._left:
            self._left -= len(backends)
            if is_told:
                self._report(addr, known)
            for backend in backends:
                self._change(backend, known)
            return
        # Who is gone first: each that is tried in vain costs a client a probe's time.
        queue = self._lost if path is None or reason else self._turns
        queue[addr] = _Change(known, iter(backends), told=not is_told)

    def _take_turns(self) -> None:
        if self._turn is None and (self._unjudged or self._lost or self._turns):
            self._turn = asyncio.get_running_loop().call_later(0, self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        self._left = 0  # each has its place in the order
        self._judge_some()
        left = AT_ONCE
        while left and (queue := self._lost or self._turns):
            addr = next(iter(queue))
            change = queue[addr]
            if not change.told:
                change.told = True
                self._report(addr, change.known)
            some = list(itertools.islice(change.backends, left))
            for backend in some:
                self._change(backend, change.known)
            if len(some) < left:
                del queue[addr]
            left -= len(some)
        self._take_turns()

    def _change(self, backend: Backend, known: Known) -> None:
        path, reason = self._usable(backend, known)[0]
        if path is None or reason:
            # Nobody may choose it any more before its path goes.
            lost = path is None and self._next_hop_is_lost(backend.endpoint.addr)
            self._handle(BackendState(backend.id, up=False, lost=lost))
            self._set_path(backend, known)
        else:
            self._set_path(backend, known)
            self._handle(BackendPath(backend.id, path.ifindex, path.subnets))
            self._handle(BackendState(backend.id, up=True))

    def _usable(self, backend: Backend, known: Known) -> Known:
        return usable(backend, known, self.interface_name)

    def _set_retired(self, addr: int, known: Known) -> None:
        for backend in self._retired.get(addr, ()):
            (path, reason), kernel = self._usable(backend, known)
            self._state.set_path(backend.id, path, kernel)
            if backend.id in self._formerly:
                self._aim(backend, path)
                is_up = path is not None and not reason
                lost = path is None and self._next_hop_is_lost(addr)
                self._handle(BackendState(backend.id, is_up, lost))

    def _set_path(self, backend: Backend, known: Known) -> tuple[Path | None, str]:
        """Bring what is known to a backend; returns its path, and why it is unusable."""
        known = self._usable(backend, known)
        (path, reason), kernel = known
        self.paths[backend.id] = known[0]
        (self.by_kernel.add if kernel else self.by_kernel.discard)(backend.id)
        self._state.set_path(backend.id, path, kernel)
        if path is not None and backend.vlan is not None:
            is_own = path.tag(backend.vlan) == backend.vlan
            if not is_own and backend.id not in self._vlan_ignored:
                self._vlan_ignored.add(backend.id)
                _log.warning(
                    "vlan_ignored",
                    backend=backend.name,
                    reason=f"{self.interface_name(path.ifindex)} is a VLAN interface, which puts "
                    f"its own tag on: frames with {backend.vlan} as well would have two",
                    mend="remove vlan from the backend, or attach the interface below instead",
                )
        self._aim(backend, path)
        return path, reason

    def _aim(self, backend: Backend, path: Path | None) -> None:
        """Have its probes go this way, behind its tag."""
        target: Target | ConnectionTarget | None = None
        if path is not None and backend.vlan is not None:
            path = dataclasses.replace(path, vlan=path.tag(backend.vlan))
        if path is not None and backend.probe.kind in CONNECTIONS:
            target = connection_target(path.ifindex, backend)
        elif path is not None:
            target = probe_target(path, backend)
        self._executor.set_target(backend.id, target)

    def _report(self, addr: int, known: Known) -> None:
        backends = self._by_addr.get(addr, [])
        together = len(backends) > NAMED  # one line for all that one host has
        for backend in backends[: 1 if together else NAMED]:
            (path, reason), kernel = self._usable(backend, known)
            if not self._sampler.take(time.monotonic_ns()):
                continue
            line: dict[str, Any] = {"backend": backend.name}
            if together:
                line = {"backends": len(backends), "address": format_addr(addr), **line}
            skipped = self._sampler.skipped()
            if skipped:
                line["lines_skipped"] = skipped
            if path is None or reason:
                _log.warning("backend_down", reason=reason, **line)
            else:
                _log.info(
                    "backend_up",
                    interface=self.interface_name(path.ifindex),
                    next_hop=path.dmac.hex(":"),
                    path="kernel" if kernel else "xdp",
                    **line,
                )


def _by_addr(backends: Iterable[Backend]) -> dict[int, list[Backend]]:
    found: dict[int, list[Backend]] = {}
    for backend in backends:
        found.setdefault(backend.endpoint.addr, []).append(backend)
    return found


def _interfaces(path: Path) -> set[int]:
    """Those that can bring its frames there."""
    return {path.ifindex} | ({path.below.ifindex} if path.below is not None else set())


def _name(ifindex: int) -> str:
    try:
        return f"interface {socket.if_indextoname(ifindex)}"
    except OSError:
        return f"interface number {ifindex}"
