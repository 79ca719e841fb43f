# SPDX-License-Identifier: Apache-2.0
"""A wire with a delay: ``python -m xdp_router.lab.delay_line``.

Frames that arrive at interface ``a`` (router side) leave by ``b`` (backend side) after the delay,
in order; frames from ``b`` leave by ``a`` at once. So the whole delay lies on the way to the
backend, and a round trip is longer by it. A stall holds back what the backend would have
read, as a busy server does.

The delay counts from the kernel's receive time stamp, so a late wake-up on arrival costs nothing.
What this process itself costs (timer lateness, the way back) is measured and taken off the delay.
Tags are put back with ``--tags`` only: AF_PACKET hands them over separately.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import libc
from .stall import Stall, StallSchedule

_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_PACKET_IGNORE_OUTGOING = 23
_SO_TIMESTAMPNS = 35
_SO_RCVBUFFORCE = 33
_SO_SNDBUFFORCE = 32

_FRAME_MAX = 9216
_BATCH = 64
"""Frames read before due ones are sent: bounds how late a burst can make them."""
_BUFFER_BYTES = 64 << 20
_RETRIES = 100
_RETRY_S = 50e-6
_COST_SHIFT = 4
"""Costs are averaged over about 2**4 frames."""
_COST_MAX_NS = 200_000
"""One sample counts no more than this: a preempted machine must not shorten later delays."""
_TIMESPEC = struct.Struct("@qq")
_PACKET_AUXDATA = 8
_AUXDATA = struct.Struct("=IIIHHHH")
_TAG_VALID = 1 << 4
_CONTROL_SPACE = socket.CMSG_SPACE(_TIMESPEC.size) + socket.CMSG_SPACE(_AUXDATA.size)


def _open(ifname: str, tags: bool) -> socket.socket:
    handle = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    handle.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    handle.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    handle.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    handle.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    handle.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, int(tags))
    handle.setblocking(False)
    handle.bind((ifname, _ETH_P_ALL))
    return handle


@dataclass(slots=True)
class Counts:
    """What the line did; ``late_ns`` is the worst lateness of a frame to the backend."""

    to_backend: int = 0
    to_router: int = 0
    lost: int = 0
    late_ns: int = 0


class DelayLine:
    """Two packet sockets, the queue between them, and the control socket."""

    def __init__(
        self,
        a: socket.socket,
        b: socket.socket,
        control: socket.socket,
        delay_ns: int,
        stall: Stall | None,
    ) -> None:
        self._a = a
        self._b = b
        self._control = control
        self._peers: dict[int, socket.socket] = {}
        self._queue: deque[tuple[int, bytes]] = deque()
        self._last_due_ns = 0
        self._wake_ns = 0
        self._back_ns = 0
        self.counts = Counts()
        self.set_delay(delay_ns)
        self.set_stall(stall)

    def set_delay(self, delay_ns: int) -> None:
        """Delay frames that arrive from now on by so much."""
        self._delay_ns = delay_ns

    def set_stall(self, stall: Stall | None, start_ns: int | None = None) -> None:
        """Stall from now on or from an instant of the wall clock, or no longer."""
        self._stall = stall
        start_ns = time.time_ns() if start_ns is None else start_ns
        self._schedule = StallSchedule(stall, start_ns) if stall else None

    def run(self) -> None:
        """Forward frames until the process is told to end."""
        a, b = self._a.fileno(), self._b.fileno()
        control = self._control.fileno()
        while True:
            timeout = None
            if self._queue:
                timeout = max(0, self._queue[0][0] - time.time_ns()) / 1e9
            # Of its own process, which has few; poll() knows no time below 1 ms.
            ready, _, _ = select.select([a, b, control, *self._peers], [], [], timeout)  # noqa: TID251
            if b in ready:
                self._from_backend()
            if a in ready:
                self._from_router()
            if self._queue:
                self._send_due()
            for fd in ready:
                if fd == control:
                    peer, _ = self._control.accept()
                    self._peers[peer.fileno()] = peer
                elif fd in self._peers:
                    self._answer(fd)

    def _receive(self, source: socket.socket) -> tuple[int, bytes] | None:
        try:
            frame, ancillary, flags, _ = source.recvmsg(_FRAME_MAX, _CONTROL_SPACE)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.ENETDOWN:  # told once when the interface goes down
                return None
            raise
        if flags & socket.MSG_TRUNC:
            raise SystemExit(f"a frame was longer than {_FRAME_MAX} bytes: switch GRO off")
        arrived_ns = 0
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                arrived_ns = seconds * 1_000_000_000 + nanoseconds
            elif level == _SOL_PACKET and kind == _PACKET_AUXDATA:
                status, *_, tci, tpid = _AUXDATA.unpack(data)
                if status & _TAG_VALID:
                    frame = frame[:12] + struct.pack(">HH", tpid, tci) + frame[12:]
        return arrived_ns or time.time_ns(), frame

    def _from_backend(self) -> None:
        for number in range(_BATCH):
            received = self._receive(self._b)
            if received is None:
                return
            self._send(self._a, received[1])
            self.counts.to_router += 1
            if number == 0:
                cost_ns = min(time.time_ns() - received[0], _COST_MAX_NS)
                self._back_ns += (cost_ns - self._back_ns) >> _COST_SHIFT

    def _from_router(self) -> None:
        for _ in range(_BATCH):
            received = self._receive(self._a)
            if received is None:
                return
            arrived_ns, frame = received
            extra_ns = self._schedule.extra_ns(arrived_ns) if self._schedule else 0
            wait_ns = max(0, self._delay_ns + extra_ns - self._back_ns - self._wake_ns)
            due_ns = max(self._last_due_ns, arrived_ns + wait_ns)
            self._last_due_ns = due_ns
            self._queue.append((due_ns, frame))

    def _send_due(self) -> None:
        queue = self._queue
        for number in range(_BATCH):
            if not queue or time.time_ns() < queue[0][0]:
                return
            due_ns, frame = queue.popleft()
            self._send(self._b, frame)
            late_ns = time.time_ns() - due_ns
            if number == 0:  # the others wait for the first, not for the timer
                self._wake_ns += (min(late_ns, _COST_MAX_NS) - self._wake_ns) >> _COST_SHIFT
            self.counts.to_backend += 1
            self.counts.late_ns = max(self.counts.late_ns, late_ns)

    def _send(self, target: socket.socket, frame: bytes) -> None:
        for _ in range(_RETRIES):
            try:
                target.send(frame)
            except OSError as error:
                if error.errno not in (errno.ENOBUFS, errno.EAGAIN):
                    break  # the link is down: a real wire loses frames too
                time.sleep(_RETRY_S)
            else:
                return
        self.counts.lost += 1

    def _answer(self, fd: int) -> None:
        peer = self._peers[fd]
        try:
            request = peer.recv(4096)
            if request:
                peer.send(json.dumps(self._obey(json.loads(request))).encode())
                return
        except OSError:
            pass  # whoever asked has gone
        del self._peers[fd]
        peer.close()

    def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        if "delay_ns" in request:
            self.set_delay(int(request["delay_ns"]))
        if "stall" in request:
            stall = Stall(**request["stall"]) if request["stall"] else None
            self.set_stall(stall, request.get("start_ns"))
        counts = {name: getattr(self.counts, name) for name in Counts.__slots__}
        return {
            **counts,
            "cost_ns": self._wake_ns + self._back_ns,
            "delay_ns": self._delay_ns,
            "queued": len(self._queue),
        }


def _hurry() -> None:
    """Be woken on time: real-time priority if it is to be had, exact timers in any case."""
    libc.prctl(libc.PR_SET_TIMERSLACK, 1)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
    gc.freeze()
    gc.disable()  # nothing here makes cycles, and a collection is a late frame


def main(argv: list[str] | None = None) -> int:
    """Run one delay line between two interfaces of the current network namespace."""
    parser = argparse.ArgumentParser(prog="xdp_router.lab.delay_line", description=__doc__)
    parser.add_argument("--a", required=True, help="interface towards the router")
    parser.add_argument("--b", required=True, help="interface towards the backend")
    parser.add_argument("--delay-ns", type=int, default=0)
    parser.add_argument("--stall", type=json.loads, default=None, help="a Stall as JSON")
    parser.add_argument("--tags", action="store_true", help="frames may have a VLAN tag")
    parser.add_argument("--control", type=Path, required=True, help="path of the control socket")
    parser.add_argument("--ready-fd", type=int, required=True)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        options.control.unlink(missing_ok=True)
        control.bind(str(options.control))
        control.listen()
        stall = Stall(**options.stall) if options.stall else None
        ends = (_open(options.a, options.tags), _open(options.b, options.tags))
        line = DelayLine(*ends, control, options.delay_ns, stall)
        _hurry()
        os.write(options.ready_fd, b"\n")
        os.close(options.ready_fd)
        line.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
