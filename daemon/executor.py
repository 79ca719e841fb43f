# SPDX-License-Identifier: Apache-2.0
"""Carries out the engine's commands and reports what came of them.

Hot: a held first packet passes through here twice (binding, re-injection).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence

from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import FlowTables, PendingFlows
from xdp_router.adapters.connection_probes import ConnectionProbes, ConnectionTarget
from xdp_router.adapters.probe_socket import ProbeSocket, Target
from xdp_router.adapters.reinject import XDP_PASS, XDP_REDIRECT, Reinjector
from xdp_router.adapters.routed_socket import RoutedSocket
from xdp_router.core import abi
from xdp_router.core.commands import (
    Command,
    HealthCommand,
    LogDecision,
    LogEstablished,
    PublishHashTable,
    PublishPickTable,
    Reinject,
    SendProbe,
    SetBackendDead,
    SetBackendDraining,
    SetBackendShare,
    SetBackendUp,
    SetServiceMode,
    WriteBinding,
)
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import AbiError
from xdp_router.core.events import (
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Datagram,
    Event,
    FirstPacket,
    ProbeSent,
    ReplyTupleTaken,
)
from xdp_router.core.held import is_udp
from xdp_router.core.model import Backend, Decision

from .kernel_state import KernelState
from .nat_ports import NO_PORTS, InsertFailed, NatPorts, NoFreePort
from .reply_tuple import free_reply_tuple


class Executor:
    """Executes commands in the network namespace of the attached interfaces.

    ``log_decision`` gets each final decision. ``counters`` says what did not work.
    """

    def __init__(
        self,
        state: KernelState,
        backends: Sequence[Backend],
        reinjector: Reinjector,
        sender: ProbeSocket,
        log_decision: Callable[[Decision], None],
        nat_ports: NatPorts | None = None,
    ) -> None:
        """``nat_ports`` None: no service is fullnat."""
        self._state = state
        self._backends = {backend.id: backend for backend in backends}
        self._reinjector = reinjector
        self._sender = sender
        self._log_decision = log_decision
        self.log_established: Callable[[Decision], None] = lambda _decision: None
        """Gets each decided flow whose handshake is verified."""
        self.about_health: Callable[[HealthCommand], None] = lambda _command: None
        """Gets what is to be done, or said, because of a backend's health."""
        self._routed = RoutedSocket()
        self._nat_ports = nat_ports
        self._targets: dict[int, Target | ConnectionTarget] = {}
        self.connections: ConnectionProbes | None = None
        """What makes probes that are connections; None: there are no such backends."""
        self.counters: dict[str, int] = {
            "reinject_failed": 0,
            "reinject_not_forwarded": 0,
            "probe_without_path": 0,
            "reply_tuple_freed": 0,
            **NO_PORTS,
        }
        if nat_ports is not None:
            nat_ports.counters = self.counters

    def change(self, config: RouterConfig, retired: Iterable[Backend] = ()) -> None:
        """Have the backends of this configuration from now on. Those of ``retired`` get no flows,
        and are probed still."""
        self._backends = {
            backend.id: backend for service in config.services for backend in service.backends
        }
        probed = {each.id for each in retired} | self._backends.keys()
        for gone in self._targets.keys() - probed:
            del self._targets[gone]
        if self._nat_ports is not None:
            self._nat_ports.change(config)

    def set_target(self, backend: int, target: Target | ConnectionTarget | None) -> None:
        """Set where a backend's probes go; None: nowhere."""
        if target is None:
            self._targets.pop(backend, None)
        else:
            self._targets[backend] = target

    def forget_interface(self, ifindex: int) -> None:
        """An interface is gone: nothing can be sent there any more."""
        self._sender.forget(ifindex)

    def close(self) -> None:
        """Close what was opened. Calling it again does nothing."""
        self._routed.close()

    def execute(self, command: Command) -> Event | None:
        """Carry out one command. Returns the event that answers it, if it has one."""
        if isinstance(command, WriteBinding):
            try:
                return self._write_binding(command)
            except (BpfError, AbiError) as error:
                # Told like any other refusal, or the decision would stay open for ever.
                return BindingFailed(command.first.key, str(error))
        if isinstance(command, Reinject):
            self._reinject(command.first)
        elif isinstance(command, SendProbe):
            return self._send_probe(command)
        elif isinstance(command, LogDecision):
            self._log_decision(command.decision)
        elif isinstance(command, LogEstablished):
            self.log_established(command.decision)
        elif isinstance(command, SetBackendUp):
            self._state.set_up(command.backend, command.up)
        elif isinstance(command, SetBackendDraining):
            self._state.set_draining(command.backend, command.draining)
        elif isinstance(command, SetBackendDead):
            self._state.set_flag(command.backend, abi.BACKEND_DEAD, command.dead)
        elif isinstance(command, SetBackendShare):
            self._state.set_share(command.backend, command.share)
        elif isinstance(command, PublishHashTable):
            self._state.publish_hash_table(command.service, command.slots)
        elif isinstance(command, PublishPickTable):
            self._publish_picks(command)
        elif isinstance(command, SetServiceMode):
            self._state.set_mode(command.service, command.mode)
        else:
            self.about_health(command)
        return None

    def _publish_picks(self, command: PublishPickTable) -> None:
        if not self._state.is_lost():
            tables = self._state.maps.pick_tables
            tables.publish(command.service, command.slots, command.made_ns)

    def _send_probe(self, command: SendProbe) -> Event:
        target = self._targets.get(command.backend)
        if target is None:
            self.counters["probe_without_path"] += 1
            sent_ns = 0
        elif isinstance(target, ConnectionTarget):
            made = self.connections
            sent_ns = made.ask(target, command.probe_port, command.seq) if made else 0
        else:
            sent_ns = self._sender.send_probe(target, command.probe_port, command.seq)
        return ProbeSent(command.backend, command.probe_port, command.seq, sent_ns)

    def _write_binding(self, command: WriteBinding) -> Event:
        """REPLY, then FORWARD, both NOEXIST. FORWARD is the arbiter."""
        first = command.first
        backend = self._backends.get(command.backend)
        tables = self._state.maps.flows_of(first.key.service_addr)
        pending = tables.pending
        insert = pending.insert_noexist
        own_reply, source = b"", None
        if backend is not None and self._nat_ports and self._nat_ports.has(backend):
            try:
                own_reply, source = self._nat_ports.take(
                    tables, command, backend, self._state.vlan(backend.id)
                )
            except NoFreePort:
                return ReplyTupleTaken(first.key, backend.id)
            except InsertFailed as error:
                return BindingFailed(first.key, f"pending_flows, reply: {error}")
        elif backend is not None:
            vlan = self._state.vlan(backend.id)
            reply, value = abi.pack_reply_pending(
                first, backend, command.mode, command.reason, vlan=vlan
            )
            if command.take_over:
                self.counters["reply_tuple_freed"] += free_reply_tuple(
                    self._state.maps, reply, first.key, time.monotonic_ns()
                )
            code = insert(reply, value)
            if code == errno.EEXIST:
                if not _is_own_reply(pending, reply, first):
                    return ReplyTupleTaken(first.key, backend.id)
            elif code:
                return BindingFailed(first.key, f"pending_flows, reply: {os.strerror(code)}")
            else:
                own_reply = reply
            if backend.endpoint in self._state.shared and (
                _is_in_use(tables, reply, first)
                or (_is_floods(tables, reply, first) and not self._is_left_over())
            ):
                if own_reply:
                    pending.delete(own_reply)
                return ReplyTupleTaken(first.key, backend.id)
        forward, value = abi.pack_forward_pending(
            first, backend, command.mode, command.reason, command.latency_ns, source
        )
        code = insert(forward, value)
        theirs = None
        if not code:
            # Another look-up, after ours is there: see ebpf/lib/flood.h.
            flood = tables.flood
            theirs = flood.read(forward) if flood is not None else None
            if flood is not None and theirs is not None and self._is_left_over():
                flood.delete(forward)
                theirs = None
            if theirs is None:
                return BindingWritten(first.key)
            pending.delete(forward)
            if own_reply:
                pending.delete(own_reply)
                own_reply = b""
        elif code == errno.EEXIST:
            theirs = pending.read(forward)
        taken = abi.unpack_pending(theirs) if theirs is not None else None
        if own_reply and (taken is None or abi.pending_reply_key(first.key, taken) != own_reply):
            pending.delete(own_reply)
        if taken is not None:
            return BindingTaken(first.key, taken.backend, taken.mode, taken.reason)
        return BindingFailed(first.key, f"pending_flows, forward: {os.strerror(code)}")

    def _is_left_over(self) -> bool:
        """Whether what ``flood_flows`` has is of an earlier flood: XDP looks there no more.

        As ``flood_lately`` of ebpf/lib/flood.h. Who decides there says so in ``pressure`` first.
        """
        maps = self._state.maps
        return maps.pressure.flood_until_ns() <= maps.control.read().heartbeat_ns

    def _reinject(self, first: FirstPacket | Datagram) -> None:
        """Run the held frame through the program, and send what comes out.

        A test run, then AF_PACKET: measured at half the time of a live frame, and it works in
        generic mode and on every driver.
        """
        try:
            self._send_on(*self._reinjector.run(first.frame, first.ifindex))
            if is_udp(first.key):
                self._reinjector.left()
        except BpfError:
            self.counters["reinject_failed"] += 1

    def _send_on(self, verdict: int, egress: int, frame: bytes) -> None:
        if verdict == XDP_REDIRECT and egress:
            self._sender.send_frame(egress, frame)
        elif verdict == XDP_PASS and egress == abi.EGRESS_KERNEL:
            if not self._routed.send(frame):
                self.counters["reinject_failed"] += 1
        else:
            # Dropped, and counted by XDP under its reason: the client's retransmit comes.
            self.counters["reinject_not_forwarded"] += 1


def _is_in_use(tables: FlowTables, reply: bytes, first: FirstPacket) -> bool:
    """Whether an established flow of another service owns the reply tuple.

    Its REPLY entry has aged out of ``pending_flows`` long ago.
    """
    raw = tables.flows.read(abi.without_kind(reply))
    if raw is None:
        return False
    entry = abi.unpack_flow_entry(raw)
    key = first.key
    return (entry.new_saddr, entry.new_sport) != (key.service_addr, key.service_port)


def _is_floods(tables: FlowTables, reply: bytes, first: FirstPacket) -> bool:
    """Whether a flow of another service has the reply tuple in ``flood_flows``."""
    if tables.flood is None or tables.flood.read(reply) is None:
        return False
    return not _is_own_reply(tables.flood, reply, first)


def _is_own_reply(pending: PendingFlows, reply: bytes, first: FirstPacket) -> bool:
    """Whether the REPLY entry that is in the way belongs to this very flow."""
    raw = pending.read(reply)
    if raw is None:
        return False
    entry = abi.unpack_pending(raw)
    key = first.key
    return (entry.new_saddr, entry.new_sport) == (key.service_addr, key.service_port)
