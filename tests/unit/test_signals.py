# SPDX-License-Identifier: Apache-2.0
"""Real signals to this process, before, while and after an event loop runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from xdp_router.daemon.signals import STOPPING, Signals, held

ALL = (*STOPPING, signal.SIGHUP)


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Installed; the handlers are as before at the end."""
    before = {number: signal.getsignal(number) for number in ALL}
    made = Signals()
    made.install()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_before_the_loop_is_not_lost(signals: Signals, number: int) -> None:
    """It stops what connects later; the number is kept."""
    send(number)

    async def main() -> bool:
        stop = asyncio.Event()
        signals.connect(stop, lambda: None)
        return stop.is_set()

    assert asyncio.run(main())
    assert signals.number == number


def test_signals_wake_the_loop(signals: Signals) -> None:
    """SIGHUP calls, SIGTERM stops; the first stopping one is the one that counts."""
    heard: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()
        signals.connect(stop, lambda: heard.append("hangup"))
        send(signal.SIGHUP)
        await asyncio.sleep(0.01)
        assert not stop.is_set()
        asyncio.get_running_loop().call_later(0.01, send, signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)
        send(signal.SIGINT)

    asyncio.run(main())
    for number in ALL:
        send(number)  # the loop is closed
    assert heard == ["hangup"]
    assert signals.number == signal.SIGTERM


def test_ignored_signals_do_nothing(signals: Signals) -> None:
    """At the very end nothing may cut the process short."""
    signals.ignore()
    for number in ALL:
        send(number)
    assert signals.number == 0


def test_held_signals_come_afterwards(signals: Signals) -> None:
    """They wait, and are not lost."""
    with held():
        send(signal.SIGTERM)
        assert signals.number == 0
    assert signals.number == signal.SIGTERM
