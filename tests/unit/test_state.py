# SPDX-License-Identifier: Apache-2.0
"""The state file of a kept lab."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from xdp_router.lab import BackendSpec, LabError, LabSpec, LabState

SPEC = LabSpec((BackendSpec("b1"),))


def test_state_survives_a_round_trip(tmp_path: Path) -> None:
    """What one process saves, another one loads."""
    state = LabState(tmp_path, "p", Path("/run/netns"), SPEC, complete=True)
    state.add_process("me", os.getpid())
    assert LabState.load(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert state.bpffs == tmp_path / "bpf"


def test_process_is_found_while_it_runs(tmp_path: Path) -> None:
    """A process that ended is not found, and gives way to its successor."""
    state = LabState(tmp_path, "p", Path("/run/netns"), SPEC)
    with subprocess.Popen(["sleep", "1000"]) as child:
        state.add_process("server", child.pid)
        found = state.process("server")
        assert found is not None
        assert found.pid == child.pid
        child.kill()
    assert state.process("server") is None
    state.add_process("server", os.getpid())
    assert [entry.pid for entry in state.processes] == [os.getpid()]


def test_no_file_is_no_lab(tmp_path: Path) -> None:
    """Without a state file there is no lab."""
    assert LabState.load(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"version": 2}'])
def test_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    """A file that can't be understood is an error with the mend, never a misread lab."""
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(LabError, match=r"state\.json can't be read.*lab down"):
        LabState.load(tmp_path)
