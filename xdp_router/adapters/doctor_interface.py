# SPDX-License-Identifier: Apache-2.0
"""One interface: can a program be attached, in which mode, and what would lose packets there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xdp_router.linux.ethtool import Channels, channels

from . import bpf_syscall as bpf
from . import sysctl
from .doctor_finding import Finding, fail, from_warning, ok, warn
from .host import LinkInfo, NoSuchInterface, link_info
from .host_checks import HostWarning, check_interface
from .pins import pinned_links
from .xdp_link import program_name

_QUEUELESS = {"veth", "bridge", "vlan", "tun"}


def check_link(
    name: str, ours: OurLink | None, unseen: list[HostWarning] | None = None
) -> Iterator[Finding]:
    """Findings about an interface and about our attachment to it, if any. Raises HostError.

    What cannot be seen from here goes to ``unseen``, if that is there: it is the same of each.
    """
    try:
        link = link_info(name)
    except NoSuchInterface as error:
        yield fail("no_interface", name, str(error), "ip -br link; name another")
        return
    if not link.ethernet:
        yield fail(
            "not_ethernet",
            name,
            f"is not an Ethernet interface ({link.kind or 'no link header'}): XDP cannot forward "
            "there",
            "name the interfaces that clients and backends are reached by",
        )
        return
    if not link.up:
        yield warn(
            "interface_down", name, "is down or has no carrier", f"ip link set dev {name} up"
        )
    yield _program(link, ours)
    native = link.xdp_mode != "generic"
    for warning in check_interface(link, native=native):
        if unseen is None or warning.certain:
            yield from_warning(warning)
        else:
            unseen.append(warning)
    yield from _queues(link)
    yield from _reverse_path(name)


def _program(link: LinkInfo, ours: OurLink | None) -> Finding:
    name = link.name
    if not link.xdp_prog_id:
        if ours is not None:
            return fail(
                "program_missing",
                name,
                f"{ours.pin} is pinned, but no program is on the interface: it was detached by "
                "somebody, or the interface was made anew; its traffic goes past the router",
                "xdp-routerd detach, then attach again",
            )
        return ok("xdp_free", name, f"no XDP program is attached; MTU {link.mtu}")
    if ours is None or (ours.ifindex, ours.prog_id) != (link.ifindex, link.xdp_prog_id):
        called = program_name(link.xdp_prog_id)
        return fail(
            "foreign_program",
            name,
            f"another XDP program is attached, id {link.xdp_prog_id}"
            f"{f' ({called})' if called else ''}: attach refuses to take its place",
            f"remove it (bpftool net show dev {name} tells what it is), or attach with --replace",
        )
    if link.xdp_mode == "generic":
        return warn(
            "generic_mode",
            name,
            "the router runs in generic mode: every packet takes the slower path through the "
            "network stack",
            "mend what keeps the driver from native mode (the log line generic_mode of attach "
            "has its reason), then attach again",
        )
    return ok("xdp_attached", name, f"the router is attached in {link.xdp_mode} mode")


def _queues(link: LinkInfo) -> Iterator[Finding]:
    if link.kind in _QUEUELESS:
        return  # software interfaces redirect on whichever CPU a packet is
    try:
        found = channels(link.name)
    except OSError:
        return  # the driver does not tell
    yield judge_queues(link.name, found, os.cpu_count() or 1)


def judge_queues(name: str, found: Channels, cpus: int) -> Finding:
    """Queues against CPUs; asks the kernel nothing."""
    text = f"{found.rx} receive and {found.tx} transmit queues, {cpus} CPUs"
    wanted = min(cpus, found.rx_max)
    if found.rx < wanted:
        return warn(
            "few_queues",
            name,
            f"{text}: only {found.rx} CPUs take packets",
            f"ethtool -L {name} combined {wanted}",
        )
    if found.tx < cpus:
        return warn(
            "few_queues",
            name,
            f"{text}: with fewer transmit queues than CPUs drivers refuse native XDP, drop "
            "redirected frames (i40e, ena) or share queues under a lock (virtio_net, igc)",
            f"ethtool -L {name} combined {cpus}, more queues in the hypervisor, or fewer CPUs "
            "that take this interface's interrupts",
        )
    return ok("queues", name, text)


def _reverse_path(name: str) -> Iterator[Finding]:
    """rp_filter only meets what XDP passes to the kernel."""
    try:
        value = max(
            int(sysctl.read(sysctl.of_interface(each, "rp_filter"))) for each in ("all", name)
        )
        local = any(
            sysctl.read(sysctl.of_interface(each, "accept_local")) == "1" for each in ("all", name)
        )
    except (sysctl.SysctlError, ValueError):
        return
    if value == 1:
        yield warn(
            "rp_filter",
            name,
            "rp_filter is strict: packets that XDP leaves to the kernel are dropped when the way "
            "back leads over another interface",
            f"sysctl -w {sysctl.of_interface(name, 'rp_filter')}=2 net.ipv4.conf.all.rp_filter=2",
        )
    else:
        accepts = "on" if local else "off"
        yield ok("rp_filter", name, f"rp_filter is {value}, accept_local is {accepts}")


@dataclass(frozen=True, slots=True)
class OurLink:
    """A pinned attachment of ours. ``ifindex`` is 0 when it is attached to nothing any more."""

    pin: Path
    ifindex: int
    prog_id: int


def our_links(pin_dir: Path) -> dict[str, OurLink]:
    """The attachments of a pinned data plane by interface name. Raises BpfError, OSError."""
    found = {}
    for name, path in pinned_links(pin_dir).items():
        fd = bpf.open_pinned(str(path))
        try:
            info = bpf.link_info(fd)
        finally:
            os.close(fd)
        found[name] = OurLink(path, info.ifindex, info.prog_id)
    return found
