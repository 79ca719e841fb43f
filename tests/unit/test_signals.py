# SPDX-License-Identifier: Apache-2.0
"""Real signals to this process, before, while and after an event loop runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from xdp_router.daemon.signals import STOPPING, Signals, held

ALL = (*STOPPING, signal.SIGHUP, signal.SIGUSR2)


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
    """SIGHUP and SIGUSR2 call, SIGTERM stops; the first stopping one counts, others are told."""
    heard: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()
        signals.connect(stop, lambda: heard.append("hangup"), lambda: heard.append("again"))
        send(signal.SIGUSR2)  # nobody has asked for these
        await asyncio.sleep(0.01)
        signals.on_upgrade = lambda: heard.append("upgrade")
        send(signal.SIGHUP)
        await asyncio.sleep(0.01)
        send(signal.SIGUSR2)
        await asyncio.sleep(0.01)
        assert not stop.is_set()
        asyncio.get_running_loop().call_later(0.01, send, signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)
        send(signal.SIGINT)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    for number in ALL:
        send(number)  # the loop is closed
    assert heard == ["hangup", "upgrade", "again"]
    assert signals.hangups == 2
    assert signals.number == signal.SIGTERM


def test_ignored_signals_do_nothing(signals: Signals) -> None:
    """At the very end nothing may cut the process short."""
    signals.ignore()
    for number in ALL:
        send(number)
    assert signals.number == 0


def test_a_signal_while_somebody_begins_to_wait(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler runs between any two steps of the main thread: also in the middle of a wait that
    has seen the event as it was, and is not known to it yet."""

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        signals.connect(stop, lambda: None)
        create = loop.create_future

        def interrupted() -> asyncio.Future[object]:
            monkeypatch.setattr(loop, "create_future", create)
            send(signal.SIGTERM)
            assert stop.is_set()
            return create()

        loop.call_soon(monkeypatch.setattr, loop, "create_future", interrupted)
        await asyncio.wait_for(asyncio.ensure_future(stop.wait()), 5)
        assert stop.is_set()

    asyncio.run(main())


def test_held_signals_come_afterwards(signals: Signals) -> None:
    """They wait, and are not lost."""
    with held():
        send(signal.SIGTERM)
        assert signals.number == 0
    until = time.monotonic() + 5  # another thread of the test's process may have taken it
    while not signals.number and time.monotonic() < until:
        time.sleep(0.001)
    assert signals.number == signal.SIGTERM


def test_held_signals_wait_whatever_thread_takes_them(signals: Signals) -> None:
    """A thread that was there before takes one: nothing happens until they are held no more."""
    go = threading.Event()

    def take() -> None:
        go.wait()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)

    hangups: list[int] = []

    async def main() -> None:
        signals.connect(asyncio.Event(), lambda: hangups.append(1))
        thread = threading.Thread(target=take)
        thread.start()
        with held():
            go.set()
            thread.join()
            await asyncio.sleep(0)
            assert (signals.number, hangups) == (0, [])
        await asyncio.sleep(0)
        assert (signals.number, hangups) == (signal.SIGTERM, [1])

    asyncio.run(main())


def test_holding_changes_no_handler_and_no_mask(signals: Signals) -> None:
    """Handlers and mask are as before, an error within or not; one within another adds nothing."""

    def now() -> list[object]:
        return [*map(signal.getsignal, ALL), signal.pthread_sigmask(signal.SIG_BLOCK, ())]

    before = now()
    with held(), held():
        send(signal.SIGTERM)
    assert signals.number == signal.SIGTERM
    assert now() == before
    with contextlib.suppress(KeyError), held():
        raise KeyError
    assert now() == before


def test_another_thread_holds_its_own_signals() -> None:
    """Only the main one runs handlers, and may set them: who embeds the router has its own."""
    found: list[set[int]] = []

    def work() -> None:
        for context in (held(), contextlib.nullcontext()):
            with context:
                found.append({int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())})

    before = [signal.getsignal(number) for number in ALL]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    inside, after = found
    assert inside - after == {int(each) for each in ALL}
    assert [signal.getsignal(number) for number in ALL] == before
