# SPDX-License-Identifier: Apache-2.0
"""Attaching, letting go and taking back, on real interfaces and pins, events by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import SMALL, IdleLoader, trivial_program
from tests.support.fresh_netns import Wire, enter_netns, in_fresh_netns, make_wire, open_netns
from xdp_router.adapters import xdp_link
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.host import LinkInfo, link_info
from xdp_router.adapters.netlink import LinkEvent
from xdp_router.adapters.pins import instance_dir, pinned_links
from xdp_router.adapters.xdp_link import AttachMode
from xdp_router.daemon import attachments
from xdp_router.daemon.attachments import Attachments
from xdp_router.daemon.network import Network

pytest_plugins = ("tests.support.netns",)


class Told:
    """The network's place: remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def interface_name(self, ifindex: int) -> str:
        try:
            return socket.if_indextoname(ifindex)
        except OSError:
            return str(ifindex)

    def interface_gone(self, ifindex: int, name: str) -> None:
        self.heard.append(f"{name} gone")

    def interface_coming(self, link: LinkInfo) -> None:
        self.heard.append(f"{link.name} coming")

    def interface_not_coming(self, link: LinkInfo) -> None:
        self.heard.append(f"{link.name} not coming")

    def attached(self, link: LinkInfo) -> None:
        self.heard.append(f"{link.name} attached")

    def link_changed(self, event: LinkEvent) -> None:
        self.heard.append(f"{event.link.name} {event.what}")


@dataclass
class Place:
    """A data plane on ``eth0`` and ``eth1``, attached, and what was told about it."""

    ipr: IPRoute
    plane: DataPlane
    made: Attachments
    wires: list[Wire] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    back: list[tuple[str, set[int]]] = field(default_factory=list)

    def came_back(self, link: LinkInfo, former: Collection[int]) -> None:
        self.back.append((link.name, set(former)))

    def pinned(self) -> set[str]:
        assert self.plane.pin_dir is not None
        return set(pinned_links(self.plane.pin_dir))

    def wire(self, name: str) -> None:
        """Lay a wire; the far end lives as long as the descriptor of its namespace."""
        self.wires.append(make_wire(self.ipr, name, None, None))

    def event(self, what: str, link: LinkInfo) -> None:
        self.made.link_changed(LinkEvent(what, link))

    def delete(self, name: str) -> LinkInfo:
        """Delete an interface, and tell of it."""
        link = link_info(name)
        self.ipr.link("del", index=link.ifindex)
        self.event("deleted", link)
        return link

    def rows(self) -> dict[str, tuple[AttachMode | None, str]]:
        return {each.name: (each.mode, each.reason) for each in self.made}


@contextmanager
def place(bpffs: Path, mode: AttachMode | None = None, replace: bool = False) -> Iterator[Place]:
    """The calling thread's namespace, which must be a fresh one."""
    names = ("eth0", "eth1")
    with IPRoute() as ipr:
        plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, names))
        made = Attachments(plane, names, mode, replace)
        where = Place(ipr, plane, made)
        for name in names:
            where.wire(name)
            made.attach(link_info(name))

        made.watch(cast(Network, where.told), where.came_back)
        yield where
        made.close(detach=True)
        plane.unpin()
        plane.close()
        for wire in where.wires:
            os.close(wire.far_ns)


@in_fresh_netns
def test_deleted_and_made_anew(bpffs: Path) -> None:
    """Let go with its pin; attached and pinned again, under its new number."""
    with place(bpffs, AttachMode.GENERIC) as where:
        old = where.delete("eth0")
        assert where.pinned() == {"eth1"}
        assert where.rows() == {
            "eth0": (None, "it was deleted"),
            "eth1": (AttachMode.GENERIC, ""),
        }
        assert str(where.made) == "eth0 (not attached), eth1 (generic)"
        where.wire("eth0")
        new = link_info("eth0")
        assert new.ifindex != old.ifindex
        where.event("created", new)
        assert where.pinned() == {"eth0", "eth1"}
        assert where.rows()["eth0"] == (AttachMode.GENERIC, "")
        assert link_info("eth0").xdp_mode == "generic"
        assert where.told.heard == ["eth0 gone", "eth0 coming", "eth0 attached"]
        assert where.back == [("eth0", {old.ifindex})]


@in_fresh_netns
def test_moved_to_another_namespace(bpffs: Path) -> None:
    """The program is taken off there: a link follows its interface."""
    with place(bpffs) as where:
        link, far = link_info("eth0"), where.wires[0].far_ns
        where.ipr.link("set", index=link.ifindex, net_ns_fd=far, ifname="there0")

        def program() -> int:
            here = open_netns()
            try:
                enter_netns(far)
                return link_info("there0").xdp_prog_id
            finally:
                enter_netns(here)
                os.close(here)

        assert program()
        where.event("deleted", link)
        assert not program()
        assert where.rows()["eth0"] == (None, "it was moved to another network namespace")
        assert where.pinned() == {"eth1"}


@in_fresh_netns
def test_renamed(bpffs: Path) -> None:
    """It stays attached and is shown as it is called; another one of its name is a stranger."""
    with place(bpffs) as where:
        index = link_info("eth0").ifindex
        where.ipr.link("set", index=index, state="down")
        where.ipr.link("set", index=index, ifname="wan0")
        where.event("renamed", link_info("wan0"))
        where.wire("eth0")
        where.event("created", link_info("eth0"))
        assert set(where.rows()) == {"wan0", "eth1"}
        assert not link_info("eth0").xdp_prog_id
        assert where.told.heard == ["wan0 renamed"]
        where.delete("wan0")
        where.event("up", link_info("eth0"))
        assert link_info("eth0").xdp_prog_id


@in_fresh_netns
@pytest.mark.parametrize("replace", [False, True])
def test_another_program_is_there(
    bpffs: Path, replace: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused and told once; with --replace it is removed."""
    with place(bpffs, replace=replace) as where:
        where.delete("eth0")
        where.wire("eth0")
        fd = trivial_program("somebody_else")
        other = xdp_link.attach(fd, "eth0", link_info("eth0").ifindex, None)
        for _ in range(2):
            where.event("xdp", link_info("eth0"))
        mode, reason = where.rows()["eth0"]
        if replace:
            assert mode is not None
        else:
            assert mode is None
            assert "another XDP program is attached" in reason
            assert where.told.heard[-2:] == ["eth0 coming", "eth0 not coming"]
            assert capsys.readouterr().out.count("interface_not_attached") == 1
            assert where.pinned() == {"eth1"}
        other.close()
        os.close(fd)


@in_fresh_netns
def test_what_no_event_told(bpffs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look now and then finds what went, and tries again what failed."""
    monkeypatch.setattr(attachments, "RETRY_S", 0.02)
    with place(bpffs) as where:
        where.ipr.link("del", index=link_info("eth0").ifindex)

        async def until(attached: bool) -> None:
            looking = asyncio.create_task(where.made.run())
            deadline = time.monotonic() + 5
            while ("eth0" in [link.interface for link in where.made.links]) is not attached:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            looking.cancel()

        asyncio.run(until(attached=False))
        where.wire("eth0")
        asyncio.run(until(attached=True))
        assert where.told.heard == ["eth0 gone", "eth0 coming", "eth0 attached"]


@in_fresh_netns
def test_a_successor_has_the_interfaces(bpffs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen meanwhile: what it hears late is the other's to act on, even with --replace."""
    monkeypatch.setattr(attachments, "RETRY_S", 0.01)
    with place(bpffs, replace=True) as where:
        where.delete("eth0")
        where.wire("eth0")
        fd = trivial_program("successor")
        theirs = xdp_link.attach(fd, "eth0", link_info("eth0").ifindex, None)
        program = link_info("eth0").xdp_prog_id
        assert where.plane.pin_dir is not None
        where.plane.pin_dir.rename(where.plane.pin_dir.with_name("aside"))
        heard = list(where.told.heard)
        where.event("created", link_info("eth0"))
        where.delete("eth1")

        async def look() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(where.made.run(), 0.1)

        asyncio.run(look())
        assert link_info("eth0").xdp_prog_id == program
        assert where.told.heard == heard
        theirs.close()
        os.close(fd)


@in_fresh_netns
def test_left_attached(bpffs: Path) -> None:
    """Without detaching, the pins keep the program where it is."""
    with place(bpffs) as where:
        where.made.close(detach=False)
        assert link_info("eth0").xdp_prog_id
        assert where.made.links == []


@in_fresh_netns
def test_numbers_of_interfaces_that_were_made_anew_before_it_started(bpffs: Path) -> None:
    """By MAC; or by elimination, if one alone is new."""
    with place(bpffs) as where:
        links = [link_info(name) for name in ("eth0", "eth1")]
        others = {88: links[1].mac, 99: b"\2\0\0\0\0\x99"}
        for adopted, expected in (
            ([], [("eth1", {88})]),
            (["eth0"], [("eth1", {88, 99})]),
            (["eth0", "eth1"], []),
        ):
            made = Attachments(where.plane, ("eth0", "eth1"), None, False)
            made.adopt(each for each in where.made.links if each.interface in adopted)
            made.remember(others | {links[0].ifindex: links[0].mac}, links)
            made.adopt(each for each in where.made.links if each.interface not in adopted)
            where.back.clear()
            made.watch(cast(Network, where.told), where.came_back)
            assert where.back == expected
