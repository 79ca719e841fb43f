# SPDX-License-Identifier: Apache-2.0
"""The import contracts hold, and a breach behind a link is really seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the checkout in ``folder``."""
    return subprocess.run(
        [str(LINT), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_contracts_hold() -> None:
    """Imports point downward, neighbours are independent, core does no I/O."""
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("daemon/planted.py", "import xdp_router.cli", "daemon.planted -> xdp_router.cli"),
        ("daemon/planted.py", "import aioquic", "daemon.planted -> aioquic"),
        ("ebpf/planted.py", "import xdp_router.core", "ebpf.planted -> xdp_router.core"),
        ("xdp_router/adapters/planted.py", "import xdp_router.lab", "planted -> xdp_router.lab"),
        ("xdp_router/core/engine.py", "import socket", "core.engine -> socket"),
        ("xdp_router/gateway/planted.py", "import time", "gateway.planted -> time"),
        ("xdp_router/core/model.py", "from . import engine", "core.model -> xdp_router.core.en"),
        ("xdp_router/core/planted.py", "", "xdp_router.core.planted"),
    ],
)
def test_breach_is_seen(tmp_path: Path, module: str, line: str, broken: str) -> None:
    """A forbidden import is named, also in the folders behind links; so is an unplaced module."""
    for part in ("xdp_router", "daemon", "cli", "ebpf"):
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True)
    shutil.copy(ROOT / ".importlinter", tmp_path)
    if not (tmp_path / module).parent.exists():
        (tmp_path / module).parent.mkdir()
        (tmp_path / module).with_name("__init__.py").touch()
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode != 0
    assert broken in done.stdout.replace("\n", " "), done.stdout + done.stderr
