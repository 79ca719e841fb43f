# SPDX-License-Identifier: Apache-2.0
"""The header Retry-After (RFC 9110, 10.2.3): seconds, or a date."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime

_NS = 1_000_000_000
_DIGITS_MOST = 9


def retry_after_ns(value: bytes | None, wall_s: float) -> int | None:
    """How long to wait, from 0 on; None: it does not say, or not in a form that can be read.

    ``wall_s``: what the clock on the wall shows, seconds since 1970 UTC.
    """
    if value is None:
        return None
    text = value.decode("latin-1")
    if text.isascii() and text.isdigit():
        return int(text) * _NS if len(text) <= _DIGITS_MOST else None
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0, int((at.timestamp() - wall_s) * _NS))
