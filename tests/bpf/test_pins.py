# SPDX-License-Identifier: Apache-2.0
"""Names and places of pins, on a real BPF file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xdp_router.adapters.pins import (
    DEFAULT_ROOT,
    InstanceRef,
    PinError,
    exchange,
    find_instances,
    identity,
    instance_dir,
    instance_interfaces,
    instance_of,
    link_pin,
    pinned_links,
    remove_pins,
)
from xdp_router.core import abi

pytest_plugins = ("tests.support.netns",)


def test_instances_are_found_by_interface(bpffs: Path) -> None:
    """Names with dots and plus signs come back as they were; half-made ones are not shown."""
    first, second = ["eth0.100", "a+b"], ["be1"]
    for interfaces in (first, second):
        instance_dir(bpffs, interfaces).mkdir(parents=True)
    (bpffs / f"v{abi.ABI_VERSION}" / ":new-1-2").mkdir()
    assert [i.interfaces for i in find_instances(bpffs)] == [("be1",), ("eth0.100", "a+b")]
    found = instance_of(bpffs, "a+b")
    assert found is not None
    assert found.name == "eth0.100+a+b"
    assert found.detach == f"xdp-routerd detach eth0.100 a+b --pins {bpffs}"
    usual = InstanceRef(("eth0", "eth1"), instance_dir(DEFAULT_ROOT, ("eth0", "eth1")))
    assert usual.detach == "xdp-routerd detach eth0 eth1"
    assert instance_of(bpffs, "eth0") is None
    assert instance_interfaces(found.path) == ("eth0.100", "a+b")
    assert find_instances(bpffs / "nothing") == []


def test_instance_name_has_a_limit() -> None:
    """More interfaces than a pin's name can hold are refused with the way out."""
    with pytest.raises(Exception, match="more than one daemon"):
        instance_dir(DEFAULT_ROOT, [f"interface{n:05}" for n in range(20)])


def test_link_pins_are_told_by_interface(bpffs: Path) -> None:
    """A link's pin gives its interface's name back."""
    assert link_pin(bpffs, "eth0.1").name.startswith("link_")
    link_pin(bpffs, "eth0.1").mkdir()
    assert pinned_links(bpffs) == {"eth0.1": link_pin(bpffs, "eth0.1")}


def test_a_root_that_is_no_directory(tmp_path: Path) -> None:
    """The error names the path and the option."""
    (tmp_path / "file").touch()
    with pytest.raises(PinError, match=r"/file is not a directory that pins are in.*--pins"):
        find_instances(tmp_path / "file")


def test_pins_that_cannot_be_removed_are_named(bpffs: Path) -> None:
    """Something else in the directory: an error with its path. Nothing there: nothing happens."""
    remove_pins(bpffs / "nothing")
    (bpffs / "plane" / "somebodys").mkdir(parents=True)
    with pytest.raises(PinError, match=r"/plane: the pins cannot be removed"):
        remove_pins(bpffs / "plane")
    assert os.listdir(bpffs / "plane") == ["somebodys"]


def test_a_removal_that_is_cut_short_leaves_the_heartbeat(tmp_path: Path) -> None:
    """Attachments go first and ``control`` last, whatever order the file system gives."""
    plane = tmp_path / "eth0"
    (plane / "flow_table").mkdir(parents=True)  # cannot be unlinked
    for name in ("control", "link_eth0", "link_zeth", "a"):
        (plane / name).touch()
    with pytest.raises(PinError):
        remove_pins(plane)
    assert "control" in os.listdir(plane)
    assert not [name for name in os.listdir(plane) if name.startswith("link_")]


def test_directories_change_places_in_one_step(bpffs: Path) -> None:
    """Each is the other afterwards; what is not there is named, and nothing is changed."""
    first, second = bpffs / "first", bpffs / "second"
    first.mkdir()
    second.mkdir()
    before = identity(first), identity(second)
    exchange(first, second)
    assert (identity(second), identity(first)) == before
    second.rmdir()
    with pytest.raises(PinError, match=f"{second}: cannot be exchanged.*No such file"):
        exchange(first, second)
    assert identity(first) == before[1]
