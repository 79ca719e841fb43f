# SPDX-License-Identifier: Apache-2.0
"""The gateway's demo as a user starts it: what it shows is what docs/gateway.md says."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.netns import wait_for
from tests.support.nobody import as_nobody
from xdp_router.core.config import parse_config
from xdp_router.core.listeners import SocketAddress
from xdp_router.lab import processes
from xdp_router.lab.demo_engines import CONFIG, ENGINES, GATEWAY
from xdp_router.lab.demo_gateway import run_demo

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "gateway.md"
LIMIT_S = 120.0


def _start(folder: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "xdp_router.cli.main", "lab", "gateway"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": folder, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_whole_run() -> None:
    """It ends by itself with 0, its numbers are whole, and no process or file is left."""
    # Not tmp_path: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="xrt-") as folder:
        demo = _start(folder)
        try:
            text, _ = demo.communicate(timeout=LIMIT_S)
        finally:
            demo.kill()
            demo.wait()
        assert demo.returncode == 0, text
        assert not list(Path(folder).iterdir())
    _, straight, raced, why, canary, killed = re.split(r"^[1-5]\. ", text, flags=re.M)

    assert len(re.findall(r"^straight to \w+ +(?:40|20|4)( +[\d.]+ ms){3}$", straight, re.M)) == 3
    assert sum(_shares(raced).values()) == 40
    assert re.search(r"^through the gateway +40( +[\d.]+ ms){3}$", raced, re.M)
    assert len(re.findall(r"^\S+ +POST /v1/chat/completions \(mock\) +200 ", raced, re.M)) == 5
    for step in ("accepted", "head complete", "decided", "first token", "first byte to the client"):
        assert re.search(rf"^[\d.]+ [mµ]?s +{step}", why, re.M), step
    assert _shares(canary) == {"quick": 0, "steady": 0, "slow": 4}
    (dead,) = re.findall(r"(\w+)\s+was\s+killed\s+after\s+5\s+tokens", killed)
    assert "    event: error\n" in killed
    assert "backend broke off" in killed
    assert "ConnectionResetError" in killed
    assert sum(_shares(killed).values()) == 12
    assert _shares(killed)[dead] == 0
    assert re.search(rf"^chat +{dead} +.*(asked to wait|ill)", killed, re.M)

    told = _frame(text)
    for document, begin, end in (
        (GUIDE, "$ sudo xdp-router lab gateway\n", "```"),
        (ROOT / "README.md", "sudo make demo-gateway\n", "\n## "),
    ):
        shown = _frame(document.read_text("utf-8").partition(begin)[2].partition(end)[0])
        assert len(shown) > 4
        assert shown <= told, f"{document.name}: {shown - told}"


def _frame(text: str) -> set[str]:
    """Titles, heads of tables and commands: what is the same in each run."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    titles = {line for line, below in itertools.pairwise(lines) if below[:9] == "-" * 9}
    heads = {line for line in lines if re.fullmatch(r"[A-Z][A-Z0-9 ]+", line)}
    commands = {re.sub(r"explain .*", "explain ID", line) for line in lines if line[:2] == "$ "}
    return titles | heads | commands


def _shares(chapter: str) -> dict[str, int]:
    """Requests by engine, from a chapter's first table."""
    rows = re.findall(r"^(quick|steady|slow) +(\d+)", chapter, re.M)
    return {name: int(count) for name, count in rows}


def test_a_kill_leaves_no_process() -> None:
    """After SIGKILL its engines end with it, and the gateway's workers with their supervisor."""
    with tempfile.TemporaryDirectory(prefix="xrt-", ignore_cleanup_errors=True) as folder:
        demo = _start(folder)
        try:

            def ours() -> list[processes.Process]:
                homes = Path(folder).glob("xdp-router-demo-*")
                return [process for home in homes for process in processes.marked(home)]

            wait_for(lambda: len(ours()) >= 5, 40.0, "three engines, supervisor and worker")
        finally:
            demo.kill()
            demo.communicate()
        wait_for(lambda: not ours(), 20.0, "its processes end with it")


def test_needs_root() -> None:
    """Without root it says so, names the mend, and does nothing."""
    code, text = as_nobody(run_demo)
    assert code == 1
    assert "needs root" in text
    assert "sudo make demo-gateway" in text


def test_the_guide_has_the_configuration_of_the_demo() -> None:
    """docs/gateway.md shows the file that ran, to the letter; its engines are those that ran."""
    shown = re.findall(r"^```toml\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
    assert CONFIG in shown
    (listener,) = parse_config(CONFIG, "demo").gateway.listeners
    assert listener.address == SocketAddress(*GATEWAY)
    told = {each.name: each.address for each in listener.backends}
    assert told == {name: SocketAddress("127.0.0.1", port) for name, (port, _) in ENGINES.items()}
