# SPDX-License-Identifier: Apache-2.0
"""The manual's table of what works with which method, and the tests that try it, are the same."""

from __future__ import annotations

import pytest

from tests.e2e import test_methods_path_mtu as path_mtu
from tests.support.every_method import WAYS, sorts_of
from tests.support.method_rows import ROWS, cells
from tests.support.method_table import METHODS, TABLE, WORKS, read_table, works
from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.lab.spec import Method

HEAD = "# Manual\n\n## What works with which method\n\nText.\n\n"
METHOD_LINE = "| | `nat` | `fullnat` | `dsr` | `ipip` |\n|---|---|---|---|---|\n"
PATH_ROWS = {path_mtu.PATH_MTU, path_mtu.LOST_CLIENT, path_mtu.LOST_BACKEND}

REFUSED = {
    "many ports, one of the backend": ("198.18.100.1:7000-7099", "198.18.1.2:80", ""),
    "stateless services": ("198.18.100.1:80", "198.18.1.2:80", "stateless = true\n"),
}
"""What is asked for where the manual says no: service, backend, keys of the service."""


def test_every_row_is_tried_and_nothing_else() -> None:
    """A row without a test promises what nobody tried; a test without a row is not told."""
    assert set(TABLE) == set(ROWS) | PATH_ROWS
    assert not set(ROWS) & PATH_ROWS


def test_every_yes_is_tried() -> None:
    """By each way of the method, with every sort of service that shows the row."""
    tried = {
        (row, WAYS[way].method)
        for topology in ("routed", "segment")
        for row, _, way in cells(topology)
    }
    tried |= {
        (row, way.method) for way in path_mtu.WAYS for row in PATH_ROWS if works(row, way.method)
    }
    said = {(row, method) for row in TABLE for method in METHODS if works(row, method)}
    assert tried == said


def test_every_service_that_is_tried_is_there() -> None:
    """The sorts of a row's conversations are those that the method has."""
    for topology in ("routed", "segment"):
        for _, sort, way in cells(topology):
            assert sort in sorts_of(WAYS[way])


def test_every_no_is_known() -> None:
    """It is a configuration that is refused, or nothing that could be configured."""
    noes = {row for row in TABLE for method in METHODS if not works(row, method)}
    assert noes == {*REFUSED, path_mtu.LOST_BACKEND}


@pytest.mark.parametrize(
    ("row", "method"),
    [(row, method) for row in REFUSED for method in METHODS if not works(row, method)],
)
def test_what_does_not_work_is_refused(row: str, method: Method) -> None:
    """Before anything is attached, and it is the method that is named."""
    service, backend, keys = REFUSED[row]
    text = (
        f'[[service]]\naddress = "{service}"\nforwarding = "{{}}"\n{keys}'
        f'[[service.backend]]\naddress = "{backend}"\n'
    )
    parse_config(text.format("nat"), "router.toml")
    with pytest.raises(ConfigError, match=method):
        parse_config(text.format(method), "router.toml")


def test_a_table_is_read() -> None:
    """By rows and methods: it works, or why not."""
    text = f"{HEAD}{METHOD_LINE}| TCP | yes | yes | no: a reason | yes |\n\n## More\n\n| a |\n"
    assert read_table(text) == {
        "TCP": {"nat": WORKS, "fullnat": WORKS, "dsr": "a reason", "ipip": WORKS}
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# Manual\n", "no table below"),
        (f"{HEAD}Only words.\n", "no table below"),
        (f"{HEAD}| | `nat` | `dsr` |\n|---|---|---|\n", "the table's methods"),
        (f"{HEAD}{METHOD_LINE}| TCP | yes | yes | no | yes |\n", "'no' is neither"),
        (f"{HEAD}{METHOD_LINE}| TCP | yes | yes | maybe | yes |\n", "'maybe' is neither"),
        (f"{HEAD}{METHOD_LINE}| TCP | yes | yes |\n", "'TCP' stands twice, or has not 4"),
        (HEAD + METHOD_LINE + "| TCP | yes | yes | yes | yes |\n" * 2, "stands twice"),
    ],
)
def test_an_unclear_table_is_refused(text: str, told: str) -> None:
    """Each cell says yes, or no with a reason; each row stands once."""
    with pytest.raises(ValueError, match=told):
        read_table(text)
