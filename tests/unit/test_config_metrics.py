# SPDX-License-Identifier: Apache-2.0
"""Where metrics are served."""

from __future__ import annotations

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.config_metrics import format_metrics
from xdp_router.core.errors import ConfigError

_REST = '[[service]]\naddress = "198.18.100.1:80"\n[[service.backend]]\naddress = "198.18.1.2:80"\n'


def parsed(line: str) -> tuple[str, int] | None:
    return parse_config(f"[router]\n{line}\n{_REST}", "x").settings.metrics


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9850", ("127.0.0.1", 9850)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9850", ("::1", 9850)),
        ("[::]:9850", ("::", 9850)),
        ("[2001:DB8::0:5]:65535", ("2001:db8::5", 65535)),
    ],
)
def test_any_address_of_the_host(text: str, address: tuple[str, int]) -> None:
    """Of both families; the one of loopback and the one that means all as well."""
    assert parsed(f'metrics = "{text}"') == address


def test_off_by_default() -> None:
    """Without the key nothing is served."""
    assert parsed("") is None


@pytest.mark.parametrize(
    "text",
    [
        *("9850", ":9850", "localhost:9850", "::1:9850", "[::1]", "127.0.0.1:0", "127.0.0.1:65536"),
        *("127.0.0.1:08", "[127.0.0.1]:80", "1.2.3:80", "[::1%lo]:80", "224.0.0.1:80"),
        "[ff02::1]:80",
    ],
)
def test_what_is_none_is_named(text: str) -> None:
    """With what would be one."""
    with pytest.raises(ConfigError) as caught:
        parsed(f'metrics = "{text}"')
    (found,) = caught.value.problems
    assert (found.line, found.key) == (2, "router.metrics")
    assert 'as "127.0.0.1:9850" or "[::1]:9850"' in found.detail


@pytest.mark.parametrize("text", ["127.0.0.1:9850", "[::1]:9850"])
def test_it_is_shown_as_it_was_written(text: str) -> None:
    """Where a change of it is told."""
    address = parsed(f'metrics = "{text}"')
    assert address is not None
    assert format_metrics(address) == text
