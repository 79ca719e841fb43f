# SPDX-License-Identifier: Apache-2.0
"""Changes to the host: noted before they are made, undone, handed on; on real sysctls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.bpf_programs import SMALL
from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import sysctl
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.adapters.notes import Note, Notes
from xdp_router.daemon.host_changes import HostChanges

(SPEC,) = (spec for spec in MAP_SPECS if spec.name == "notes")
ALONE = Path("/nonexistent/pins")
"""Where pins would be: no other data plane has any."""

FORWARDING = "net.ipv4.conf.lo.forwarding"
ACCEPT = "net.ipv4.conf.lo.accept_local"


@contextlib.contextmanager
def notes() -> Iterator[Notes]:
    assert SPEC.value_size is not None
    fd = bpf.map_create(
        SPEC.type, SPEC.name, SPEC.key_size, SPEC.value_size, SPEC.entries(SMALL), SPEC.flags
    )
    try:
        yield Notes(fd)
    finally:
        os.close(fd)


def operator_sets(name: str, value: str) -> None:
    Path("/proc/sys", name.replace(".", "/")).write_text(value)


@in_fresh_netns
def test_set_noted_and_restored() -> None:
    """The note says what was and what is; what somebody has changed since stays."""
    operator_sets(FORWARDING, "0")
    with notes() as noted:
        changes = HostChanges(noted)
        assert changes.set(FORWARDING, "1", "a test")
        assert changes.set(ACCEPT, "1", "a test")
        assert sysctl.read(FORWARDING) == "1"
        assert noted.read(Note.SYSCTLS).splitlines() == [f"{FORWARDING} 0 1", f"{ACCEPT} 0 1"]
        assert noted.read(Note.NETNS) == sysctl.namespace_id()
        operator_sets(ACCEPT, "0")
        operator_sets(ACCEPT, "1")  # the same as ours: nobody can tell
        operator_sets(FORWARDING, "0")
        operator_sets("net.ipv4.conf.lo.rp_filter", "2")
        changes.restore(ALONE, ALONE / "own")
        assert (sysctl.read(FORWARDING), sysctl.read(ACCEPT)) == ("0", "0")
        assert sysctl.read("net.ipv4.conf.lo.rp_filter") == "2"


@in_fresh_netns
def test_nobody_is_fought() -> None:
    """What is as wanted is not ours; what somebody sets back is not set again."""
    operator_sets(FORWARDING, "1")
    with notes() as noted:
        changes = HostChanges(noted)
        assert not changes.set(FORWARDING, "1", "a test")
        assert changes.set(ACCEPT, "1", "a test")
        operator_sets(ACCEPT, "0")
        assert not changes.set(ACCEPT, "1", "a test")
        assert sysctl.read(ACCEPT) == "0"
        changes.restore(ALONE, ALONE / "own")
        assert sysctl.read(FORWARDING) == "1"


@in_fresh_netns
def test_a_successor_takes_over() -> None:
    """It undoes what still holds, and what it has not done itself otherwise it leaves."""
    operator_sets(FORWARDING, "0")
    with notes() as noted:
        killed = HostChanges(noted)
        killed.set(FORWARDING, "1", "a test")
        killed.set(ACCEPT, "1", "a test")
        killed.reserve_ports([(61_000, 61_003)])
        operator_sets(ACCEPT, "0")
        changes = HostChanges(noted, adopted=True)
        assert noted.read(Note.SYSCTLS) == f"{FORWARDING} 0 1"
        changes.reserve_ports([(61_002, 61_009)])
        assert noted.read(Note.RESERVED_PORTS) == "61000-61009"
        changes.restore(ALONE, ALONE / "own")
        assert sysctl.read(FORWARDING) == "0"
        assert sysctl.read(sysctl.RESERVED_PORTS) == ""


@in_fresh_netns
def test_several_ranges_are_reserved() -> None:
    """Probe ports and source ports of fullnat, and all of them are given back."""
    with notes() as noted:
        changes = HostChanges(noted)
        changes.reserve_ports([(61_000, 61_003), (20_000, 20_001)])
        assert sysctl.read(sysctl.RESERVED_PORTS) == "20000-20001,61000-61003"
        assert noted.read(Note.RESERVED_PORTS) == "20000-20001,61000-61003"
        changes.restore(ALONE, ALONE / "own")
        assert sysctl.read(sysctl.RESERVED_PORTS) == ""


@in_fresh_netns
def test_what_cannot_be_noted_is_not_done() -> None:
    """Nobody could undo it; neither is what the kernel refuses, or does not have, a failure."""
    with notes() as noted:
        changes = HostChanges(noted)
        value = "1" * 5000
        assert not changes.set(ACCEPT, value, "a test")
        assert sysctl.read(ACCEPT) == "0"
        assert not changes.set("net.ipv4.conf.none.forwarding", "1", "a test")
        changes.restore(ALONE, ALONE / "own")


@in_fresh_netns
def test_what_was_not_done_is_not_noted() -> None:
    """Else ``detach`` or a successor would undo what an operator has done by hand."""
    with notes() as noted:
        changes = HostChanges(noted)
        assert changes.set(ACCEPT, "1", "a test")
        assert not changes.set(FORWARDING, "no number", "a test")  # the kernel refuses it
        assert noted.read(Note.SYSCTLS) == f"{ACCEPT} 0 1"


@in_fresh_netns
def test_an_interface_that_comes_under_the_name_of_another() -> None:
    """It is tried anew, and undone is what was done to it; others are not concerned."""
    operator_sets(FORWARDING, "0")
    other = "net.ipv4.conf.default.accept_local"
    with notes() as noted:
        changes = HostChanges(noted)
        for name in (FORWARDING, ACCEPT, other):
            assert changes.set(name, "1", "a test")
        changes.interface_gone("lo")
        assert noted.read(Note.SYSCTLS) == f"{other} 0 1"
        operator_sets(FORWARDING, "0")
        operator_sets(other, "0")
        assert changes.set(FORWARDING, "1", "a test")
        assert not changes.set(other, "1", "a test")
        changes.restore(ALONE, ALONE / "own")
        assert (sysctl.read(FORWARDING), sysctl.read(ACCEPT)) == ("0", "1")
