# SPDX-License-Identifier: Apache-2.0
"""Removes what a daemon that is gone has left: attachments, pins, and what it had noted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import local_routes, sysctl
from xdp_router.adapters.control import ControlError, remove_stale_socket
from xdp_router.adapters.dataplane import NoInstance, daemon_stays
from xdp_router.adapters.local_routes import LocalRoutes
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pin_lock import pins_locked
from xdp_router.adapters.pins import (
    LOOKUP_PIN,
    find_instances,
    instance_of,
    pinned_links,
    remove_abandoned,
    remove_pins,
)
from xdp_router.adapters.port_sharing import leave_to_others
from xdp_router.core.address import format_addr
from xdp_router.core.errors import XdpRouterError


def detach_interfaces(interfaces: Sequence[str], pins: Path) -> Iterator[str]:
    """Detach the data planes that hold ``interfaces``; yields what was done, line by line.

    Waits for a second at most, to know whether a daemon is gone. Reserved ports and sysctls are
    given back in the current network namespace only. Raises NoInstance for an interface that has
    none, XdpRouterError when its daemon runs, PinsBusy.
    """
    with pins_locked(pins):
        yield from _detach(interfaces, pins)


def _detach(interfaces: Sequence[str], pins: Path) -> Iterator[str]:
    done: set[Path] = set()
    for interface in interfaces:
        found = instance_of(pins, interface)
        if found is None:
            if done:
                continue  # went together with one named before
            held = ", ".join(each.name for each in find_instances(pins)) or "none"
            raise NoInstance(
                f"{interface}: no data plane of this router is attached there; attached: {held}"
            )
        if daemon_stays(found.path):
            raise XdpRouterError(
                f"{interface}: its daemon is running: stop it (SIGTERM or Ctrl-C), it detaches "
                "by itself"
            )
        for name, pin in pinned_links(found.path).items():
            fd = bpf.open_pinned(str(pin))
            try:
                bpf.link_detach(fd)  # from whichever network namespace
            finally:
                os.close(fd)
            yield f"{name}: detached"
        yield from _undo_notes(found.path)
        _detach_lookup(found.path)
        remove_pins(found.path)
        remove_abandoned(found.path.parent, found.interfaces)
        done.add(found.path)
        yield f"{found.path}: removed"


def _undo_notes(pin_dir: Path) -> Iterator[str]:
    """What cannot be undone is told, and keeps nothing else from being."""
    if not (pin_dir / "notes").exists():
        return  # a shutdown or a detach that was cut short: it had undone these before
    fd = bpf.open_pinned(str(pin_dir / "notes"))
    try:
        notes = Notes(fd)
        ports, netns, control, sysctls, routes = (notes.read(note) for note in Note)
    finally:
        os.close(fd)
    # First: nothing else is to be found at these addresses by who still has their program.
    yield from _remove_routes(routes, netns)
    if ports:
        yield _release_ports(pin_dir, ports, netns)
    for change in sysctl.parse_changes(sysctls):
        yield _put_back(change, netns)
    if control:
        with contextlib.suppress(ControlError):  # another program's, or in use: not ours
            if remove_stale_socket(Path(control)):
                yield f"{control}: removed"


def _detach_lookup(pin_dir: Path) -> None:
    pin = pin_dir / LOOKUP_PIN
    if pin.exists():
        fd = bpf.open_pinned(str(pin))
        try:
            bpf.link_detach(fd)
        finally:
            os.close(fd)


def _remove_routes(addresses: str, netns: str) -> Iterator[str]:
    if not addresses:
        return
    if netns != sysctl.namespace_id():
        yield (
            f"{addresses}: still local, in the network namespace of the daemon: "
            f"ip route flush table local proto {local_routes.PROTOCOL} there"
        )
        return
    try:
        with LocalRoutes() as routes:
            for addr in sorted(local_routes.parse_addresses(addresses)):
                if routes.remove(addr):
                    yield f"{format_addr(addr)}: no longer local"
    except (XdpRouterError, ValueError) as error:
        yield f"{addresses}: still local: {error}"


def _put_back(change: sysctl.Change, netns: str) -> str:
    if netns != sysctl.namespace_id():
        return (
            f"{change.name}: still {change.ours}, in the network namespace of the daemon; it was "
            f"{change.old}"
        )
    try:
        if sysctl.put_back(change):
            return f"{change.name}: {change.old} again"
    except sysctl.SysctlError as error:
        return f"{change.name}: not {change.old} again: {error}"
    return f"{change.name}: left as it is: somebody has changed it since"


def _release_ports(pin_dir: Path, ports: str, netns: str) -> str:
    if netns != sysctl.namespace_id():
        return (
            f"ports {ports}: still reserved, in the network namespace of the daemon: take them "
            f"out of {sysctl.RESERVED_PORTS} there"
        )
    reserved = sysctl.parse_ports(ports)
    try:
        left = leave_to_others(pin_dir.parent.parent, pin_dir, reserved)
        sysctl.release_ports(left)
    except XdpRouterError as error:
        return f"ports {ports}: still reserved: {error}"
    needed = reserved - left
    if needed:
        kept = f"ports {sysctl.format_ports(needed)}: still reserved, another data plane needs them"
        released = sysctl.format_ports(left)
        return f"{kept}; ports {released}: no longer reserved" if left else kept
    return f"ports {ports}: no longer reserved"
