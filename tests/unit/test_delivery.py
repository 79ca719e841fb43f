# SPDX-License-Identifier: Apache-2.0
"""The winner's answer on its way to the client."""

from __future__ import annotations

from typing import cast

import pytest

from tests.unit.test_answer import STREAM, answer, event
from xdp_router.core.listeners import SocketAddress
from xdp_router.daemon.gateway.answer import Answer
from xdp_router.daemon.gateway.delivery import Delivery
from xdp_router.daemon.gateway.leg import Leg, LegUser
from xdp_router.gateway.http_body import BodyReader


class Told:
    """Somebody who hears of a leg, and does nothing."""

    def leg_ready(self, leg: Leg) -> None:
        """Not in these tests."""


def delivery(found: Answer, version: int = 11) -> tuple[Delivery, list[bytes], BodyReader]:
    """With what it writes, and the reader of its leg's body."""
    out: list[bytes] = []
    leg = Leg(SocketAddress("127.0.0.1", 1), 0, cast(LegUser, Told()), 0)
    leg.head, leg.body = found.head, BodyReader(found.head.framing, found.head.length)
    return Delivery(leg, found, version, out.append), out, leg.body


def test_head_and_what_there_is_go_out_in_one_piece() -> None:
    """One segment, and then every piece as it comes."""
    found = answer(STREAM)
    found.take(event(text="a"))
    sent, out, _ = delivery(found)
    sent.begin(found, close=False, extra=[(b"X-Request-ID", b"r")], version=11)
    assert len(out) == 1
    assert out[0].startswith(b"HTTP/1.1 200 X\r\n")
    assert b"X-Request-ID: r\r\n" in out[0]
    assert out[0].endswith(b"\r\n\r\n" + event(text="a"))
    sent.more(event(text="b"))
    assert out[1] == event(text="b")
    assert (sent.tokens, sent.sent) == (2, len(event(text="a") + event(text="b")))


def test_for_old_clients_chunks_are_taken_away() -> None:
    """And the end of the connection is the end of the answer."""
    found = answer(STREAM)
    found.take(event(text="a"))
    sent, out, _ = delivery(found, 10)
    sent.begin(found, close=True, extra=[], version=10)
    assert not sent.keeps_client
    assert b"chunked" not in out[0]
    assert out[0].endswith(b'data: {"choices": [{"text": "a"}]}\n\n')
    sent.more(event(text="b")[:9])
    sent.more(event(text="b")[9:])
    assert b"".join(out[1:]) == b'data: {"choices": [{"text": "b"}]}\n\n'


def test_what_came_with_the_head_goes_with_it() -> None:
    """In one write: behind one for the head alone a first token would come later."""
    found = answer(STREAM)
    sent, out, _ = delivery(found)
    sent.begin(found, first=event(text="a"), close=False, extra=[], version=11)
    (piece,) = out
    assert piece.endswith(b"\r\n\r\n" + event(text="a"))
    assert (sent.tokens, sent.sent) == (1, len(event(text="a")))


@pytest.mark.parametrize("cut", [1, 4, 20, -3, -2, -1])
def test_a_break_inside_an_event_adds_nothing(cut: int) -> None:
    """What would be added became a part of it."""
    found = answer(STREAM)
    sent, out, body = delivery(found)
    sent.begin(found, close=False, extra=[], version=11)
    piece = event(text="b")[:cut]
    body.feed(piece)
    sent.more(piece)
    sent.break_off()
    assert out[-1] == piece


def test_a_break_between_events_is_told() -> None:
    """By an event of its own, which every reader of a stream of events sees."""
    found = answer(STREAM)
    sent, out, body = delivery(found)
    sent.begin(found, close=False, extra=[], version=11)
    body.feed(event(text="b"))
    sent.more(event(text="b"))
    sent.break_off()
    size, _, text = out[-1].partition(b"\r\n")
    assert len(text) == int(size, 16) + 2
    assert text.startswith(b"event: error\ndata: {")
    assert text.endswith(b"\n\n\r\n")


def test_other_answers_are_only_cut() -> None:
    """Nothing that is no stream of events has a place for words of ours."""
    found = answer("Transfer-Encoding: chunked\r\n")
    sent, out, body = delivery(found)
    sent.begin(found, close=False, extra=[], version=11)
    body.feed(b"2\r\n\n\n\r\n")
    sent.more(b"2\r\n\n\n\r\n")
    sent.break_off()
    assert len(out) == 2
