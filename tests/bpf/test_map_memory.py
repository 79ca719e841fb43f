# SPDX-License-Identifier: Apache-2.0
"""What maps take is what the kernel says that they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.descriptors import open_descriptors
from xdp_router.adapters import map_memory
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.map_memory import TooLarge
from xdp_router.adapters.map_specs import MAP_SPECS, Sizes


def test_the_kernel_says_the_same() -> None:
    """Of all maps together, within five percent: what every map has once is not counted."""
    sizes = Sizes(max_flows=5000, pending=10_000, flood=10_000, backends=500, ipv6=True)
    plane = DataPlane.create(IdleLoader(), sizes, None)
    taken = 0
    specs = {spec.name: spec for spec in MAP_SPECS}
    for name, fd in plane.maps.items():
        if name in specs and specs[name].value_size is not None:
            lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
            taken += next(int(line.split()[1]) for line in lines if line.startswith("memlock:"))
    plane.close()
    counted = map_memory.memory_of(sizes)
    assert 0.95 * taken <= counted <= 1.05 * taken
    one_family = map_memory.memory_of(replace(sizes, ipv6=False))
    assert one_family < 0.9 * counted


def test_how_many_flows_fit() -> None:
    """The most of them; none where the other maps alone are too large."""
    sizes = Sizes(max_flows=1_000_000)
    room = map_memory.memory_of(replace(sizes, max_flows=123_456))
    assert map_memory.most_flows(sizes, room) == 123_456
    assert map_memory.most_flows(sizes, 1 << 40) == 1_000_000
    assert map_memory.most_flows(sizes, 1000) == 0


def test_what_is_available(tmp_path: Path) -> None:
    """As the kernel tells it, in bytes."""
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:   24 kB\n")
    assert map_memory.available(file) == 24 << 10
    assert map_memory.available(tmp_path / "none") == 0
    file.write_text("MemTotal:  100 kB\n")
    assert map_memory.available(file) == 0
    assert map_memory.available() > 1 << 20
    assert [map_memory.shown(each) for each in (5 << 20, 3 << 29)] == ["5 MB", "1.5 GB"]


def test_too_large_for_the_kernel() -> None:
    """Said with what it takes, what there is, and what to do; nothing stays open."""
    fds = len(open_descriptors())
    words = r"create map flow_table .*: max_flows = 200000000 and pending_flows = 1024 take .* GB "
    with pytest.raises(TooLarge, match=words + r".*are available: lower them"):
        DataPlane.create(IdleLoader(), replace(SMALL, max_flows=200_000_000), None)
    assert len(open_descriptors()) == fds
