# SPDX-License-Identifier: Apache-2.0
"""Findings about kernel, privileges, libraries and the compiled program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.privileges import require_root
from xdp_router.adapters import doctor_system
from xdp_router.adapters.doctor_finding import Severity
from xdp_router.adapters.loader_bcc import bcc_available


def test_memlock() -> None:
    """Only a limit on an old kernel matters."""
    assert not list(doctor_system.judge_memlock((5, 11), 65_536))
    assert not list(doctor_system.judge_memlock((5, 10), -1))
    (found,) = doctor_system.judge_memlock((5, 10), 65_536)
    assert (found.code, found.severity) == ("memlock", Severity.WARN)


def test_this_kernel() -> None:
    """Asked as root, a kernel that runs the tests is in order."""
    require_root()
    found = {each.code: each.severity for each in doctor_system.check_kernel()}
    assert found["kernel"] is Severity.OK
    assert "jit" in found


def test_privileges_are_those_of_the_process() -> None:
    """Root has what is needed; the lack of it fails, and only warns beside a daemon."""
    found = list(doctor_system.check_privileges(daemon_runs=False))
    expected = Severity.OK if os.geteuid() == 0 else Severity.FAIL
    assert (found[0].code, found[0].severity) == ("capabilities", expected)


@pytest.mark.parametrize("content", [None, b"no ELF"])
def test_object_that_is_no_use(tmp_path: Path, content: bytes | None) -> None:
    """A missing object fails unless bcc can stand in; a broken one always does."""
    path = tmp_path / "xdp_router.bpf.o"
    if content is not None:
        path.write_bytes(content)
    (found,) = (each for each in doctor_system.check_loaders(path) if each.code == "object")
    soft = content is None and bcc_available()
    assert found.severity is (Severity.WARN if soft else Severity.FAIL)
    assert "make build" in found.mend


def test_no_bpffs(tmp_path: Path) -> None:
    """A directory on another file system fails, with the mount command."""
    (found,) = doctor_system.check_bpffs(tmp_path)
    assert found.severity is Severity.FAIL
    assert found.mend.startswith("mkdir -p")
    assert "mount -t bpf" in found.mend
