# SPDX-License-Identifier: Apache-2.0
"""Warnings of ``attach``: they are logged, they are true, and their mends work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connect, who_answers
from tests.support.router import Router, routed_lab
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.links import with_netlink

pytest_plugins = ("tests.support.netns",)

SERVICE = "198.18.0.99"  # in the clients' own subnet, where they ask for it by ARP


@pytest.fixture
def router(private_mounts: Path) -> Iterator[Router]:
    """A router whose service address lies in the clients' subnet."""
    spec = LabSpec((BackendSpec("b1"),), service_address=SERVICE)
    with routed_lab(private_mounts, spec) as routed:
        yield routed


def test_service_address_that_nobody_answers_for(router: Router) -> None:
    """A service that clients ask for by ARP in vain is warned of; the mend makes it work."""
    (warning,) = router.events("service_not_answered_for")
    assert (warning["level"], warning["interface"]) == ("warning", "client0")
    with pytest.raises(OSError, match=r"timed out|No route"):
        connect(router, timeout=1.0)

    def mend(netlink: Any) -> None:
        (index,) = netlink.link_lookup(ifname="client0")
        netlink.addr("add", index=index, address=SERVICE, prefixlen=32)

    assert f"ip addr add {SERVICE}/32 dev client0" in warning["mend"]
    with_netlink(router.lab.router, mend)
    assert who_answers(router) == "b1"
    assert router.stop() == 0
    router.start()
    assert not router.events("service_not_answered_for")
