# SPDX-License-Identifier: Apache-2.0
"""Who ends gives back the ports that nobody else needs, and leaves the others to who does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters import sysctl
from xdp_router.adapters.bpf_maps import Control
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pins import instance_dir
from xdp_router.adapters.port_sharing import leave_to_others, release
from xdp_router.daemon.detach import detach_interfaces

pytest_plugins = ("tests.support.netns",)


@contextlib.contextmanager
def pinned(
    root: Path,
    name: str,
    ports: tuple[int, int],
    noted: str = "",
    netns: str = "",
    nat_ports: tuple[int, int] = (0, 0),
) -> Iterator[tuple[Path, Notes]]:
    """A data plane with a probe port range, and the note of what its daemon has reserved."""
    where = instance_dir(root, [name])
    plane = DataPlane.create(IdleLoader(), SMALL, where)
    control = Control(plane.maps["control"])
    control.write(
        replace(
            control.read(),
            probe_port_min=ports[0],
            probe_port_max=ports[1],
            nat_port_min=nat_ports[0],
            nat_port_max=nat_ports[1],
        )
    )
    notes = Notes(plane.maps["notes"])
    notes.write(Note.RESERVED_PORTS, noted)
    notes.write(Note.NETNS, netns or sysctl.namespace_id())
    try:
        yield where, notes
    finally:
        plane.unpin()
        plane.close()


@in_fresh_netns
def test_ports_that_another_needs_change_hands(bpffs: Path) -> None:
    """Its note gets them, beside what it has; the rest may be released."""
    with (
        pinned(bpffs, "a", (61_000, 61_009), "61000-61009") as (own, _),
        pinned(bpffs, "b", (61_005, 61_014), "61010-61014") as (_, notes),
    ):
        assert leave_to_others(bpffs, own, range(61_000, 61_010)) == set(range(61_000, 61_005))
        assert notes.read(Note.RESERVED_PORTS) == "61005-61014"


@in_fresh_netns
def test_ports_of_fullnat_change_hands_too(bpffs: Path) -> None:
    """What another one's flows are translated to stays reserved."""
    with (
        pinned(bpffs, "a", (61_000, 61_009), "20000-20003") as (own, _),
        pinned(bpffs, "b", (62_000, 62_009), nat_ports=(20_002, 20_009)) as (_, notes),
    ):
        assert leave_to_others(bpffs, own, range(20_000, 20_004)) == {20_000, 20_001}
        assert notes.read(Note.RESERVED_PORTS) == "20002-20003"


@in_fresh_netns
def test_another_namespace_needs_nothing_here(bpffs: Path) -> None:
    """Ports are reserved in each network namespace by itself."""
    with (
        pinned(bpffs, "a", (61_000, 61_009)) as (own, _),
        pinned(bpffs, "b", (61_000, 61_009), netns="1:2") as (_, notes),
    ):
        assert leave_to_others(bpffs, own, range(61_000, 61_010)) == set(range(61_000, 61_010))
        assert notes.read(Note.RESERVED_PORTS) == ""


@in_fresh_netns
def test_detach_leaves_what_another_needs(bpffs: Path) -> None:
    """The ports stay reserved while one of two data planes is left, and go with the last one."""
    sysctl.Sysctls().reserve_ports(61_000, 61_009)
    with (
        pinned(bpffs, "a", (61_000, 61_009), "61000-61009"),
        pinned(bpffs, "b", (61_000, 61_009)),
    ):
        said = list(detach_interfaces(["a"], bpffs))
        assert "ports 61000-61009: still reserved, another data plane needs them" in said
        assert sysctl.read(sysctl.RESERVED_PORTS) == "61000-61009"
        assert "ports 61000-61009: no longer reserved" in list(detach_interfaces(["b"], bpffs))
        assert sysctl.read(sysctl.RESERVED_PORTS) == ""


@in_fresh_netns
def test_a_daemon_that_ends_gives_back_what_others_left_to_it(bpffs: Path) -> None:
    """Its own ports and those in its note, unless one is left that needs them."""
    sysctl.Sysctls().reserve_ports(61_000, 61_004)  # by one that has ended
    with (
        pinned(bpffs, "a", (61_000, 61_009), "61000-61009") as (own, notes),
        pinned(bpffs, "b", (61_008, 61_019)) as (_, others),
    ):
        sysctls = sysctl.Sysctls()
        sysctls.reserve_ports(61_000, 61_009)
        assert sysctls.reserved == frozenset(range(61_005, 61_010))
        release(sysctls, notes, bpffs, own)
        assert sysctl.read(sysctl.RESERVED_PORTS) == "61008-61009"
        assert others.read(Note.RESERVED_PORTS) == "61008-61009"
