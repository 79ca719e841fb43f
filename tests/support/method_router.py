# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a router with all services in the module's own ``lab``, in either XDP mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.every_method import every_method_router
from tests.support.router import Router
from xdp_router.lab import Lab


@pytest.fixture(scope="module", params=["native", "generic"])
def method_mode(request: pytest.FixtureRequest) -> str:
    """How XDP runs."""
    return str(request.param)


@pytest.fixture(scope="module")
def method_router(private_mounts: Path, lab: Lab, method_mode: str) -> Iterator[Router]:
    """In either mode, with all services."""
    with every_method_router(lab, private_mounts, method_mode) as made:
        yield made
