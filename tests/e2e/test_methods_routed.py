# SPDX-License-Identifier: Apache-2.0
"""Every protocol by every method, the router between clients and backends: real stacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.every_method import FAMILIES, WAYS, Cell, every_method_lab
from tests.support.method_errors import hear_no_pings
from tests.support.method_outage import outlive_daemon
from tests.support.method_rows import ROWS, cells
from tests.support.router import Router
from xdp_router.lab import Lab
from xdp_router.lab.spec import Family

pytest_plugins = ("tests.support.netns", "tests.support.method_router")


@pytest.fixture(scope="module")
def lab(private_mounts: Path) -> Iterator[Lab]:
    """Client and backends on wires of their own to the router."""
    with every_method_lab("routed") as made:
        yield made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("row", "sort", "way"), cells("routed"))
def test_cell(method_router: Router, row: str, sort: str, way: str, family: Family) -> None:
    """The bytes are whole both ways, and XDP alone has forwarded them as the method says."""
    ROWS[row][sort](Cell(method_router, WAYS[way], family, sort))


@pytest.mark.parametrize("family", FAMILIES)
def test_services_without_the_key_answer_no_pings(method_router: Router, family: Family) -> None:
    """Nobody does, as ever."""
    hear_no_pings(Cell(method_router, WAYS["nat"], family, "udp"))


def test_zz_everything_outlives_the_daemon(method_router: Router, method_mode: str) -> None:
    """After SIGKILL open connections go on at once, and XDP decides new ones: the last test."""
    outlive_daemon(method_router, begin=method_mode == "native")
