# SPDX-License-Identifier: Apache-2.0
"""``make demo``: builds a lab with the router in it, tells the story, takes it all away again.

However it ends, nothing runs on: the namespaces have no names, the mount lies in a private mount
namespace, and the kernel kills the processes when this one is gone. (A SIGKILL leaves a directory.)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import libc, processes
from .demo_stage import perform
from .demo_story import SPEC, Story, make_console
from .lab import Lab
from .router import LabRouter

FALLBACK = "far"  # nobody's first choice: whatever goes elsewhere was decided by a race


def run_demo() -> int:
    """Run the demo; its exit code: 0 done, 1 failed, 130 after Ctrl-C.

    For the main thread of a process that ends with it: it moves the process into a mount
    namespace of its own.
    """
    return perform(
        "makes network namespaces and loads an XDP program",
        "demo, or sudo xdp-router lab demo",
        _tell,
        "namespaces, XDP programs and processes are gone again.\n"
        "A lab that stays, to play with: sudo xdp-router lab up",
    )


def _tell(undo: contextlib.ExitStack, check: Callable[[], None]) -> Sequence[str]:
    started = time.monotonic()
    lab, router = _build(undo, check)
    story = Story(make_console(), lab, router, time.monotonic() - started, check)
    story.tell()
    router.stop()
    return story.faults


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
