# SPDX-License-Identifier: Apache-2.0
"""The data plane from nothing to pinned and back, by both loaders."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.bpf_programs import LOADERS, SMALL, IdleLoader, real_loader, trivial_program
from tests.support.descriptors import open_descriptors
from tests.support.fresh_netns import in_fresh_netns
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import socket_lookup
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import Control
from xdp_router.adapters.dataplane import (
    DataPlane,
    InstanceExists,
    NoInstance,
    daemon_alive,
    require_free,
)
from xdp_router.adapters.map_specs import (
    ENTRY_PROGRAM,
    MAP_SPECS,
    STAGE_PROGRAMS,
    DeclaredMap,
    ProgramMismatch,
    Sizes,
    program_name,
    stage_slots,
)
from xdp_router.adapters.pins import (
    NoBpfFs,
    PinError,
    find_instances,
    instance_dir,
    remove_pins,
    require_bpffs,
)
from xdp_router.core import abi

pytest_plugins = ("tests.support.netns",)

PROGRAMS = {ENTRY_PROGRAM, *STAGE_PROGRAMS}
PROGRAMS6 = {program_name(name, 6) for name in PROGRAMS}


class _Broken:
    """A loader whose program lacks everything but its entry."""

    name = "broken"

    def open(self, family: int = 4) -> _Broken:
        return self

    @property
    def maps(self) -> dict[str, DeclaredMap]:
        return {}

    def load(self, map_fds: Mapping[str, int]) -> dict[str, int]:
        return {ENTRY_PROGRAM: trivial_program(ENTRY_PROGRAM)}

    def close(self) -> None:
        pass


def _open_fds() -> int:
    return len(open_descriptors())


@pytest.mark.parametrize(
    ("loader", "ipv6"),
    [("object", False), ("object", True), ("bcc", True)],
    ids=("object-ipv4", "object-both", "bcc-both"),
)
def test_create_makes_every_map_and_program(loader: str, ipv6: bool) -> None:
    """Kinds and sizes are those of the table; every stage's slot holds its program.

    Those of IPv6 are there if some service is of it.
    """
    require_root()
    sizes = dataclasses.replace(SMALL, ipv6=ipv6)
    plane = DataPlane.create(real_loader(loader), sizes, None)
    assert plane.loader == loader
    assert set(plane.programs) == PROGRAMS | (PROGRAMS6 if ipv6 else set())
    for spec in MAP_SPECS:
        info = bpf.map_info(plane.maps[spec.name])
        assert (info.name, info.type) == (spec.name[:15], spec.type)
        assert info.max_entries == spec.entries(sizes)
        assert info.key_size == spec.key_size
        assert spec.value_size in (None, info.value_size)
    stages = bpf.BpfMap(plane.maps["stages"])
    for index, name in (stage_slots(4) | stage_slots(6)).items():
        held = stages.read(index.to_bytes(4, "little"))
        if name not in plane.programs:
            assert held is None
            continue
        assert held is not None
        assert int.from_bytes(held, "little") == bpf.prog_info(plane.programs[name]).id
    plane.close()


@pytest.mark.parametrize("loader", LOADERS)
def test_pinned_data_plane_outlives_its_creator(loader: str, bpffs: Path) -> None:
    """After closing, opening the pins gives the same maps and programs; unpin removes all."""
    pins = instance_dir(bpffs, ["eth0.100", "eth1"])
    before = _open_fds()
    created = DataPlane.create(real_loader(loader), SMALL, pins)
    ids = {name: bpf.map_info(fd).id for name, fd in created.maps.items()}
    programs = {name: bpf.prog_info(fd).id for name, fd in created.programs.items()}
    created.close()
    opened = DataPlane.open(pins)
    assert {name: bpf.map_info(fd).id for name, fd in opened.maps.items()} == ids
    assert {name: bpf.prog_info(fd).id for name, fd in opened.programs.items()} == programs
    stages = bpf.BpfMap(opened.maps["stages"])
    for slot, name in stage_slots(4).items():
        assert (stages.read(slot.to_bytes(4, "little")) is not None) is (name in PROGRAMS)
    opened.unpin()
    opened.unpin()
    opened.close()
    assert find_instances(bpffs) == []
    assert os.listdir(pins.parent) == []
    assert _open_fds() <= before + (2 if loader == "bcc" else 0)  # libbcc keeps some


@pytest.mark.parametrize("vanish", [1, 99])
def test_a_pin_that_goes_meanwhile_is_no_fault(
    vanish: int, bpffs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that has moved all flows unpins the table of before. Once; or each time, which is
    told."""
    pins = instance_dir(bpffs, ["eth0"])
    created = DataPlane.create(IdleLoader(), SMALL, pins)
    before = _open_fds()
    listed = os.listdir
    looks: list[Path] = []

    def and_then_one_goes(path: Path) -> list[str]:
        if path != pins:
            return listed(path)
        looks.append(path)
        return [*listed(path), *(["flow_table_previous"] if len(looks) <= vanish else [])]

    monkeypatch.setattr(os, "listdir", and_then_one_goes)
    if vanish == 1:
        opened = DataPlane.open(pins)
        assert opened.maps.keys() == created.maps.keys()
        opened.close()
    else:
        with pytest.raises(BpfError, match="flow_table_previous"):
            DataPlane.open(pins)
    assert _open_fds() == before
    created.unpin()
    created.close()


def test_without_bpffs_the_mount_command_is_named(tmp_path: Path, bpffs: Path) -> None:
    """An ordinary directory is refused with the command; a bpffs is taken, also below it."""
    with pytest.raises(NoBpfFs, match=f"mount -t bpf bpf {tmp_path}"):
        DataPlane.create(IdleLoader(), SMALL, instance_dir(tmp_path, ["eth0"]))
    assert list(tmp_path.iterdir()) == []
    require_bpffs(bpffs / "some" / "where")


@pytest.mark.parametrize(
    ("beat_ago_ns", "words"),
    [
        (None, "a daemon that is gone.*xdp-routerd detach eth0 eth1 --pins "),
        (60_000_000_000, "a daemon that is gone.*xdp-routerd detach eth0 eth1 --pins "),
        (0, "a running daemon.*stop that daemon"),
    ],
)
def test_an_interface_has_one_data_plane(beat_ago_ns: int | None, words: str, bpffs: Path) -> None:
    """A second one for any of its interfaces is refused, by what the heartbeat tells."""
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0", "eth1"]))
    if beat_ago_ns is not None:
        control = Control(plane.maps["control"])
        control.write(control.read())
        control.beat(time.monotonic_ns() - beat_ago_ns, 0)
    assert daemon_alive(instance_dir(bpffs, ["eth0", "eth1"])) is (beat_ago_ns == 0)
    require_free(bpffs, ["eth2", "eth3"])
    with pytest.raises(InstanceExists, match=f"eth1 already has .*{words}"):
        require_free(bpffs, ["eth2", "eth1"])
    with pytest.raises(InstanceExists, match=f"eth1 already has .*{words}"):
        DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth1", "eth2"]))
    plane.unpin()
    plane.close()


def test_failure_leaves_nothing_behind(bpffs: Path) -> None:
    """A program that does not fit: an error that names what is missing; no pin, no fd."""
    before = _open_fds()
    with pytest.raises(ProgramMismatch, match=r"stage_syn.*make build"):
        DataPlane.create(_Broken(), SMALL, instance_dir(bpffs, ["eth0"]))
    assert _open_fds() == before
    assert not (bpffs / f"v{abi.ABI_VERSION}").exists()


def test_a_place_that_cannot_be_made_is_named(bpffs: Path) -> None:
    """A BPF file system takes no dots: the error has the path, the reason and the option."""
    with pytest.raises(PinError, match=r"/a\.b: .*no dots in names.*--pins"):
        DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs / "a.b", ["eth0"]))


def test_a_half_made_directory_of_a_dead_process_is_removed(bpffs: Path) -> None:
    """What a killed process left aside goes with the next create; a living one's stays."""
    folder = bpffs / f"v{abi.ABI_VERSION}"
    folder.mkdir()
    dead, alive = folder / ":new-4194305-1", folder / f":new-{os.getppid()}-1"
    for directory in (dead, alive):
        directory.mkdir()
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0"]))
    assert not dead.exists()
    assert alive.exists()
    plane.unpin()
    plane.close()


def test_opening_what_is_not_there(bpffs: Path) -> None:
    """No pins: an error that says how to start."""
    with pytest.raises(NoInstance, match="xdp-routerd attach"):
        DataPlane.open(instance_dir(bpffs, ["eth0"]))


def test_time_without_the_large_table(record_property: Callable[[str, object], None]) -> None:
    """Loading by object is quick when the tables are small; the figure is reported."""
    require_root()
    start = time.monotonic_ns()
    DataPlane.create(real_loader("object"), Sizes(max_flows=1), None).close()
    elapsed_ms = (time.monotonic_ns() - start) / 1e6
    record_property("load_ms", elapsed_ms)
    assert elapsed_ms < 5000


def test_a_successors_pins_stay(bpffs: Path) -> None:
    """What was detached, and attached by another since, is not removed by who was there before."""
    where = instance_dir(bpffs, ["eth0"])
    old = DataPlane.create(IdleLoader(), SMALL, where)
    assert old.owns_pins()
    remove_pins(where)
    assert not old.owns_pins()
    new = DataPlane.create(IdleLoader(), SMALL, where)
    assert not old.owns_pins()
    assert new.owns_pins()
    old.unpin()
    assert new.owns_pins()
    assert "control" in os.listdir(where)
    new.unpin()
    assert not where.exists()
    old.close()
    new.close()


@in_fresh_netns
def test_the_lookup_link_goes_with_the_pins(bpffs: Path) -> None:
    """Pinned beside all else, opened again, handed to a successor's pins, detached with the last
    of them."""
    where = instance_dir(bpffs, ["v0"])
    plane = DataPlane.create(IdleLoader(), SMALL, where)
    program = socket_lookup.load(real_loader("object"), plane.maps)
    plane.hold_lookup(socket_lookup.attach(program))
    os.close(program)
    watched = os.dup(plane.lookup_link)
    plane.close()
    former = DataPlane.open(where)
    assert bpf.link_info(former.lookup_link) == bpf.link_info(watched)
    new = DataPlane.succeed(IdleLoader(), former)
    new.take_over(former, {})
    former.close()
    assert (where / "lookup_link").exists()
    assert bpf.link_info(new.lookup_link).id == bpf.link_info(watched).id
    os.close(watched)
    number = bpf.link_info(new.lookup_link).id
    new.drop_lookup()
    new.drop_lookup()
    assert not (where / "lookup_link").exists()
    with pytest.raises(BpfError):
        os.close(bpf.link_by_id(number))
    program = socket_lookup.load(real_loader("object"), new.maps)
    new.hold_lookup(socket_lookup.attach(program))
    os.close(program)
    number = bpf.link_info(new.lookup_link).id
    new.unpin()
    new.close()
    with pytest.raises(BpfError):
        os.close(bpf.link_by_id(number))
