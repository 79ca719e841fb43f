# SPDX-License-Identifier: Apache-2.0
"""Words for services that the gateway takes up."""

from __future__ import annotations

from xdp_router.cli.render_steering import absence_of, listener_of

THERE = {"gateway": {"listener": "web", "sockets": True, "reason": "", "route": True}}
ABSENT = {"gateway": {"listener": "web", "sockets": False, "reason": "no gateway", "route": True}}


def test_words() -> None:
    """Who has it, and why nobody does; nothing of a service with backends, or of an older
    daemon's answer."""
    assert listener_of(THERE) == listener_of(ABSENT) == "listener web"
    assert absence_of(THERE) == ""
    assert absence_of(ABSENT) == "refused, listener web has no socket: no gateway"
    for other in ({"gateway": None}, {}):
        assert listener_of(other) == absence_of(other) == ""
