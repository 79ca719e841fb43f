# SPDX-License-Identifier: Apache-2.0
"""What attach would refuse because of its configuration is found before."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.small_router import flow_entries, put_flow
from xdp_router.adapters import map_memory
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.doctor_config import check_metrics, check_room, judge_memory
from xdp_router.adapters.doctor_finding import Finding, Severity
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.pins import instance_dir
from xdp_router.core.config import RouterConfig, Settings, config_from_flags
from xdp_router.daemon.kernel_state import KernelState

pytest_plugins = ("tests.support.netns",)

CONFIG = config_from_flags(
    [("198.18.100.1:80", ["198.18.1.2:8080"])], settings=Settings(max_flows=1000)
)
FLOWS = 5


@pytest.fixture
def left(bpffs: Path) -> Iterator[Path]:
    """Pins of a daemon that is gone, with flows, on eth0."""
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0"]))
    state = KernelState(plane, CONFIG)
    state.write_all()
    for port in range(1, FLOWS + 1):
        put_flow(state.maps, flow_entries(port, 5))
    plane.close()
    yield bpffs
    plane.unpin()


def with_flows(count: int) -> RouterConfig:
    return replace(CONFIG, settings=replace(CONFIG.settings, max_flows=count))


def found(pins: Path, config: RouterConfig, *interfaces: str) -> list[Finding]:
    return list(check_room(pins, interfaces, config))


def test_nothing_is_there(bpffs: Path) -> None:
    """Only memory counts."""
    (memory,) = found(bpffs, CONFIG, "eth0")
    assert (memory.code, memory.severity, memory.subject) == (
        *("memory", Severity.OK),
        "max_flows 1000",
    )
    assert "take" in memory.text


def test_too_few_for_the_flows_that_are_there(left: Path) -> None:
    """As attach refuses it, with what it asks for; where there is room only memory is told."""
    room, memory = found(left, with_flows(FLOWS - 1), "eth0")
    assert (room.code, room.severity) == ("no_room_for_flows", Severity.FAIL)
    assert f"{FLOWS} connections are established" in room.text
    assert room.mend.startswith(f"attach with --max-flows {FLOWS} or more")
    assert memory.severity is Severity.OK
    (memory,) = found(left, with_flows(FLOWS), "eth0")
    assert memory.severity is Severity.OK
    # What is there already is not taken again.
    (same,) = found(left, with_flows(1000), "eth0")
    assert "kernel memory more" in same.text


def test_other_interfaces_than_those_of_what_is_there(left: Path) -> None:
    """All of them and no other have to be attached."""
    (other,) = found(left, CONFIG, "eth0", "eth1")
    assert (other.code, other.severity) == ("occupied", Severity.FAIL)
    assert "eth0 already has a data plane" in other.text
    assert other.mend.startswith("attach eth0, all of them and no other")


def test_what_cannot_be_taken_over(left: Path) -> None:
    """A pin that is missing is told as attach tells it."""
    (instance_dir(left, ["eth0"]) / "flow_table").unlink()
    (broken,) = found(left, CONFIG, "eth0")
    assert (broken.code, broken.severity) == ("cannot_be_taken_over", Severity.FAIL)
    assert "pins are missing (flow_table" in broken.text
    assert "xdp-routerd detach eth0" in broken.mend


def test_memory_is_judged_by_what_is_available() -> None:
    """Enough, little, not enough; with what would do."""
    sizes = Sizes(max_flows=1_000_000)
    needed = map_memory.memory_of(sizes)
    assert judge_memory(sizes, 0, 2 * needed).severity is Severity.OK
    assert judge_memory(sizes, 0, 0).severity is Severity.OK  # nobody knows
    little = judge_memory(sizes, 0, int(1.1 * needed))
    assert (little.code, little.severity) == ("little_memory", Severity.WARN)
    none = judge_memory(sizes, 0, needed - 1)
    assert (none.code, none.severity) == ("no_memory", Severity.FAIL)
    assert none.text.endswith("are available: attach is refused")
    fitting = int(none.mend.removeprefix("max_flows = ").removesuffix(" at most"))
    less = replace(sizes, max_flows=fitting)
    assert judge_memory(less, 0, needed - 1).severity is Severity.OK
    assert judge_memory(sizes, needed, 1 << 20).severity is Severity.OK  # it is all there
    assert judge_memory(sizes, 0, 4096).mend == "lower max_flows and pending_flows"


def test_where_metrics_are_served() -> None:
    """A port that somebody has is told; without metrics nobody looks."""
    assert list(check_metrics(CONFIG)) == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1", server.getsockname()[1]
        config = replace(CONFIG, settings=replace(CONFIG.settings, metrics=address))
        (taken,) = check_metrics(config)
        assert (taken.code, taken.severity) == ("metrics", Severity.FAIL)
        assert "in use" in taken.text
    (free,) = check_metrics(config)
    assert free.severity is Severity.OK
