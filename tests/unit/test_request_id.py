# SPDX-License-Identifier: Apache-2.0
"""Names of requests: which ones of clients are kept."""

from __future__ import annotations

import pytest

from xdp_router.gateway.request_id import FIELD, ID_MOST, given_id, other_ids


@pytest.mark.parametrize(
    "name",
    ["7", "mine-1", "x" * ID_MOST, "8f14e45f-ceea-467f-a8b0-d5ed0f4cbb0e", "|a1.b2_", "a/b;o=1:2"],
)
def test_a_name_that_can_be_used_is_kept(name: str) -> None:
    """Of whatever form: backends have theirs."""
    assert given_id([(b"host", b"a"), (FIELD, name.encode()), (b"accept", b"*/*")]) == name


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"x" * (ID_MOST + 1)],
        [b"a b"],
        [b"a,b"],
        [b'a"b'],
        [b"a\\b"],
        [b"a\tb"],
        [b"\xc3\xa9"],
        [b"a", b"a"],
        [b"a", b""],
        [b"", b"a"],
    ],
)
def test_what_cannot_be_used_is_none(values: list[bytes]) -> None:
    """Empty, long, odd, or more than one: which of them it is, two readers say differently."""
    assert given_id([(FIELD, value) for value in values]) == ("" if values else None)


def test_what_a_head_calls_it() -> None:
    """Only exactly that one name is right."""
    assert other_ids([(b"a", b"b"), (FIELD, b"r-1")], b"r-1") is None
    assert other_ids([(b"a", b"b")], b"r-1") == []
    assert other_ids([(FIELD, b"r-2")], b"r-1") == [b"r-2"]
    assert other_ids([(FIELD, b"r-1"), (FIELD, b"r-1")], b"r-1") == [b"r-1", b"r-1"]
