# SPDX-License-Identifier: Apache-2.0
"""Tells systemd how the daemon is doing (sd_notify(3)); nothing happens without systemd."""

from __future__ import annotations

import contextlib
import os
import socket

_KIND = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK


def notify(state: str) -> None:
    """Send ``state``, such as ``READY=1``, to $NOTIFY_SOCKET if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # A supervisor that is gone or does not read is no reason to stop or to wait.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, _KIND) as sock,
    ):
        sock.sendto(state.encode(), address)
