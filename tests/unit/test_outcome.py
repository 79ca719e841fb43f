# SPDX-License-Identifier: Apache-2.0
"""What came of legs, as it is told."""

from __future__ import annotations

from typing import cast

import pytest

from xdp_router.core.listeners import SocketAddress
from xdp_router.daemon.gateway.leg import Leg, LegUser
from xdp_router.daemon.gateway.outcome import failure, goes_on, headers_beside, interim, why
from xdp_router.daemon.gateway.record import LegRecord, Record
from xdp_router.gateway.http_head import HeadLimits, read_request, read_response
from xdp_router.gateway.race_commands import RaceSettings, Reason, Win
from xdp_router.gateway.ttft_race import TtftRace


@pytest.mark.parametrize(
    ("ready", "reused", "odd", "clean", "kind"),
    [
        (False, False, False, True, Reason.CONNECT),
        (True, False, False, True, Reason.CRASH),
        (True, True, False, True, Reason.STALE),
        (True, True, False, False, Reason.CRASH),
        (True, True, True, False, Reason.BAD_ANSWER),
        (True, False, True, False, Reason.BAD_ANSWER),
    ],
)
def test_kinds_of_failures(ready: bool, reused: bool, odd: bool, clean: bool, kind: Reason) -> None:
    """What could not be read did not break."""
    leg = Leg(SocketAddress("198.18.0.1", 80), 0, cast(LegUser, None), 0)
    leg.reused, leg.is_unreadable = reused, odd
    assert failure(leg, LegRecord("a", 1, ready_ns=int(ready)), clean) is kind


@pytest.mark.parametrize(
    ("request_line", "answer", "stays"),
    [
        ("", "Content-Length: 0\r\n", True),
        ("Connection: close\r\n", "Content-Length: 0\r\n", False),
        ("", "", False),
        ("", "Transfer-Encoding: chunked\r\n", True),
    ],
)
def test_a_connection_goes_on_if_both_say_so(request_line: str, answer: str, stays: bool) -> None:
    """And if there is another end of the answer than its own."""
    asked = read_request(f"GET / HTTP/1.1\r\nHost: a\r\n{request_line}\r\n".encode(), HeadLimits())
    said = read_response(f"HTTP/1.1 200 OK\r\n{answer}\r\n".encode(), b"GET", HeadLimits())
    assert goes_on(asked, said) is stays


def test_what_an_answer_is_given() -> None:
    """The request's name in place of any other, which is kept for the log; and when to come
    again, rounded up, if the answer does not say it."""
    record = Record("r-1", "l", "c", 0, 0.0)
    plain = read_response(b"HTTP/1.1 503 No\r\n\r\n", b"GET", HeadLimits())
    named = (b"X-Request-ID", b"r-1")
    assert headers_beside(plain, record, Win(0)) == ([named], ())
    assert record.backend_id == ""
    wait = Win(0, refused=True, retry_after_ns=1_200_000_000)
    assert headers_beside(plain, record, wait)[0] == [named, (b"Retry-After", b"2")]
    same = b"HTTP/1.1 503 No\r\nX-Request-ID: r-1\r\nRetry-After: 9\r\n\r\n"
    assert headers_beside(read_response(same, b"GET", HeadLimits()), record, wait) == ([], ())
    other = read_response(same.replace(b"r-1", b"x" * 500), b"GET", HeadLimits())
    assert headers_beside(other, record, Win(0)) == ([named], (b"x-request-id",))
    assert record.backend_id == "x" * 128


def test_an_interim_answer_names_nothing() -> None:
    """Or a request would have two names: the backend's there, its own in the answer."""
    said = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-Request-ID: theirs\r\n\r\n"
    head = read_response(said, b"GET", HeadLimits())
    assert interim(head) == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


def test_why_somebody_won() -> None:
    """In a few words."""
    race = TtftRace(3, RaceSettings(width=2))
    race.start(0)
    assert why(race, Win(0)) == "won against a hedge"
    assert why(race, Win(1)) == "hedge won"
    assert why(race, Win(1, refused=True)) == "all refused"
    alone = TtftRace(2, RaceSettings(width=1))
    alone.start(0)
    assert why(alone, Win(0)) == "first choice"
    alone.leg_failed(0, Reason.CONNECT, 1)
    assert why(alone, Win(1)) == "retry"
