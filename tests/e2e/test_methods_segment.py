# SPDX-License-Identifier: Apache-2.0
"""Every protocol by every method, all on one Ethernet: real stacks, both families."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.every_method import FAMILIES, WAYS, Cell, every_method_lab
from tests.support.method_outage import outlive_daemon
from tests.support.method_rows import ROWS, cells
from tests.support.router import Router
from xdp_router.lab import Lab
from xdp_router.lab.spec import Family

pytest_plugins = ("tests.support.netns", "tests.support.method_router")


@pytest.fixture(scope="module")
def lab(private_mounts: Path) -> Iterator[Lab]:
    """Client, router and backends at the ports of one switch."""
    with every_method_lab("segment") as made:
        yield made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("row", "sort", "way"), cells("segment"))
def test_cell(method_router: Router, row: str, sort: str, way: str, family: Family) -> None:
    """The bytes are whole both ways, and XDP alone has forwarded them as the method says."""
    ROWS[row][sort](Cell(method_router, WAYS[way], family, sort))


def test_zz_everything_outlives_the_daemon(method_router: Router, method_mode: str) -> None:
    """After SIGKILL open connections go on at once, and XDP decides new ones: the last test."""
    outlive_daemon(method_router, begin=method_mode == "native")
