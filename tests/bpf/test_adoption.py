# SPDX-License-Identifier: Apache-2.0
"""Taking over pinned data planes, on real pins, maps and attachments."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import SMALL, IdleLoader, real_loader, trivial_program
from tests.support.descriptors import open_descriptors
from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import xdp_link
from xdp_router.adapters.adoption import find_former, open_former
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane, InstanceExists, exchange
from xdp_router.adapters.host import link_info
from xdp_router.adapters.map_specs import MAP_SPECS, Sizes, stage_slots
from xdp_router.adapters.pins import (
    InstanceRef,
    PinError,
    find_instances,
    instance_dir,
    link_pin,
    remove_abandoned,
)
from xdp_router.core import abi
from xdp_router.core.config import config_from_flags
from xdp_router.daemon.detach import detach_interfaces
from xdp_router.daemon.kernel_state import KernelState

pytest_plugins = ("tests.support.netns",)

CONFIG = config_from_flags([("198.18.100.1:80", ["198.19.0.1:80", "198.19.0.2:80"])])


def leave_behind(
    pins: Path, *interfaces: str, attach: bool = False, sizes: Sizes = SMALL
) -> InstanceRef:
    """What a daemon that is gone has left, with one configuration written."""
    plane = DataPlane.create(IdleLoader(), sizes, instance_dir(pins, interfaces))
    state = KernelState(plane, CONFIG)
    state.write_all()
    state.open_services()
    state.beat(time.monotonic_ns() - 5_000_000_000, 1)
    assert plane.pin_dir is not None
    for name in interfaces if attach else ():
        link = xdp_link.attach(plane.entry, name, link_info(name).ifindex, None)
        link.pin(link_pin(plane.pin_dir, name))
        link.close()
    plane.close()
    return InstanceRef(interfaces, plane.pin_dir)


def ids(plane: DataPlane) -> dict[str, int]:
    return {name: bpf.map_info(fd).id for name, fd in plane.maps.items()}


@pytest.mark.parametrize("loader", ["object", "bcc"])
@in_fresh_netns
def test_a_successor_has_the_maps_the_attachments_and_its_own_program(
    bpffs: Path, loader: str
) -> None:
    """Only what is a program's own is new; its slow paths work; no other pins are left."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        found = leave_behind(bpffs, "eth0", attach=True)
        former = open_former(found)
        before, link_id = ids(former.plane), bpf.link_info(former.links["eth0"].fd).id
        plane = DataPlane.succeed(real_loader(loader), former.plane)
        plane.take_over(former.plane, {name: link.fd for name, link in former.links.items()})
        former.close()
        assert plane.pin_dir == found.path
        assert plane.owns_pins()
        plane.close()
        again = open_former(found)
        after = ids(again.plane)
        new = {name for name in after if after[name] != before[name]}
        assert new == {spec.name for spec in MAP_SPECS if spec.private}
        info = bpf.link_info(again.links["eth0"].fd)
        assert (info.id, info.prog_id) == (link_id, bpf.prog_info(again.plane.entry).id)
        assert link_info("eth0").xdp_prog_id == info.prog_id
        stages = bpf.BpfMap(again.plane.maps["stages"])
        for slot in stage_slots(4):
            assert stages.read(slot.to_bytes(4, "little"))
        assert os.listdir(found.path.parent) == [found.path.name]
        again.close()
        list(detach_interfaces(["eth0"], bpffs))
        assert not link_info("eth0").xdp_prog_id


@pytest.mark.parametrize("updated", [False, True])
@in_fresh_netns
def test_cut_short_between_exchange_and_the_last_update(bpffs: Path, updated: bool) -> None:
    """What still runs has its slow paths pinned aside: they stay until its successor runs.

    Another data plane that is made meanwhile leaves them alone; attach and detach clean up.
    """
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        for end in ("attach", "detach"):
            found = leave_behind(bpffs, "eth0", attach=True)
            former = open_former(found)
            plane = DataPlane.succeed(IdleLoader(), former.plane)
            links = {name: link.fd for name, link in former.links.items()}
            aside = plane._pin_aside(found.path.parent, links)
            aside = aside.rename(aside.with_name(":new-4194305-1"))  # nobody's process id
            exchange(aside, found.path)
            if updated:
                bpf.link_update(links["eth0"], plane.entry)
            plane.close()
            former.close()

            remove_abandoned(found.path.parent, ["eth7"])
            assert aside.exists()
            assert [each.path for each in find_instances(bpffs)] == [found.path]
            if end == "attach":
                former = open_former(found)
                plane = DataPlane.succeed(IdleLoader(), former.plane)
                plane.take_over(former.plane, {n: each.fd for n, each in former.links.items()})
                former.close()
                plane.close()
                assert os.listdir(found.path.parent) == [found.path.name]
            list(detach_interfaces(["eth0"], bpffs))
            assert os.listdir(found.path.parent) == []
            assert not link_info("eth0").xdp_prog_id


@in_fresh_netns
def test_a_takeover_that_fails_is_undone(bpffs: Path) -> None:
    """A pin that cannot be exchanged: the former program runs again, with its pins."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", None, None)
        found = leave_behind(bpffs, "eth0", attach=True)
        before = link_info("eth0").xdp_prog_id
        former = open_former(found)
        plane = DataPlane.succeed(IdleLoader(), former.plane)
        former.plane.pin_dir = found.path.with_name("elsewhere")
        with pytest.raises(PinError, match=r"elsewhere: cannot be exchanged.*detach"):
            plane.take_over(former.plane, {name: link.fd for name, link in former.links.items()})
        plane.close()
        former.close()
        assert link_info("eth0").xdp_prog_id == before
        assert os.listdir(found.path.parent) == [found.path.name]
        list(detach_interfaces(["eth0"], bpffs))


def _foreign_file(path: Path) -> None:
    (path / "somebodys").mkdir()


def _missing_map(path: Path) -> None:
    (path / "names").unlink()


def _other_value_size(path: Path) -> None:
    (path / "flow_table").unlink()
    fd = bpf.map_create(bpf.MapType.HASH, "flow_table", 16, 120, 10)
    bpf.pin(fd, str(path / "flow_table"))
    os.close(fd)


def _other_kind(path: Path) -> None:
    (path / "services").unlink()
    fd = trivial_program("services")
    bpf.pin(fd, str(path / "services"))
    os.close(fd)


def _other_table_of_before(path: Path) -> None:
    fd = bpf.map_create(bpf.MapType.HASH, "before", 16, 120, 10)
    bpf.pin(fd, str(path / "flow_table_previous"))
    os.close(fd)


def _other_number_of_counters(path: Path) -> None:
    (path / "counters").unlink()
    fd = bpf.map_create(bpf.MapType.PERCPU_ARRAY, "counters", 4, 8, abi.COUNTER_MAX + 1)
    bpf.pin(fd, str(path / "counters"))
    os.close(fd)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_foreign_file, "/somebodys: not a pin of this version: remove it"),
        (_missing_map, r"eth0: pins are missing \(names\)"),
        (_other_value_size, "/flow_table: a map of another layout.*120"),
        (_other_table_of_before, "/flow_table_previous: a map of another layout.*120"),
        (_other_kind, "/services: is a bpf-prog, expected a bpf-map"),
        (_other_number_of_counters, "/counters: a map of another layout"),
    ],
)
def test_what_is_not_ours_is_refused_by_path(
    bpffs: Path, spoil: Callable[[Path], None], words: str
) -> None:
    """Nothing is misread: the message names the pin, and detach as the mend."""
    found = leave_behind(bpffs, "eth0")
    spoil(found.path)
    before = len(open_descriptors())
    with pytest.raises(PinError, match=f"{words}.*xdp-routerd detach eth0"):
        open_former(found)
    assert len(open_descriptors()) == before


def test_who_may_take_over(bpffs: Path) -> None:
    """Exactly the same interfaces, in any order; a daemon that beats, or another ABI, refuse."""
    found = leave_behind(bpffs, "eth0", "eth1")
    assert find_former(bpffs, ["eth7"]) is None
    assert find_former(bpffs, ["eth1", "eth0"]) == found
    with pytest.raises(InstanceExists, match="eth1 already .* attach eth0 eth1, all of them"):
        find_former(bpffs, ["eth1"])
    (bpffs / "v9" / "eth1+eth2").mkdir(parents=True)
    with pytest.raises(InstanceExists, match=r"v9/eth1\+eth2: .*another version \(ABI 9"):
        find_former(bpffs, ["eth0", "eth1"])


def test_a_heartbeat_that_stopped_just_now_is_waited_for(bpffs: Path) -> None:
    """It is alive if the next beat comes, and gone if none does for a second."""
    found = leave_behind(bpffs, "eth0")
    plane = DataPlane.open(found.path)
    control = Maps(plane.maps).control
    control.write(control.read())
    control.beat(time.monotonic_ns(), 1)
    assert find_former(bpffs, ["eth0"]) == found
    control.beat(time.monotonic_ns(), 1)
    later = threading.Timer(0.1, lambda: control.beat(time.monotonic_ns(), 1))
    later.start()
    with pytest.raises(InstanceExists, match="a running daemon.*stop that daemon"):
        find_former(bpffs, ["eth0"])
    later.join()
    plane.close()


def test_numbers_follow_the_maps(bpffs: Path) -> None:
    """A backend with a flow keeps its id and its path; one without is forgotten."""
    found = leave_behind(bpffs, "eth0")
    other = config_from_flags([("198.18.100.1:80", ["198.19.0.3:80"])])
    former = open_former(found)
    maps = Maps(former.plane.maps)
    maps.flow_table.insert_noexist(bytes(16), bytes(56) + (1).to_bytes(4, "little") + bytes(68))
    config, retired = former.renumber(other)
    assert [(each.id, each.name) for each in retired] == [(1, "198.19.0.2:80")]
    assert [backend.id for backend in config.services[0].backends] == [2]
    state = KernelState(former.plane, config, adopted=True, retired=retired)
    state.write_all()
    state.open_services()
    assert {ref[0] for _, ref in maps.backend_index.items()} == {1, 2}
    kept, gone = maps.backends.read(1), maps.backends.read(0)
    assert kept is not None
    assert gone is not None
    assert kept.flags == 0, "it is not up, and whether it drains was an operator's word"
    assert gone.port == 0
    control = maps.control.read()
    assert control.heartbeat_ns == state.former.heartbeat_ns, "nobody answers yet"
    assert control.generation == state.former.generation + 1
    former.close()


@pytest.mark.parametrize("family", [4, 6])
def test_ipv6_flows_of_an_ipv4_tunnel_are_seen(bpffs: Path, family: int) -> None:
    """A removed IPv6 service's ipip backends may be of IPv4; the flows' table tells."""
    former = open_former(leave_behind(bpffs, "eth0"))
    size, at = (16, 56) if family == 4 else (40, 80)
    tables = Maps(former.plane.maps).by_family[family]
    value = (bytes(at) + (1).to_bytes(4, "little")).ljust(at + 72, b"\0")
    assert tables.flows.insert_noexist(bytes(size), value) == 0
    _, retired = former.renumber(config_from_flags([("198.18.100.1:80", ["198.19.0.3:80"])]))
    assert [each.id for each in retired] == [1]
    assert former.has_ipv6_flows is (family == 6)
    former.close()
