# SPDX-License-Identifier: Apache-2.0
"""Errors of the gateway's protocols."""

from __future__ import annotations

from xdp_router.core.errors import XdpRouterError


class MessageError(XdpRouterError):
    """What the peer sent is not acceptable.

    ``status`` is the HTTP status to answer the client with: 502 when a backend's answer is at
    fault. ``reason`` says in a few words what was found; it holds no bytes of the peer that
    could be misread in a log or a page. Nothing more is read from this peer: where its next
    message begins is not known.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class SpeaksHttp2(MessageError):
    """The client has begun with HTTP/2's preface: it reads frames only, no answer of HTTP/1.1."""

    def __init__(self) -> None:
        super().__init__(505, "HTTP/2 spoken where HTTP/1.1 is expected")
