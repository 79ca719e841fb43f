# SPDX-License-Identifier: Apache-2.0
"""What a request is called, in logs and by everybody on its way: one name, in one header.

A name that logs, tools or backends could not have in the same form is none, nor are two of them:
the request gets another one, and nobody sees the client's.
"""

from __future__ import annotations

from collections.abc import Sequence

FIELD = b"x-request-id"
ID_MOST = 128
"""Bytes of a name."""

# All that is visible, without what ends a value in lists, in quotes and in shells' strings.
_ID_BYTES = bytes(c for c in range(0x21, 0x7F) if c not in b"\"',\\`")


def given_id(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The client's own name of its request; "": none that can be used, None: none at all."""
    given = None
    for name, value in headers:
        if name == FIELD:
            if given is not None:
                return ""
            given = value
    if given is None:
        return None
    if not given or len(given) > ID_MOST or given.translate(None, _ID_BYTES):
        return ""
    return given.decode("ascii")


def other_ids(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[bytes] | None:
    """What a head calls a request that is called ``name``, [] if nothing; None: exactly that."""
    found = None
    for key, value in headers:
        if key == FIELD:
            if found is None:
                found = [value]
            else:
                found.append(value)
    if found is None:
        return []
    return None if found == [name] else found
