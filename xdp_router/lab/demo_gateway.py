# SPDX-License-Identifier: Apache-2.0
"""``make demo-gateway``: three mock engines and the gateway before them, and what comes of it.

However it ends, nothing runs on: the namespace has no name, and the kernel kills the processes
when this one is gone; workers end with the gateway's supervisor. (A SIGKILL leaves a directory.)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import processes
from .demo_engines import EnginesLab
from .demo_gateway_story import GatewayStory
from .demo_stage import perform
from .demo_story import make_console


def run_demo() -> int:
    """Run the demo; its exit code: 0 done, 1 failed, 130 after Ctrl-C. For the main thread."""
    return perform(
        "makes a network namespace",
        "demo-gateway, or sudo xdp-router lab gateway",
        _tell,
        "namespace and processes are gone again.",
    )


def _tell(undo: contextlib.ExitStack, check: Callable[[], None]) -> Sequence[str]:
    directory = Path(tempfile.mkdtemp(prefix="xdp-router-demo-")).resolve()
    undo.callback(shutil.rmtree, directory, ignore_errors=True)
    undo.callback(lambda: processes.end(processes.marked(directory)))
    lab = EnginesLab(f"xr-demo{os.getpid()}", directory)
    undo.callback(lab.close)
    check()
    story = GatewayStory(make_console(), lab, check)
    story.tell()
    lab.stop()
    return story.faults
