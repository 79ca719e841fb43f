# SPDX-License-Identifier: Apache-2.0
"""The demo as a user starts it: what it shows, and that nothing stays, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.netns import mounts_under, wait_for
from tests.support.nobody import as_nobody
from xdp_router.lab import processes
from xdp_router.lab.demo import run_demo

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
WIRES, MIDDLE = "1. The wires", "2. 300 connections"
"""While clients connect straight to backends, and through the router, which runs both times."""


@dataclass
class Demo:
    """A running demo, whose temporary files lie in ``directory``."""

    process: subprocess.Popen[str]
    directory: Path
    out: Path
    namespaces: set[int] = field(default_factory=set)

    def text(self) -> str:
        """What it has printed, errors included."""
        return self.out.read_text("utf-8")

    def ours(self) -> list[processes.Process]:
        """The processes of its lab that run."""
        homes = self.directory.glob("xdp-router-demo-*")
        return [process for home in homes for process in processes.marked(home)]

    def reach(self, text: str) -> None:
        """Wait until it has printed the text; remember its namespaces."""
        wait_for(lambda: text in self.text() or self.process.poll() is not None, 40.0, text)
        assert text in self.text(), self.text()
        for process in self.ours():
            with contextlib.suppress(OSError):
                self.namespaces.add(os.stat(f"/proc/{process.pid}/ns/net").st_ino)
        assert len(self.namespaces) >= 6, "router, three backends and two delay lines"

    def end(self) -> int:
        """Its exit code."""
        return self.process.wait(LIMIT_S)

    def assert_nothing_left(self) -> None:
        """No process, namespace, mount or file of it is there any more."""
        assert not self.ours()
        assert not mounts_under(self.directory)
        assert not list(self.directory.iterdir())
        assert not self.living_namespaces()
        assert not list(Path("/run/netns").glob(f"xr-demo{self.process.pid}*"))

    def living_namespaces(self) -> set[int]:
        """Those of its network namespaces that some process is still in."""
        return self.namespaces & {
            inode for inode in map(_net_namespace, os.listdir("/proc")) if inode
        }


def _net_namespace(pid: str) -> int:
    if not pid.isdigit():
        return 0
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0  # it has ended meanwhile


@pytest.fixture(params=[False])
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demo]:
    """A demo that has just been started; killed if the test leaves it running.

    The parameter says whether it inherits SIGINT ignored, as a script's background job does.
    """
    inherited = signal.signal(signal.SIGINT, signal.SIG_IGN if request.param else signal.SIG_DFL)
    try:
        # Not tmp_path: the path of a Unix socket has 107 bytes at most.
        with (
            tempfile.TemporaryDirectory(prefix="xrt-", ignore_cleanup_errors=True) as directory,
            (tmp_path / "out").open("w", encoding="utf-8") as out,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "xdp_router.cli.main", "lab", "demo"],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": directory, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
            signal.signal(signal.SIGINT, inherited)
            try:
                yield Demo(process, Path(directory), tmp_path / "out")
            finally:
                process.kill()
                process.wait()
    finally:
        signal.signal(signal.SIGINT, inherited)


def shares(chapter: str) -> dict[str, int]:
    """Connections by backend, from a chapter's first table."""
    rows = re.findall(r"^(near|middle|far) +\+\d+ ms +(\d+)", chapter, re.MULTILINE)
    return {name: int(count) for name, count in rows}


def test_a_whole_run(demo: Demo) -> None:
    """It ends by itself with 0 in time, its numbers are whole, and nothing is left."""
    started = time.monotonic()
    demo.reach(MIDDLE)
    assert demo.end() == 0, demo.text()
    assert time.monotonic() - started < LIMIT_S
    text = demo.text()
    assert not [line for line in text.splitlines() if len(line) > 100]
    scene, wires, through, inside, killed, back, silent = re.split(r"^[1-6]\. ", text, flags=re.M)

    assert "198.18.100.1:80" in scene
    assert len(re.findall(r"^straight to \w+ +100( +[\d.]+ ms){2}$", wires, re.M)) == 3

    assert sum(shares(through).values()) == 300
    assert "300 of 300 connected" in through
    assert shares(through)["near"] > 200  # a hiccup of the machine may lose it some races
    assert len(re.findall(r"^(?:through|straight).*( +[\d.]+ ms){2}$", through, re.M)) == 4
    assert re.search(r"FPPL p50 [\d.]+ ms, p99 [\d.]+ ms, of\s+300\s+connections", through)

    assert len(re.findall(r"^198\.18\.0\.2:\d+ +web +\w+ +established +race", inside, re.M)) == 6
    assert "$ xdp-router explain 198.18.0.2:" in inside
    assert "first packet of web, held by XDP" in inside

    assert shares(killed)["near"] == 0
    assert sum(shares(killed).values()) == 100
    assert "near: refused by RST" in killed
    assert re.search(r"^near +.* ill ", killed, re.MULTILINE)
    assert re.search(r"well again after \d+ s", back)
    assert shares(back)["near"] > 25
    assert shares(silent)["near"] == 0
    assert sum(shares(silent).values()) == 50
    demo.assert_nothing_left()


@pytest.mark.parametrize(
    ("demo", "number", "when"),
    [
        pytest.param(False, signal.SIGTERM, WIRES, id="default-15"),
        pytest.param(True, signal.SIGINT, MIDDLE, id="ignored-2"),
    ],
    indirect=["demo"],
)
def test_a_signal_in_the_middle(demo: Demo, number: signal.Signals, when: str) -> None:
    """Ctrl-C and SIGTERM, inherited ignored or not, end it soon with a shell's exit code."""
    demo.reach(when)
    demo.process.send_signal(number)
    started = time.monotonic()
    assert demo.end() == 128 + number
    assert time.monotonic() - started < 10.0
    assert "Stopped. Everything was taken away" in demo.text()
    assert "Traceback" not in demo.text()
    demo.assert_nothing_left()


def test_an_impatient_ctrl_c_at_a_terminal(demo: Demo) -> None:
    """Ctrl-C reaches all processes of the lab, here twice: still it is a clean stop."""
    demo.reach(MIDDLE)
    everybody = [demo.process.pid, *(process.pid for process in demo.ours())]
    for _ in range(2):
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
    assert demo.end() == 130, demo.text()
    assert "The demo failed" not in demo.text()
    demo.assert_nothing_left()


def test_a_signal_while_it_builds(demo: Demo) -> None:
    """Ctrl-C before the router is up leaves nothing either."""
    wait_for(lambda: len(demo.ours()) >= 2, 20.0)
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 130
    demo.assert_nothing_left()


def test_the_daemon_dies(demo: Demo) -> None:
    """If the router dies, the demo fails, shows the end of its log, and leaves nothing."""
    demo.reach(MIDDLE)
    (log,) = demo.directory.glob("xdp-router-demo-*/router.log")
    wait_for(lambda: " decision " in log.read_text("utf-8"), 20.0, "a logged decision")
    kill_router(demo)
    assert demo.end() == 1
    text = demo.text()
    assert "the router has ended (signal 9)" in text
    assert "The end of its log:" in text
    assert " decision " in text  # a line of that log
    demo.assert_nothing_left()


def kill_router(demo: Demo) -> None:
    """SIGKILL the daemon of the demo's lab."""
    routers = [
        process
        for process in demo.ours()
        if b"xdp_router.daemon.main" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    ]
    assert len(routers) == 1
    routers[0].signal(signal.SIGKILL)


def test_the_demo_is_killed(demo: Demo) -> None:
    """After SIGKILL the kernel removes all but a directory of plain files."""
    demo.reach(WIRES)
    demo.process.kill()
    demo.end()
    wait_for(lambda: not demo.ours(), 5.0, "its processes end with it")
    wait_for(lambda: not demo.living_namespaces(), 5.0, "its namespaces end with them")
    assert not mounts_under(demo.directory)


def test_needs_root() -> None:
    """Without root it says so, names the mend, and does nothing."""
    code, text = as_nobody(run_demo)
    assert code == 1
    assert "needs root" in text
    assert "sudo make demo" in text
