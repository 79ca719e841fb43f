# SPDX-License-Identifier: Apache-2.0
"""What can be told of a request whose head cannot be read, or never came whole."""

from __future__ import annotations

from xdp_router.gateway.http_head import METHOD_BYTES

PATH_MOST = 1024
"""Bytes that are told of a path."""

_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PLAIN = bytes(range(0x21, 0x7F))


def method_and_path(begun: bytes | bytearray) -> tuple[str, str]:
    """Method and path of its first line, each "" if it is not plain text, or has not come.

    ``begun``: from its first byte on. Whoever speaks something else has neither.
    """
    line = bytes(begun[: METHOD_BYTES + 1 + PATH_MOST]).lstrip(b"\r\n").split(b"\n", 1)[0]
    method, blank, rest = line.partition(b" ")
    if not blank or not method or len(method) > METHOD_BYTES or method.translate(None, _CAPITALS):
        return "", ""
    path = rest.strip(b"\r").split(b" ", 1)[0].partition(b"?")[0]
    if path[:1] not in (b"/", b"*") or path.translate(None, _PLAIN):
        return method.decode(), ""
    return method.decode(), path.decode()
