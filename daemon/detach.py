# SPDX-License-Identifier: Apache-2.0
"""Removes what a daemon that is gone has left: attachments and pins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.dataplane import (
    NoInstance,
    find_instances,
    heartbeat_age_ns,
    instance_of,
    pinned_links,
    remove_pins,
)
from xdp_router.core.errors import XdpRouterError

_ALIVE_NS = 1_000_000_000


def detach_interfaces(interfaces: Sequence[str], pins: Path) -> Iterator[str]:
    """Detach the data planes that hold ``interfaces``; yields what was done, line by line.

    Raises NoInstance for an interface that has none, XdpRouterError when its daemon runs.
    """
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
        age_ns = heartbeat_age_ns(found.path)
        if age_ns is not None and age_ns < _ALIVE_NS:
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
        remove_pins(found.path)
        done.add(found.path)
        yield f"{found.path}: removed"
