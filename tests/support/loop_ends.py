# SPDX-License-Identifier: Apache-2.0
"""What stands at the two ends of the event loop: records by hand, an executor that notes."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from tests.support.cast import BACKENDS, T0, sequence, service
from xdp_router.core import abi
from xdp_router.core.commands import Command, Reinject, SendProbe, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendState, BindingWritten, Event, ProbeSent
from xdp_router.core.model import NO_BACKEND, FlowKey, ProbeAnswer, Reason
from xdp_router.core.selection import build_table

NOTHING = abi.EventHeader(
    time_ns=0,
    key=FlowKey(0, 0, 0, 0),
    service=0,
    backend=NO_BACKEND,
    ifindex=1,
    seq=0,
    frame_len=0,
    type=0,
    detail=0,
    reason=Reason.NONE,
    wscale=0,
    syn_data=0,
    fppl_ns=0,
    synack_us=0,
    seen_ns=0,
)


def record(kind: abi.EventType, frame: bytes = b"", **fields: Any) -> bytes:
    """A record as XDP writes it; a frame is as long as a frame is at least."""
    head = dataclasses.replace(
        NOTHING, type=kind, frame_len=max(len(frame), 14) if frame else 0, **fields
    )
    return abi.pack_event(head, frame.ljust(head.frame_len))


def engine_with_backends_up() -> Engine:
    """An engine with one service and two backends that may be chosen."""
    engine = Engine([service()], EngineSettings(), sequence, build_table)
    for backend in BACKENDS[:2]:
        engine.handle(BackendState(backend.id, True), 0)
    return engine


def probe_answer(command: SendProbe, time_ns: int = 0) -> bytes:
    """The record of a SYN-ACK to a probe."""
    endpoint = BACKENDS[command.backend - BACKENDS[0].id].endpoint
    return record(
        abi.EventType.PROBE_REPLY,
        time_ns=time_ns or time.monotonic_ns(),
        key=FlowKey(endpoint.addr, endpoint.port, 0xC6130101, command.probe_port),
        seq=command.seq,
        detail=ProbeAnswer.SYNACK,
    )


class Ring:
    """Hands over what was put into it, and is readable as long as there is something."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._records: list[bytes] = []
        self.taken = 0

    def fill(self, *records: bytes) -> None:
        """Records come, while the loop looks elsewhere or not."""
        if not self._records:
            os.write(self._write, b"x")
        self._records += records

    @property
    def backlog(self) -> int:
        """As much as nothing when there is nothing."""
        return len(self._records)

    def fileno(self) -> int:
        """For the event loop."""
        return self._read

    def drain(self, limit: int) -> list[bytes]:
        """The oldest."""
        records, self._records = self._records[:limit], self._records[limit:]
        self.taken += len(records)
        if records and not self._records:
            os.read(self._read, 1)
        return records

    def close(self) -> None:
        """No more."""
        os.close(self._read)
        os.close(self._write)


class Noting:
    """An executor with which all goes well; ``probed`` is called with each probe's command."""

    def __init__(self, probed: Callable[[SendProbe], object]) -> None:
        self._probed = probed
        self.done: list[Command] = []

    @property
    def reinjected(self) -> list[bytes]:
        """Frames that have left, in their order."""
        return [each.first.frame.rstrip() for each in self.done if isinstance(each, Reinject)]

    def execute(self, command: Command) -> Event | None:
        """Note it, and answer."""
        self.done.append(command)
        if isinstance(command, WriteBinding):
            return BindingWritten(command.first.key)
        if isinstance(command, SendProbe):
            self._probed(command)
            return ProbeSent(command.backend, command.probe_port, command.seq, T0)
        return None
