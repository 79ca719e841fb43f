# SPDX-License-Identifier: Apache-2.0
"""What a listener makes of a request's head: the same for each request that has the same one.

Made once for a head and kept with it (:mod:`.known_heads`), so that a request whose like came
before costs little.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xdp_router.gateway.http_forward import RequestFrame, request_frame
from xdp_router.gateway.http_head import Framing, RequestHead
from xdp_router.gateway.request_id import FIELD, given_id

SAFE = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE"))
IDEMPOTENT = SAFE | {b"PUT", b"DELETE"}
"""RFC 9110, 9.2: asking twice does no harm."""
LENGTH_LINE = b"\r\nContent-Length: "


@dataclass(frozen=True, slots=True)
class HeadTraits:
    """``method``, ``path`` and ``host`` as they are shown; ``host`` in lower case, without port.

    ``headers``: those that decide something, by name; the first of each.
    """

    method: str
    path: str
    host: str
    headers: dict[str, str]
    is_idempotent: bool
    may_race: bool
    """Whether several backends can be asked at once, if the request is none for tokens."""
    given_id: str | None
    """The client's own name of its request; "": none that can be used, None: none at all."""
    frame: RequestFrame

    def of_length(self, before: bytes, digits: bytes) -> HeadTraits:
        """Return those of the same head with another Content-Length than ``before``."""
        first, _, last = self.frame.before.partition(LENGTH_LINE + before + b"\r\n")
        frame = RequestFrame(b"%b%b%b\r\n%b" % (first, LENGTH_LINE, digits, last), self.frame.after)
        return HeadTraits(
            self.method,
            self.path,
            self.host,
            self.headers,
            self.is_idempotent,
            self.may_race,
            self.given_id,
            frame,
        )


def read_traits(head: RequestHead, wanted: Collection[bytes], proto: bytes) -> HeadTraits:
    """Return them for a listener that decides by the headers of ``wanted`` (lower case).

    ``proto``: http or https, which its clients speak.
    """
    headers: dict[str, str] = {}
    for name, value in head.headers:
        if name in wanted:
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    given = given_id(head.headers)
    return HeadTraits(
        head.method.decode("latin-1"),
        head.path.decode("latin-1"),
        head.server_name,
        headers,
        head.method in IDEMPOTENT,
        head.method in SAFE and head.framing is Framing.NONE and head.upgrade is None,
        given,
        request_frame(
            head, host=None, proto=proto, drop=(b"expect", FIELD) if given == "" else (b"expect",)
        ),
    )
