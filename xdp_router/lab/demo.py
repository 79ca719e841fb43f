# SPDX-License-Identifier: Apache-2.0
"""``make demo``: what the router does, shown in half a minute on real connections.

Every number is measured in that run. Namespaces, mounts and processes are the demo's own and go
with it, however it ends: the namespaces have no names, the mounts lie in a private mount
namespace, and the processes are killed by the kernel if this one is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from . import libc, processes
from .demo_router import DemoRouter
from .demo_traffic import PAYLOAD_BYTES, Batch, connect_many, ended, percentile
from .errors import LabError
from .lab import Lab
from .spec import BackendSpec, LabSpec

MS = 1_000_000
SPEC = LabSpec(
    (
        BackendSpec("near"),
        BackendSpec("middle", delay_ns=5 * MS),
        BackendSpec("far", delay_ns=20 * MS),
    )
)
FALLBACK = "far"  # the last one that would be wanted: what goes elsewhere was decided by a race
CONNECTIONS = 300
STRAIGHT = 100
AFTER_KILL = 100
AFTER_OTHERS = 50
KEPT_OPEN = 6

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_WIDTH = 100
_BAR = 30
_LATE_ANSWERS_S = 0.1  # so that explain also has the answer of the slowest backend


def run_demo() -> int:
    """Run the demo; its exit code: 0 done, 1 failed, 130 interrupted.

    Call it in the main thread of a process that ends with it: it moves the process into a
    mount namespace of its own.
    """
    if os.geteuid() != 0:
        print(
            "xdp-router lab demo needs root: it makes network namespaces and loads an XDP "
            "program.\nRun: sudo make demo",
            file=sys.stderr,
        )
        return EXIT_FAILED
    console = _console()
    started = time.monotonic()
    try:
        with _stoppable(), contextlib.ExitStack() as undo:
            undo.callback(_ignore_signals)  # popped last-in: see _build
            story = _build(undo, console)
            story.tell()
    except KeyboardInterrupt:
        console.print("\nInterrupted. Everything was taken away again.")
        return EXIT_INTERRUPTED
    except (LabError, OSError) as error:
        sys.stdout.flush()
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    seconds = time.monotonic() - started
    if story.faults:
        sys.stdout.flush()
        print("\nThe demo did not show what it should:", file=sys.stderr)
        for fault in story.faults:
            print(f"  {fault}", file=sys.stderr)
        return EXIT_FAILED
    console.print(
        f"\nDone in {seconds:.0f} s. Namespaces, XDP programs and processes are gone again.\n"
        "To play with such a lab yourself: sudo xdp-router lab up"
    )
    return EXIT_DONE
