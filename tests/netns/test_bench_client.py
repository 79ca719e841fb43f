# SPDX-License-Identifier: Apache-2.0
"""The load client against mock engines: what it says of them, and what it takes itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bench.gateway.answers import Call
from bench.gateway.client import Plan, run
from tests.support.engines import EngineProcess, engines, loopback_up
from tests.support.fresh_netns import in_fresh_netns

T = TypeVar("T")
MS = 1_000_000


def with_engines(count: int, test: Callable[[list[EngineProcess]], T], *options: str) -> T:
    """In a namespace of its own."""

    def there() -> T:
        loopback_up()
        with engines(count, *options) as all_:
            return test(all_)

    return in_fresh_netns(there)()


def test_all_requests_are_told() -> None:
    """Of both engines in turn, on kept and on new connections, streams and whole answers."""

    def there(both: list[EngineProcess]) -> None:
        targets = [each.address for each in both]
        for keep, stream in ((True, True), (False, True), (True, False)):
            calls = run(Plan(targets, rate=100, seconds=0.5, keep=keep, stream=stream, warm=4))
            assert [each.error for each in calls] == [""] * 50
            assert {each.engine for each in calls} == {"e1", "e2"}
            assert {each.tokens for each in calls} == ({3} if stream else {1})
            for call in calls:
                assert call.late_ns >= 0
                assert 28 * MS <= call.first_ns <= call.end_ns
                assert len(call.gaps_ns) == call.tokens - 1
                assert all(ns > 0 for ns in call.transit_ns)
            counts = [each.seen() for each in both]
            assert sum(each["completed"] for each in counts) == 54
            # but the connection that asks
            assert (sum(each["connections"] for each in counts) - 2 < 54) == keep
            for each in both:
                each.forget()

    with_engines(2, there, "--ttft-ms", "30", "--gap-ms", "2", "--tokens", "3")


def test_failures_are_told() -> None:
    """Refused, reset, cut off, too late, and a status: each by its name, and the loop goes on."""

    def there(only: list[EngineProcess]) -> None:
        one = only[0]

        def errors(mock: str, target: tuple[str, int] = one.address) -> set[str]:
            plan = Plan([target], rate=40, seconds=0.25, warm=1, timeout_s=1.0, mock=mock)
            return {each.error for each in run(plan)}

        assert errors("crash-after=0") == {"reset"}
        assert errors("close-after=1,gap-ms=5") == {"closed too early"}
        assert errors("ttft-ms=60000") == {"timeout"}
        assert errors("status=429") == {"status 429"}
        assert errors("", (one.address[0], 1)) == {"connect: Connection refused"}
        one.wait(lambda seen: seen["running"] == 0)

    with_engines(1, there)


def test_many_streams_at_a_time() -> None:
    """500 at once; nobody waits for another one."""

    def there(only: list[EngineProcess]) -> list[Call]:
        plan = Plan([only[0].address], rate=2000, seconds=0.25, warm=0, timeout_s=60.0)
        began = time.monotonic()
        calls = run(plan)
        assert time.monotonic() - began < 60
        return calls

    calls = with_engines(1, there, "--ttft-ms", "1000", "--gap-ms", "20", "--tokens", "10")
    assert len(calls) == 500
    assert {(each.error, each.tokens) for each in calls} == {("", 10)}
