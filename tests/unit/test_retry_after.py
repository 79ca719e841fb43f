# SPDX-License-Identifier: Apache-2.0
"""The value of a Retry-After header."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.retry_after import MAX_S, NS_PER_S, retry_after_ns

# Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
THEN = 784_111_777

VALUES: list[tuple[bytes | None, int | None]] = [
    (None, None),
    (b"120", 120),
    (b" 120\t", 120),
    (b"0", 0),
    (b"999999999999", MAX_S),
    (b"Sun, 06 Nov 1994 08:49:37 GMT", 100),
    (b"Sunday, 06-Nov-94 08:49:37 GMT", 100),
    (b"Sun Nov  6 08:49:37 1994", 100),
    (b"Sun, 06 Nov 1994 08:00:00 GMT", 0),
    (b"Sun, 06 Nov 2094 08:49:37 GMT", MAX_S),
    (b"Sun, 06 Nov 1994 08:49:60 GMT", 122),
    (b"", None),
    (b"-1", None),
    (b"1.5", None),
    (b"1e3", None),
    (b"1_0", None),
    ("\u0661".encode(), None),
    (b"9" * 5000, None),
    (b"soon", None),
    (b"Sun, 06 Nov 1994 08:49:37 CET", None),
    (b"Sun, 31 Feb 1994 08:49:37 GMT", None),
    (b"Sun, 06 Foo 1994 08:49:37 GMT", None),
    (b"Sun, 06 Nov 1994 24:49:37 GMT", None),
    (b"Sun, 06 Nov 0000 08:49:37 GMT", None),
]


@pytest.mark.parametrize(("value", "seconds"), VALUES)
def test_a_value_says(value: bytes | None, seconds: int | None) -> None:
    """Seconds and the three forms of a date; what is none of them says nothing."""
    expected = None if seconds is None else seconds * NS_PER_S
    assert retry_after_ns(value, THEN - 100) == expected


def test_two_digits_of_a_year_are_of_this_century_or_the_last() -> None:
    """More than fifty years ahead means the past (RFC 9110 5.6.7)."""
    year_2026 = 1_795_000_000.0
    assert retry_after_ns(b"Sunday, 06-Nov-94 08:49:37 GMT", year_2026) == 0
    assert retry_after_ns(b"Sunday, 06-Nov-70 08:49:37 GMT", year_2026) == MAX_S * NS_PER_S


@given(st.integers(0, 4_000_000_000), st.integers(0, MAX_S))
def test_any_date_is_read(now: int, wait: int) -> None:
    """As the standard library writes them."""
    value = formatdate(now + wait, usegmt=True).encode()
    assert retry_after_ns(value, now) == wait * NS_PER_S


@given(st.binary(max_size=40))
def test_no_bytes_raise(value: bytes) -> None:
    """A backend may say anything."""
    found = retry_after_ns(value, THEN)
    assert found is None or 0 <= found <= MAX_S * NS_PER_S
