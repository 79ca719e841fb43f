# SPDX-License-Identifier: Apache-2.0
"""Pinned data planes: whole, of this version, and with a daemon that lives."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from xdp_router.core import abi

from . import sysctl
from .dataplane import DataPlane, daemon_alive
from .doctor_finding import Finding, fail, ok, warn
from .doctor_interface import OurLink, our_links
from .map_specs import MAP_SPECS
from .notes import Note, Notes
from .pins import ASIDE, InstanceRef, find_instances

_VERSION = re.compile(r"v[0-9]+")


def check_pins(root: Path) -> Iterator[Finding]:
    """Everything under ``root``. Raises PinError, BpfError, OSError."""
    instances = find_instances(root)
    for instance in instances:
        yield from _instance(instance)
    if not instances:
        yield ok("pins", str(root), "nothing is pinned: no router is attached")
    if not root.is_dir():
        return
    ours = f"v{abi.ABI_VERSION}"
    for name in sorted(os.listdir(root)):
        folder = root / name
        if _VERSION.fullmatch(name) and name != ours and any(folder.iterdir()):
            yield warn(
                "pins_of_other_version",
                str(folder),
                f"pins of ABI {name[1:]}, this version has {ours[1:]}: what is attached there "
                "goes on, and this version can neither read nor adopt it",
                "detach it with the version that made it: xdp-routerd detach IFACE",
            )
    for path in sorted((root / ours).glob(f"{ASIDE}*")):
        pid = path.name.removeprefix(ASIDE).split("-")[0]
        if not Path(f"/proc/{pid}").exists():
            yield warn(
                "pins_abandoned",
                str(path),
                "a daemon died while it made these pins; nothing is attached to them",
                "the next attach removes them",
            )


def _instance(instance: InstanceRef) -> Iterator[Finding]:
    path, subject = instance.path, instance.name
    detach = f"sudo {instance.detach}"
    present = set(os.listdir(path))
    missing = [spec.name for spec in MAP_SPECS if spec.value_size and spec.name not in present]
    if missing:
        yield fail(
            "pins_half_removed",
            subject,
            f"{path}: pins are missing ({', '.join(missing)}), as after a stop that was cut short",
            detach,
        )
    elif daemon_alive(path):
        yield ok("pins", subject, f"{path} belongs to a running daemon")
    else:
        yield warn(
            "pins_of_dead_daemon",
            subject,
            f"{path}: its daemon is gone or hangs: connections go on, new ones get the fallback or "
            "a hash instead of a race",
            f"start the daemon again, or take it all away: {detach}",
        )
    for name, link in our_links(path).items():
        if not link.ifindex:
            yield fail(
                "link_gone",
                name,
                f"{link.pin} is attached to nothing: the interface was deleted, or somebody has "
                "detached the program; its traffic goes past the router",
                f"{detach}, then attach again",
            )


def attachments(root: Path) -> dict[str, OurLink]:
    """All attachments under ``root`` by interface name. Raises PinError, BpfError, OSError."""
    found: dict[str, OurLink] = {}
    for instance in find_instances(root):
        found.update(our_links(instance.path))
    return found


def in_other_namespace(instance: InstanceRef) -> bool:
    """Whether its daemon worked in another network namespace than the caller's. Raises BpfError."""
    plane = DataPlane.open(instance.path)
    try:
        if "notes" not in plane.maps:
            return False
        netns = Notes(plane.maps["notes"]).read(Note.NETNS)
    finally:
        plane.close()
    return bool(netns) and netns != sysctl.namespace_id()
