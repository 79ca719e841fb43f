# SPDX-License-Identifier: Apache-2.0
"""What the daemon is started with, where nothing is said of it."""

from __future__ import annotations

from pathlib import Path

from xdp_router.daemon.attach_options import AttachOptions


def test_what_is_not_asked_for_is_not_done() -> None:
    """Nothing stays attached, nobody's program is replaced, no group may use the socket."""
    made = AttachOptions(("eth0",), None, "auto", False, Path("/run/x.sock"), Path("/sys/fs/bpf"))
    assert (made.replace, made.persist, made.control_group) == (False, False, None)
    assert made.source is None
    assert made.gateway is False
    assert made.document is None
