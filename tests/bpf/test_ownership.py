# SPDX-License-Identifier: Apache-2.0
"""What a daemon notices about its pins and attachments, on real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyroute2 import IPRoute

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire
from xdp_router.adapters import xdp_link
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.host import link_info
from xdp_router.adapters.pins import instance_dir, remove_pins
from xdp_router.daemon.ownership import NotOurs, Ownership

pytest_plugins = ("tests.support.netns",)


@contextmanager
def attached(bpffs: Path, ipr: IPRoute, lost: list[NotOurs]) -> Iterator[tuple[Ownership, Wire]]:
    """A data plane on ``eth0``, as its daemon has it."""
    wire = make_wire(ipr, "eth0", None, None)
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0"]))
    link = xdp_link.attach(plane.entry, "eth0", link_info("eth0").ifindex, None)
    yield Ownership(plane, [link], lost.append), wire
    link.close()
    plane.unpin()
    plane.close()


@in_fresh_netns
def test_all_is_ours(bpffs: Path) -> None:
    """Nothing is said; an interface that is gone is another matter."""
    with IPRoute() as ipr, attached(bpffs, ipr, []) as (ownership, wire):
        assert ownership.look() is None
        ipr.link("del", index=wire.near)
        assert ownership.look() is None


@in_fresh_netns
def test_pins_that_were_removed(bpffs: Path) -> None:
    """The directory is named, and told once."""
    lost: list[NotOurs] = []
    with IPRoute() as ipr, attached(bpffs, ipr, lost) as (ownership, _):
        where = instance_dir(bpffs, ["eth0"])
        remove_pins(where)
        asyncio.run(ownership.run())
        (why,) = lost
        assert str(where) in str(why)


@in_fresh_netns
def test_a_program_that_was_taken_off(bpffs: Path) -> None:
    """The interface is named."""
    with IPRoute() as ipr, attached(bpffs, ipr, []) as (ownership, _):
        ownership._links[0].detach()
        assert str(ownership.look()).startswith("eth0: somebody has detached")
