# SPDX-License-Identifier: Apache-2.0
"""``make demo``: builds a lab with the router in it, tells the story, takes it all away again.

However it ends, nothing runs on: the namespaces have no names, the mount lies in a private mount
namespace, and the kernel kills the processes when this one is gone. (A SIGKILL leaves a directory.)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from . import libc, processes
from .demo_story import SPEC, Story, make_console
from .errors import LabError
from .lab import Lab
from .router import LabRouter

FALLBACK = "far"  # nobody's first choice: whatever goes elsewhere was decided by a race

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


def run_demo() -> int:
    """Run the demo; its exit code: 0 done, 1 failed, 130 after Ctrl-C.

    For the main thread of a process that ends with it: it moves the process into a mount
    namespace of its own.
    """
    if os.geteuid() != 0:
        print(
            "The demo needs root: it makes network namespaces and loads an XDP program.\n"
            "Run: sudo make demo, or sudo xdp-router lab demo",
            file=sys.stderr,
        )
        return EXIT_FAILED
    started = time.monotonic()
    console = make_console()
    undo = contextlib.ExitStack()
    signals = _Signals()
    try:
        with signals.caught():
            try:
                lab, router = _build(undo, signals.check)
                built_s = time.monotonic() - started
                story = Story(console, lab, router, built_s, signals.check)
                story.tell()
                router.stop()
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
    if story.faults:
        return _failed("\n  ".join(["The demo did not show what it should:", *story.faults]))
    console.print(
        f"\nDone in {time.monotonic() - started:.0f} s; namespaces, XDP programs and processes "
        "are gone again.\nA lab that stays, to play with: sudo xdp-router lab up"
    )
    return EXIT_DONE


def _stopped(signals: _Signals) -> int:
    print("\nStopped. Everything was taken away again.")
    return EXIT_SIGNAL + signals.number


def _failed(text: str) -> int:
    with contextlib.suppress(OSError):  # a reader that has gone must not hide the reason
        sys.stdout.flush()
    print(f"\n{text}", file=sys.stderr)
    return EXIT_FAILED


def _build(undo: contextlib.ExitStack, check: Callable[[], None]) -> tuple[Lab, LabRouter]:
    """Lab and router, each step with its undo. Raises LabError, OSError, and what check does."""
    directory = Path(tempfile.mkdtemp(prefix="xdp-router-demo-")).resolve()
    undo.callback(shutil.rmtree, directory, ignore_errors=True)
    # Private mounts go with this process even if it is killed; nobody else sees them.
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    bpffs = directory / "bpf"
    bpffs.mkdir()
    libc.mount("bpf", str(bpffs), "bpf")
    undo.callback(libc.umount, str(bpffs))
    lab = Lab(SPEC, prefix=f"xr-demo{os.getpid()}", directory=directory)
    # A signal between a process's start and its record: its mark still tells whose it is.
    undo.callback(lambda: processes.end(processes.marked(directory)))
    undo.callback(lab.close)
    lab.build()
    check()
    router = LabRouter(lab, lab.config_toml(fallback=FALLBACK), bpffs / "xdp-router")
    check()
    return lab, router
