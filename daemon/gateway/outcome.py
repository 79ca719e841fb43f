# SPDX-License-Identifier: Apache-2.0
"""What came of a leg, or of all, in the terms of whoever is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdp_router.gateway.http_forward import response_to_client
from xdp_router.gateway.http_head import Framing, RequestHead, ResponseHead
from xdp_router.gateway.race_commands import Reason, Win
from xdp_router.gateway.request_id import FIELD, ID_MOST, other_ids
from xdp_router.gateway.ttft_race import TtftRace

from .record import LegRecord, Record

if TYPE_CHECKING:
    from .leg import Leg


def headers_beside(
    head: ResponseHead, record: Record, win: Win
) -> tuple[list[tuple[bytes, bytes]], Sequence[bytes]]:
    """What an answer is given beside its own headers: the request's name, and when to come again
    if everybody refused and this one does not say it. Then those of its own that it loses: names
    that somebody else has for the request."""
    extra: list[tuple[bytes, bytes]] = []
    drop: Sequence[bytes] = ()
    name = record.id.encode()
    others = other_ids(head.headers, name)
    if others is not None:
        extra.append((b"X-Request-ID", name))
        if others:
            drop = (FIELD,)
            record.backend_id = others[0][:ID_MOST].decode("latin-1")
    if win.retry_after_ns is not None and head.get(b"retry-after") is None:
        extra.append((b"Retry-After", b"%d" % max(1, -(-win.retry_after_ns // 1_000_000_000))))
    return extra, drop


def interim(head: ResponseHead) -> bytes:
    """A 1xx as it goes to the client; the answer behind it has the request's name."""
    return response_to_client(head, close=False, drop=(FIELD,))


def goes_on(request: RequestHead, answer: ResponseHead) -> bool:
    """Whether both heads leave the client its connection."""
    framing = answer.framing
    return request.keep_alive and framing is not Framing.CLOSE and framing is not Framing.TUNNEL


def failure(leg: Leg, told: LegRecord, clean: bool) -> Reason:
    """What kind of failure the end of a leg's connection is."""
    if not told.ready_ns:
        return Reason.CONNECT
    if leg.is_unreadable:
        return Reason.BAD_ANSWER
    return Reason.STALE if leg.reused and clean else Reason.CRASH


def why(race: TtftRace, win: Win) -> str:
    """In a few words, why the winner of a race has won."""
    if win.refused:
        return "all refused"
    if len(race.legs) == 1:
        return "first choice"
    if race.hedges:
        return "hedge won" if race.legs[win.leg].hedge else "won against a hedge"
    return "retry"
