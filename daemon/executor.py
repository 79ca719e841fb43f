# SPDX-License-Identifier: Apache-2.0
"""Carries out the engine's commands and reports what came of them.

Hot: a held first packet passes through here twice (binding, re-injection).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence

from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.probe_socket import ProbeSocket, ProbeTarget
from xdp_router.adapters.reinject import XDP_PASS, XDP_REDIRECT, Reinjector
from xdp_router.adapters.routed_socket import RoutedSocket
from xdp_router.core import abi
from xdp_router.core.commands import (
    Command,
    LogDecision,
    PublishHashTable,
    Reinject,
    SendProbe,
    SetBackendUp,
    WriteBinding,
)
from xdp_router.core.errors import AbiError
from xdp_router.core.events import (
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Event,
    FirstPacket,
    ProbeSent,
    ReplyTupleTaken,
)
from xdp_router.core.model import Backend, Decision

from .kernel_state import KernelState
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
    ) -> None:
        self._state = state
        self._pending = state.maps.pending_flows
        self._flows = state.maps.flow_table
        self._shared = state.shared
        self._backends = {backend.id: backend for backend in backends}
        self._reinjector = reinjector
        self._sender = sender
        self._log_decision = log_decision
        self._routed = RoutedSocket()
        self._targets: dict[int, ProbeTarget] = {}
        self.counters: dict[str, int] = {
            "reinject_failed": 0,
            "reinject_not_forwarded": 0,
            "probe_without_path": 0,
            "reply_tuple_freed": 0,
        }

    def set_target(self, backend: int, target: ProbeTarget | None) -> None:
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
        elif isinstance(command, SetBackendUp):
            self._state.set_up(command.backend, command.up)
        elif isinstance(command, PublishHashTable):
            self._state.publish_hash_table(command.service, command.slots)
        return None

    def _send_probe(self, command: SendProbe) -> Event:
        target = self._targets.get(command.backend)
        if target is None:
            self.counters["probe_without_path"] += 1
            sent_ns = 0
        else:
            sent_ns = self._sender.send_probe(target, command.probe_port, command.seq)
        return ProbeSent(command.backend, command.probe_port, command.seq, sent_ns)

    def _write_binding(self, command: WriteBinding) -> Event:
        """REPLY, then FORWARD, both NOEXIST. FORWARD is the arbiter."""
        first = command.first
        backend = self._backends.get(command.backend)
        insert = self._pending.insert_noexist
        own_reply = b""
        if backend is not None:
            reply, value = abi.pack_reply_pending(first, backend, command.mode, command.reason)
            if command.take_over:
                self.counters["reply_tuple_freed"] += free_reply_tuple(
                    self._state.maps, reply, first.key, time.monotonic_ns()
                )
            code = insert(reply, value)
            if code == errno.EEXIST:
                if not self._is_own_reply(reply, first):
                    return ReplyTupleTaken(first.key, backend.id)
            elif code:
                return BindingFailed(first.key, f"pending_flows, reply: {os.strerror(code)}")
            else:
                own_reply = reply
            if backend.endpoint in self._shared and self._is_in_use(reply, first):
                if own_reply:
                    self._pending.delete(own_reply)
                return ReplyTupleTaken(first.key, backend.id)
        forward, value = abi.pack_forward_pending(
            first, backend, command.mode, command.reason, command.latency_ns
        )
        code = insert(forward, value)
        if not code:
            return BindingWritten(first.key)
        theirs = self._pending.read(forward) if code == errno.EEXIST else None
        taken = abi.unpack_pending(theirs) if theirs is not None else None
        if own_reply and (taken is None or taken.backend != command.backend):
            self._pending.delete(own_reply)
        if taken is not None:
            return BindingTaken(first.key, taken.backend, taken.mode, taken.reason)
        return BindingFailed(first.key, f"pending_flows, forward: {os.strerror(code)}")

    def _is_in_use(self, reply: bytes, first: FirstPacket) -> bool:
        """Whether an established flow of another service owns the reply tuple.

        Its REPLY entry has aged out of ``pending_flows`` long ago.
        """
        raw = self._flows.read(abi.without_kind(reply))
        if raw is None:
            return False
        entry = abi.unpack_flow_entry(raw)
        key = first.key
        return (entry.new_saddr, entry.new_sport) != (key.service_addr, key.service_port)

    def _is_own_reply(self, reply: bytes, first: FirstPacket) -> bool:
        """Whether the REPLY entry that is in the way belongs to this very flow."""
        raw = self._pending.read(reply)
        if raw is None:
            return False
        entry = abi.unpack_pending(raw)
        key = first.key
        return (entry.new_saddr, entry.new_sport) == (key.service_addr, key.service_port)

    def _reinject(self, first: FirstPacket) -> None:
        """Run the held frame through the program, and send what comes out.

        A test run, then AF_PACKET: measured at half the time of a live frame, and it works in
        generic mode and on every driver.
        """
        try:
            verdict, egress, frame = self._reinjector.run(first.frame, first.ifindex)
        except BpfError:
            self.counters["reinject_failed"] += 1
            return
        if verdict == XDP_REDIRECT and egress:
            self._sender.send_frame(egress, frame)
        elif verdict == XDP_PASS and egress == abi.EGRESS_KERNEL:
            if not self._routed.send(frame):
                self.counters["reinject_failed"] += 1
        else:
            # Dropped, and counted by XDP under its reason: the client's retransmit comes.
            self.counters["reinject_not_forwarded"] += 1
