# SPDX-License-Identifier: Apache-2.0
"""Heads of answers that came before: a backend's next answer mostly has the same one.

As :mod:`.known_heads` for requests: nothing is taken for granted, refused heads are not kept. A
Date makes a head another one each second.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdp_router.gateway.http_forward import answer_lines
from xdp_router.gateway.http_head import HeadLimits, ResponseHead, read_response
from xdp_router.gateway.recent_heads import RecentHeads

MOST = 256
"""Heads that are kept, at least until half as many others came; twice as many at most."""
BYTES_MOST = 2048
"""A longer head is read each time."""
_STREAM = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class AnswerTraits:
    """``is_stream``: of server-sent events; ``is_coded``: compressed, so that nobody can look
    inside. ``lines``: of the head as it goes to a client of HTTP/1.1 whose connection goes on."""

    is_stream: bool
    is_coded: bool
    lines: bytes


def read_answer_traits(head: ResponseHead) -> AnswerTraits:
    """Return them."""
    kind = head.get(b"content-type") or b""
    coding = head.get(b"content-encoding") or b"identity"
    return AnswerTraits(
        head.status == 200 and kind[: len(_STREAM)].lower() == _STREAM,
        coding.lower() != b"identity",
        answer_lines(head, close=False),
    )


class KnownAnswers(RecentHeads[ResponseHead]):
    """Of one worker."""

    __slots__ = ("_limits",)

    def __init__(self, limits: HeadLimits) -> None:
        super().__init__(MOST, BYTES_MOST, MOST * BYTES_MOST)
        self._limits = limits

    def known(self, raw: bytes, method: bytes, *, upgrade: bool) -> ResponseHead | None:
        """Return what ``response`` does for bytes that it was asked for lately; None for others,
        whatever they are."""
        return None if upgrade or method == b"HEAD" else self._young.get(raw)

    def response(self, raw: bytes, method: bytes, *, upgrade: bool) -> ResponseHead:
        """Return the answer to ``method`` whose whole head is ``raw``, with traits.

        ``upgrade``: whether the request asked for a change of protocol. What is returned is
        another answer's as well: it must not be changed. Raises MessageError(502).
        """
        if method == b"HEAD" or upgrade:  # it means another thing there
            return self._read(raw, method, upgrade)
        found = self._recall(raw)
        if found is None:
            found = self._read(raw, method, upgrade)
        self._keep(raw, found)
        return found

    def _read(self, raw: bytes, method: bytes, upgrade: bool) -> ResponseHead:
        head = read_response(raw, method, self._limits, upgrade=upgrade)
        head.traits = read_answer_traits(head)
        return head
