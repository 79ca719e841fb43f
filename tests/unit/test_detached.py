# SPDX-License-Identifier: Apache-2.0
"""Processes that are nobody's children."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.descriptors import open_descriptors
from xdp_router.daemon.former import VARIABLE
from xdp_router.daemon.gateway import detached
from xdp_router.daemon.gateway.detached import Detached, NotStarted

TELL = f"""
import json, os, signal, sys
fd = int(os.environ[{VARIABLE!r}])
found = {{
    "fds": [int(each) for each in os.listdir("/proc/self/fd")], "report": fd,
    "parent": os.getppid(), "leader": os.getsid(0), "argv": sys.argv[1:],
    "path": os.environ["PATH"],
    "usr2": signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN,
}}
os.write(fd, json.dumps(found).encode())
"""


def python(text: str, *args: str) -> list[str]:
    """A command."""
    return [sys.executable, "-I", "-S", "-c", text, *args]


def words_of(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What it says, of the whole life of a process."""

    async def work() -> str:
        async with asyncio.timeout(60):
            made = await detached.start(argv, os.environ if environment is None else environment)
            try:
                return await made.last_words()
            finally:
                await made.end()
                made.close()

    before = set(open_descriptors())
    words = asyncio.run(work())
    assert set(open_descriptors()) == before
    return words


def test_what_it_has_of_us() -> None:
    """Standard streams, environment, and one pipe that was made for it; it is no child, and in no
    session of ours."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        found: dict[str, Any] = json.loads(words_of(python(TELL, "a b", "ü"), {"PATH": "/here"}))
    finally:
        os.close(read)
        os.close(write)
    others = set(found["fds"]) - {0, 1, 2, found["report"]}
    assert len(others) == 1  # the directory that was read
    assert found["parent"] != os.getpid()
    assert found["leader"] != os.getsid(0)
    assert (found["argv"], found["path"], found["usr2"]) == (["a b", "ü"], "/here", True)


def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own, and the one that starts it."""
    missing = str(tmp_path / "none")
    assert words_of([missing, "x"]) == f"{missing} cannot be run: No such file or directory"
    monkeypatch.setattr(sys, "executable", missing)
    with pytest.raises(NotStarted, match=f"{missing} cannot be run: No such"):
        words_of(["/bin/true"])


def test_one_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: nothing is left."""
    monkeypatch.setattr(detached, "_LAUNCHER", "import sys; sys.exit(1)")
    with pytest.raises(NotStarted, match="no process could be made"):
        words_of(["/bin/true"])
    monkeypatch.setattr(detached, "BEGIN_S", 0.05)
    monkeypatch.setattr(detached, "_LAUNCHER", "import time; time.sleep(600)")
    with pytest.raises(NotStarted, match="it took too long"):
        words_of(["/bin/true"])


def test_it_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By force, if need be; and is left to itself otherwise."""
    monkeypatch.setattr(detached, "END_S", 0.1)
    stubborn = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"os.close(int(os.environ[{VARIABLE!r}]))\ntime.sleep(600)"
    )

    async def work() -> Detached:
        async with asyncio.timeout(60):
            made = await detached.start(python(stubborn), os.environ)
            assert await made.last_words() == ""
            os.kill(made.pid, 0)
            await made.end()
            return made

    made = asyncio.run(work())
    state = Path(f"/proc/{made.pid}/stat")
    assert not state.exists() or ") Z " in state.read_text()
