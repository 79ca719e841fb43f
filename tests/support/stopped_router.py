# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that start and end the router themselves, as they like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import running_lab
from tests.support.router import Router, router_in
from xdp_router.adapters import sysctl
from xdp_router.lab import BackendSpec, LabSpec

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2")))


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[Router]:
    """A lab with a router that is not started; see IN_BOTH_MODES."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as router:
        router.xdp_mode = getattr(request, "param", "")
        yield router


IN_BOTH_MODES = pytest.mark.parametrize("place", ["native", "generic"], indirect=True)
"""``pytestmark`` of a module whose tests must do in each mode."""


@pytest.fixture
def router(place: Router) -> Iterator[Router]:
    """A router that this test starts, and may end as it likes."""
    yield place
    place.close()
    assert not place.left_behind()


def reserved_ports(router: Router) -> str:
    """The sysctl in the router's namespace."""
    return router.lab.router.run(lambda: sysctl.read(sysctl.RESERVED_PORTS))
