# SPDX-License-Identifier: Apache-2.0
"""Attaching to real veth interfaces: modes, pins, foreign programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import trivial_program
from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.dataplane import link_pin, pinned_links
from xdp_router.adapters.xdp_link import (
    AlreadyAttached,
    AttachFailed,
    AttachMode,
    attach,
    open_link,
    program_name,
)

pytest_plugins = ("tests.support.netns",)


@contextmanager
def veth(name: str = "wan0", mtu: int = 1500) -> Iterator[int]:
    """A veth pair in the current namespace; the index of its first end."""
    with IPRoute() as ipr:
        ipr.link("add", ifname=name, kind="veth", peer=f"{name}p", mtu=mtu)
        index = ipr.link_lookup(ifname=name)[0]
        # veth takes no native program whose frames its other end could not give in one page.
        ipr.link("set", index=ipr.link_lookup(ifname=f"{name}p")[0], mtu=mtu, state="up")
        ipr.link("set", index=index, state="up")
        yield index
        ipr.link("del", index=index)


@contextmanager
def program(name: str) -> Iterator[int]:
    """A loaded program that passes everything."""
    fd = trivial_program(name)
    yield fd
    os.close(fd)


def _id(fd: int) -> int:
    return bpf.prog_info(fd).id


@pytest.mark.parametrize("mode", AttachMode)
@in_fresh_netns
def test_attach_in_each_mode(mode: AttachMode) -> None:
    """The kernel has the program in the mode that was asked for; detaching frees the interface."""
    with veth() as index, program("mine") as mine:
        link = attach(mine, "wan0", index, mode)
        assert (link.mode, link.fallback_reason) == (mode, "")
        state = bpf.xdp_query(index)
        native = mode is AttachMode.NATIVE
        assert (state.native_prog_id, state.generic_prog_id) == (
            (_id(mine), 0) if native else (0, _id(mine))
        )
        link.detach()
        assert bpf.xdp_query(index).prog_id == 0
        link.close()


@in_fresh_netns
def test_auto_takes_native_where_there_is_native() -> None:
    """Without a wish the better mode is taken, with no reason to report."""
    with veth() as index, program("mine") as mine:
        link = attach(mine, "wan0", index, None)
        assert (link.mode, link.fallback_reason) == (AttachMode.NATIVE, "")
        link.close()
        assert bpf.xdp_query(index).prog_id == 0  # the last reference was this fd


@in_fresh_netns
def test_auto_falls_back_with_the_reason() -> None:
    """A driver without native XDP (loopback): generic, and the reason is told."""
    with program("mine") as mine:
        link = attach(mine, "lo", 1, None)
        assert link.mode is AttachMode.GENERIC
        assert "no native XDP" in link.fallback_reason
        link.close()


@in_fresh_netns
def test_native_that_is_not_to_be_had_is_an_error() -> None:
    """Asked for native, no silent fallback: the error names interface, reason and mend."""
    with (
        program("mine") as mine,
        pytest.raises(AttachFailed, match=r"lo: .*native.*generic"),
    ):
        attach(mine, "lo", 1, AttachMode.NATIVE)


@in_fresh_netns
def test_a_large_mtu_is_named_as_the_cause() -> None:
    """A driver that refuses for the MTU: the reason has the MTU that is set."""
    with veth(mtu=9000) as index, program("mine") as mine:
        link = attach(mine, "wan0", index, None)
        assert link.mode is AttachMode.GENERIC
        assert "MTU" in link.fallback_reason
        link.close()


@pytest.mark.parametrize("mine_mode", [*AttachMode, None])
@pytest.mark.parametrize("other_mode", AttachMode)
@in_fresh_netns
def test_a_foreign_link_is_refused_or_replaced(
    other_mode: AttachMode, mine_mode: AttachMode | None
) -> None:
    """Another program by a link: refused with its id and name, whatever the modes; --replace."""
    with veth() as index, program("theirs") as theirs, program("mine") as mine:
        other = attach(theirs, "wan0", index, other_mode)
        with pytest.raises(AlreadyAttached, match=r"wan0: .*\(theirs\).*--replace") as caught:
            attach(mine, "wan0", index, mine_mode)
        assert (caught.value.prog_id, caught.value.prog_name) == (_id(theirs), "theirs")
        assert bpf.xdp_query(index).prog_id == _id(theirs)
        link = attach(mine, "wan0", index, mine_mode, replace=True)
        assert bpf.xdp_query(index).prog_id == _id(mine)
        assert bpf.link_info(other.fd).ifindex == 0
        other.close()
        link.close()


def test_another_router_is_called_one() -> None:
    """--replace would end its connections: first of all, it is said whose program it is."""
    assert "router" not in str(AlreadyAttached("wan0", 7, "theirs"))
    ours = str(AlreadyAttached("wan0", 7, "xdp_router"))
    assert "id 7 (xdp_router): it is a router's whose pins are not here (--pins" in ours
    assert ours.endswith("or attach with --replace")


@pytest.mark.parametrize("flag", [bpf.XDP_FLAGS_DRV_MODE, bpf.XDP_FLAGS_SKB_MODE])
@in_fresh_netns
def test_a_foreign_program_without_a_link_is_refused_or_replaced(flag: int) -> None:
    """The same for a program that was attached by netlink, as ``ip link set xdp`` does."""
    with veth() as index, program("theirs") as theirs, program("mine") as mine:
        with IPRoute() as ipr:
            ipr.link("set", index=index, xdp_fd=theirs, xdp_flags=flag)
        with pytest.raises(AlreadyAttached, match=f"id {_id(theirs)}"):
            attach(mine, "wan0", index, None)
        link = attach(mine, "wan0", index, None, replace=True)
        assert link.mode is AttachMode.NATIVE
        assert bpf.xdp_query(index).prog_id == _id(mine)
        link.close()


@in_fresh_netns
def test_replace_leaves_other_interfaces_alone() -> None:
    """Only the link on this interface goes, not the same program's link on another one."""
    with (
        veth("wan0") as first,
        veth("wan1") as second,
        program("theirs") as theirs,
        program("mine") as mine,
    ):
        links = [attach(theirs, "wan1", second, None), attach(theirs, "wan0", first, None)]
        links.append(attach(mine, "wan0", first, None, replace=True))
        assert bpf.xdp_query(first).prog_id == _id(mine)
        assert bpf.xdp_query(second).prog_id == _id(theirs)
        for link in links:
            link.close()


@in_fresh_netns
def test_an_interface_that_is_not_there() -> None:
    """An interface that went between resolving and attaching: an error that says so."""
    with program("mine") as mine, pytest.raises(AttachFailed, match="gone0: .*gone"):
        attach(mine, "gone0", 4711, None)


@in_fresh_netns
def test_update_replaces_the_program() -> None:
    """Through the link the program changes, and the link stays the same."""
    with veth() as index, program("old") as old, program("new") as new:
        link = attach(old, "wan0", index, None)
        before = bpf.link_info(link.fd).id
        link.update(new)
        assert bpf.xdp_query(index).prog_id == _id(new)
        assert bpf.link_info(link.fd).id == before
        link.close()


def test_a_pinned_link_outlives_its_creator(bpffs: Path) -> None:
    """Closed but pinned, the program stays attached; opened again, it can be detached."""

    @in_fresh_netns
    def run() -> None:
        with veth("wan0.5") as index, program("mine") as mine:
            pin = link_pin(bpffs, "wan0.5")
            link = attach(mine, "wan0.5", index, AttachMode.GENERIC)
            link.pin(pin)
            link.close()
            link.close()
            assert bpf.xdp_query(index).prog_id == _id(mine)
            assert pinned_links(bpffs) == {"wan0.5": pin}
            again = open_link(pin, "wan0.5")
            assert (again.ifindex, again.mode) == (index, AttachMode.GENERIC)
            again.detach()
            assert bpf.xdp_query(index).prog_id == 0
            again.close()
            gone = open_link(pin, "wan0.5")
            assert gone.ifindex == 0
            gone.close()
            pin.unlink()

    run()


@in_fresh_netns
def test_a_link_goes_with_its_interface() -> None:
    """When the interface is deleted, its link reports no interface any more."""
    with program("mine") as mine:
        with veth() as index:
            link = attach(mine, "wan0", index, None)
        assert bpf.link_info(link.fd).ifindex == 0
        link.detach()  # nothing is left to do, which is no error
        link.close()


@in_fresh_netns
def test_program_name_of_an_unknown_program() -> None:
    """A program that is gone has no name; that is no error."""
    assert program_name(2**31 - 1) == ""
