# SPDX-License-Identifier: Apache-2.0
"""How long this machine takes to wake a process that waits on another CPU."""

from __future__ import annotations

import os
import select
import time

from .programs import pinned
from .rows import percentile

_BYTES = 8
_GAP_S = 0.0008


def wake_up_us(samples: int, sleeper: int, waker: int) -> list[float]:
    """Microseconds from a write to the return of ``epoll_wait`` in a process on ``sleeper``.

    A part of each first packet's latency that no code of the router can shorten.
    """
    asked, ask = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, {sleeper})
            with select.epoll() as poll:
                poll.register(asked, select.EPOLLIN)
                for _ in range(samples):
                    poll.poll()
                    now_ns = time.monotonic_ns()
                    sent_ns = int.from_bytes(os.read(asked, _BYTES), "little")
                    os.write(tell, (now_ns - sent_ns).to_bytes(_BYTES, "little"))
        finally:
            os._exit(0)
    took = []
    os.close(asked)
    os.close(tell)  # so that a child that died is an error here, not a hang
    with pinned(waker):
        for _ in range(samples):
            time.sleep(_GAP_S)
            os.write(ask, time.monotonic_ns().to_bytes(_BYTES, "little"))
            took.append(int.from_bytes(os.read(told, _BYTES), "little") / 1e3)
    os.waitpid(child, 0)
    os.close(ask)
    os.close(told)
    return took


def described(took: list[float]) -> str:
    """For the ``how`` of a row."""
    return (
        f"waking a process there takes p50 {percentile(took, 0.5):.0f} us, "
        f"p99 {percentile(took, 0.99):.0f} us"
    )
