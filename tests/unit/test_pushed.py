# SPDX-License-Identifier: Apache-2.0
"""What is told of a backend by a control socket; what is refused."""

from __future__ import annotations

import pytest

from xdp_router.adapters.control import CommandError
from xdp_router.daemon.pushed import read_pushed


def test_what_is_told() -> None:
    """As it came, and as scores have it; what is null is not told."""
    told, values = read_pushed({"backend": "b1", "queue": 3, "ttft_ms": 2.5, "cache_hit": None}, "")
    assert told == {"ttft_ms": 2.5, "queue": 3.0}
    assert values == {"ttft_ns": 2_500_000.0, "queue": 3.0}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "nothing is told of b1: expected ttft_ms, cache_hit"),
        ({"load": 1}, "load: expected one of ttft_ms"),
        ({"queue": True}, "queue: found True, expected a number from 0"),
        ({"cache_hit": 1.5}, "from 0 to 1"),
        ({"cache_usage": float("nan")}, "from 0 to 1"),
        ({"ttft_ms": "5"}, "found '5'"),
    ],
)
def test_what_is_refused(args: dict[str, object], words: str) -> None:
    """With what would be right."""
    with pytest.raises(CommandError, match=words):
        read_pushed({"backend": "b1", **args}, "b1")
