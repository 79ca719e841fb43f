# SPDX-License-Identifier: Apache-2.0
"""The value of a Retry-After header: seconds, or a date (RFC 9110 10.2.3 and 5.6.7)."""

from __future__ import annotations

import re
from datetime import UTC, datetime

NS_PER_S = 1_000_000_000

# A value beyond it is a way to say never; a year is as good.
MAX_S = 365 * 86_400

_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_SECONDS = re.compile(rb"[0-9]{1,18}")
_CLOCK = rb"([0-9]{2}):([0-9]{2}):([0-9]{2})"
_FIXED = re.compile(
    rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) " + _CLOCK + rb" GMT"
)
# The two that are obsolete, and that a recipient must still read.
_RFC850 = re.compile(
    rb"[A-Z][a-z]{5,8}, ([0-9]{2})-([A-Z][a-z]{2})-([0-9]{2}) " + _CLOCK + rb" GMT"
)
_ASCTIME = re.compile(rb"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([0-9 ][0-9]) " + _CLOCK + rb" ([0-9]{4})")


def retry_after_ns(value: bytes | None, unix_s: float) -> int | None:
    """How long from ``unix_s`` on, in ns; a date that is past is 0.

    None for a value that is none: whoever cannot be understood has not said when.
    """
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return min(int(value), MAX_S) * NS_PER_S
    moment = _date(value, unix_s)
    if moment is None:
        return None
    return int(min(max(moment - unix_s, 0.0), float(MAX_S)) * NS_PER_S)


def _date(value: bytes, unix_s: float) -> float | None:
    if match := _FIXED.fullmatch(value):
        day, month, year, *clock = match.groups()
        full_year = int(year)
    elif match := _RFC850.fullmatch(value):
        day, month, year, *clock = match.groups()
        this_year = datetime.fromtimestamp(unix_s, UTC).year
        full_year = this_year - this_year % 100 + int(year)
        if full_year > this_year + 50:
            full_year -= 100
    elif match := _ASCTIME.fullmatch(value):
        month, day, *clock, year = match.groups()
        full_year = int(year)
    else:
        return None
    try:
        hour, minute, second = map(int, clock)
        # A leap second has the number 60; a datetime has none.
        moment = datetime(
            full_year, _MONTHS.index(month) + 1, int(day), hour, minute, min(second, 59), tzinfo=UTC
        )
    except ValueError:
        return None
    return moment.timestamp()
