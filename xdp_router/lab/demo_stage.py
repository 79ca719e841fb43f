# SPDX-License-Identifier: Apache-2.0
"""What demos have in common: they need root, end by signals, and take everything away again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from .errors import LabError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SIGNAL = 128  # plus its number, as a shell says it

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(BaseException):
    """A signal asked for the end."""


class _Signals:
    """Remembers the first signal that asks for the end; only a second one raises _Stopped at once.

    Raising at any place could hit one of Python's own callbacks, around a fork for one, which
    swallow it. With ``mute`` set, for the clean-up, signals do nothing.
    """

    def __init__(self) -> None:
        self.mute = False
        self.number = 0

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.mute:
            return
        if self.number:
            raise _Stopped
        self.number = number

    def check(self) -> None:
        """Raise _Stopped if a signal came."""
        if self.number:
            raise _Stopped

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """As the class says, within the block."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            # A shell's background job inherits SIGINT ignored: whoever sends it all the same means
            # us. An ignored hangup is nohup's, and wanted.
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                # An impatient second Ctrl-C shall not break into what is left of the exit.
                signal.signal(number, signal.SIG_IGN if self.number else handler)


def perform(
    needs: str,
    command: str,
    tell: Callable[[contextlib.ExitStack, Callable[[], None]], Sequence[str]],
    farewell: str,
) -> int:
    """Tell a story; its exit code: 0 done, 1 failed, 130 after Ctrl-C.

    ``needs``: what root is needed for. ``command``: how it is started. ``tell`` leaves on the
    stack what undoes it, calls the function that it is given between its steps, and returns what
    did not come out as it should. ``farewell``: what is gone then. Only for the main thread.
    """
    if os.geteuid() != 0:
        print(
            f"The demo needs root: it {needs}.\nRun: sudo make {command}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    started = time.monotonic()
    undo = contextlib.ExitStack()
    signals = _Signals()
    try:
        with signals.caught():
            try:
                faults = tell(undo, signals.check)
                signals.check()
            finally:
                signals.mute = True
                undo.close()
    except _Stopped:
        return _stopped(signals)
    except (LabError, OSError) as error:
        if signals.number:  # Ctrl-C goes to the lab's processes too, and they are missed first
            return _stopped(signals)
        return _failed(f"The demo failed: {error}")
    if faults:
        return _failed("\n  ".join(["The demo did not show what it should:", *faults]))
    print(f"\nDone in {time.monotonic() - started:.0f} s; {farewell}")
    return EXIT_DONE


def _stopped(signals: _Signals) -> int:
    print("\nStopped. Everything was taken away again.")
    return EXIT_SIGNAL + signals.number


def _failed(text: str) -> int:
    with contextlib.suppress(OSError):  # a reader that has gone must not hide the reason
        sys.stdout.flush()
    print(f"\n{text}", file=sys.stderr)
    return EXIT_FAILED
