# SPDX-License-Identifier: Apache-2.0
"""Findings about directories of pins, on a real BPF file system."""

from __future__ import annotations

import os
from pathlib import Path

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.doctor_finding import Severity
from xdp_router.adapters.doctor_pins import attachments, check_pins
from xdp_router.core import abi

pytest_plugins = ("tests.support.netns",)

NO_SUCH_PID = 2**22 + 1  # beyond PID_MAX_LIMIT


def _pin_a_map(path: Path) -> None:
    path.parent.mkdir(parents=True)
    fd = bpf.map_create(bpf.MapType.ARRAY, path.name, 4, 4, 1)
    try:
        bpf.pin(fd, str(path))
    finally:
        os.close(fd)


def test_nothing_is_pinned(bpffs: Path) -> None:
    """No directory, or an empty one, is in order."""
    for root in (bpffs, bpffs / "none"):
        (found,) = check_pins(root)
        assert (found.code, found.severity) == ("pins", Severity.OK)
        assert attachments(root) == {}


def test_leftovers(bpffs: Path) -> None:
    """Pins of another version, half-made ones of a dead daemon, and incomplete ones are found."""
    ours = bpffs / f"v{abi.ABI_VERSION}"
    _pin_a_map(bpffs / f"v{abi.ABI_VERSION + 1}" / "eth0" / "control")
    _pin_a_map(ours / f":new-{NO_SUCH_PID}-1" / "control")
    _pin_a_map(ours / f":new-{os.getpid()}-1" / "control")  # under way
    _pin_a_map(ours / "eth0+eth1" / "services")
    found = {each.code: each for each in check_pins(bpffs)}
    assert set(found) == {"pins_half_removed", "pins_of_other_version", "pins_abandoned"}
    assert found["pins_half_removed"].severity is Severity.FAIL
    assert found["pins_half_removed"].mend == f"sudo xdp-routerd detach eth0 eth1 --pins {bpffs}"
    assert str(NO_SUCH_PID) in found["pins_abandoned"].subject
