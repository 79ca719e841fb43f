# SPDX-License-Identifier: Apache-2.0
"""Heads of requests that came before: a client's next request mostly has the same one.

To read a head is a good part of what a request costs, and the more, the less of
it the processor has in its caches. One that is known byte for byte, or but for the number in its
Content-Length, is not read again. Nothing is taken for granted: what is known was read by the
strict reader, and a refused head is never kept.
"""

from __future__ import annotations

from collections.abc import Callable

from xdp_router.gateway.http_head import LENGTH_DIGITS, HeadLimits, RequestHead, read_request
from xdp_router.gateway.recent_heads import RecentHeads
from xdp_router.gateway.traits import LENGTH_LINE, HeadTraits

MOST = 512
"""Heads that are kept, at least until half as many others came; twice as many at most."""
BYTES_MOST = 4096
"""A longer head is read each time."""
BYTES_IN_ALL = 512 << 10
"""The same as ``MOST`` for the bytes of all: with what is made of them they take six times as many
at most, so nobody fills a worker's memory with heads of many lines."""
_FIELD = b"content-length"
_ANY = b"1"
"""The length of a head that stands for all lengths but 0, which is another thing: no body."""


class KnownHeads(RecentHeads[RequestHead]):
    """Of one listener. ``traits`` makes what is kept with a head.

    ``of_any_length``: no trait depends on the Content-Length.
    """

    __slots__ = ("_limits", "_traits", "_of_any_length")

    def __init__(
        self,
        limits: HeadLimits,
        traits: Callable[[RequestHead], HeadTraits],
        *,
        of_any_length: bool = True,
    ) -> None:
        super().__init__(MOST, BYTES_MOST, BYTES_IN_ALL)
        self._limits = limits
        self._traits = traits
        self._of_any_length = of_any_length

    def known(self, raw: bytes) -> RequestHead | None:
        """Return what ``request`` does for bytes that it was asked for lately, byte for byte; None
        for others, whatever they are."""
        return self._young.get(raw)

    def request(self, raw: bytes) -> RequestHead:
        """Return the request whose whole head is ``raw``, with traits. Raises MessageError.

        What is returned is another request's as well: it must not be changed.
        """
        found = self._recall(raw)
        if found is None:
            if self._of_any_length:
                at = raw.find(LENGTH_LINE)
                if at >= 0:
                    return self._of_length(raw, at + len(LENGTH_LINE))
            found = self._read(raw)
        self._keep(raw, found)
        return found

    def _of_length(self, raw: bytes, begin: int) -> RequestHead:
        """Of one whose Content-Length has been another, maybe."""
        end = raw.find(b"\r", begin)
        digits = raw[begin:end]
        if not digits.isdigit() or len(digits) > LENGTH_DIGITS or not int(digits):
            return self._read(raw)
        like = b"%b%b%b" % (raw[:begin], _ANY, raw[end:])
        known = self._recall(like)
        if known is None:
            known = self._read(like)
        self._keep(like, known)
        assert known.traits is not None
        return RequestHead(
            known.method,
            known.target,
            known.path,
            known.host,
            known.version,
            [(name, digits if name == _FIELD else value) for name, value in known.headers],
            raw,
            known.framing,
            int(digits),
            known.keep_alive,
            known.upgrade,
            known.expects_continue,
            known.traits.of_length(_ANY, digits),
        )

    def _read(self, raw: bytes) -> RequestHead:
        head = read_request(raw, self._limits)
        head.traits = self._traits(head)
        return head
