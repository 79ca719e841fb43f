# SPDX-License-Identifier: Apache-2.0
"""Scrapes: who is asked when, and what answers say, in conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from xdp_router.core.config_scrape import PRESETS, parse_readings
from xdp_router.core.model import Backend, Endpoint, Mode, Scrape, Service
from xdp_router.core.scrape import OPEN_MAX, Request, Samples, Scrapes

MS, S = 10**6, 10**9
T0 = 1_000 * S
KEYS = {"queue": "queue", "ttft": "ttft_ns", "cache_hit": "cache", "cache_usage": "usage"}


def reading(**keys: str) -> Scrape:
    return Scrape(tuple((KEYS[key], parse_readings(key, text)) for key, text in keys.items()))


def preset(name: str) -> Scrape:
    return Scrape(tuple((KEYS[key], each) for key, each in PRESETS[name].items()), name)


def service(
    scrape: Scrape | None, number: int = 0, backends: tuple[int, ...] = (1, 2), **more: object
) -> Service:
    """Backend ``n`` of each service is the same server."""
    members = tuple(
        Backend(100 * number + each, f"b{each}", Endpoint(each, 8000), number) for each in backends
    )
    made = Service(number, f"s{number}", Endpoint(9, 80), members, Mode.SNAPSHOT, scrape=scrape)
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def made(*services: Service) -> Scrapes:
    scrapes = Scrapes(lambda below: 0)
    scrapes.change(services, T0)
    return scrapes


def asked(scrapes: Scrapes, now_ns: int = T0) -> Request:
    (request,) = scrapes.due(now_ns)
    return request


def page(**values: float) -> Samples:
    return {name.replace("__", ":"): [({}, value)] for name, value in values.items()}


def told(scrapes: Scrapes, samples: Samples, now_ns: int) -> Mapping[str, float]:
    """What the one backend is told of when it is asked and answers so."""
    said, _, why = scrapes.answered(asked(scrapes, now_ns), samples, now_ns + MS)
    assert not why
    return said[0].values if said else {}


def test_each_place_is_asked_once_an_interval() -> None:
    """However many services have a backend there, for all that they want, by the most eager."""
    slow = replace(reading(cache_usage="full"), interval_ns=5 * S, timeout_ns=S)
    scrapes = made(service(reading(queue="depth")), service(slow, 1))
    first, second = scrapes.due(T0)
    assert {each.endpoint.addr for each in (first, second)} == {1, 2}
    assert (first.path, first.timeout_ns) == ("/metrics", S)
    assert first.names == {"depth", "full"}
    said, news, why = scrapes.answered(first, page(depth=3, full=0.25), T0 + MS)
    assert [(each.backend.id, each.values) for each in said] == [
        (1, {"queue": 3}),
        (101, {"usage": 0.25}),
    ]
    assert (news, why) == (False, "")
    assert scrapes.deadline() == T0 + S
    assert scrapes.due(T0 + S - 1) == []
    assert [each.endpoint.addr for each in scrapes.due(T0 + S)] == [1]  # 2 has not answered yet
    assert scrapes.deadline() == T0 + 2 * S


def test_an_interval_is_never_shorter_than_it_says() -> None:
    """Whatever chance gives."""
    scrapes = Scrapes(lambda below: below - 1)
    scrapes.change([service(reading(queue="depth"), backends=(1,))], T0)
    assert scrapes.deadline() == T0 + S // 4
    scrapes.answered(asked(scrapes, T0 + S), page(depth=1), T0 + S)
    assert scrapes.deadline() == T0 + 2 * S + S // 8


def test_who_cannot_be_reached_is_not_asked() -> None:
    """Until there is a way to one of the backends that are there."""
    scrapes = made(service(reading(queue="depth")))
    assert [each.endpoint.addr for each in scrapes.due(T0, lambda backend: backend == 2)] == [2]
    assert [each.endpoint.addr for each in scrapes.due(T0 + S)] == [1]


def test_mode_inline_asks_nobody() -> None:
    """XDP would not look at it."""
    scrapes = made(service(reading(queue="depth"), mode=Mode.INLINE), service(None, 1))
    assert scrapes.deadline() is None
    assert scrapes.of(1) is None


def test_so_many_at_a_time() -> None:
    """The others wait until somebody has answered."""
    scrapes = made(service(reading(queue="depth"), backends=tuple(range(1, OPEN_MAX + 3))))
    first, *_ = found = scrapes.due(T0)
    assert len(found) == OPEN_MAX
    assert scrapes.deadline() is None
    scrapes.failed(first, "no answer")
    assert scrapes.deadline() == T0
    assert len(scrapes.due(T0 + MS)) == 1


def test_what_fails_while_it_is_judged_can_be_counted() -> None:
    """The request is open until then, and ends once."""
    scrapes = made(service(reading(queue="depth"), backends=tuple(range(1, OPEN_MAX + 2))))
    first, *_ = scrapes.due(T0)
    bad: Samples = {"depth": [({}, 10**400)]}
    with pytest.raises(OverflowError):
        scrapes.answered(first, bad, T0)
    assert scrapes.deadline() is None
    assert scrapes.failed(first, "a bug")
    assert scrapes.deadline() == T0
    found = scrapes.of(first.endpoint.addr)
    assert found is not None
    assert (found[2].ok, found[2].failed, found[2].error) == (0, 1, "a bug")


def test_a_failure_is_news_once() -> None:
    """And so is its end; a page without any of the metrics is a failure."""
    scrapes = made(service(reading(queue="depth"), backends=(1,)))
    assert scrapes.failed(asked(scrapes), "connection refused")
    assert not scrapes.failed(asked(scrapes, T0 + S), "no answer within 500 ms")
    found = scrapes.of(1)
    assert found is not None
    state = found[2]
    assert (state.failed, state.error) == (2, "no answer within 500 ms")
    said, news, why = scrapes.answered(asked(scrapes, T0 + 2 * S), page(other=1), T0 + 2 * S)
    assert (said, news) == ([], False)
    assert why == state.error == "none of the metrics is there: depth"
    request = asked(scrapes, T0 + 3 * S)
    said, news, why = scrapes.answered(request, page(depth=1), T0 + 3 * S + 7 * MS)
    assert (len(said), news, why) == (1, True, "")
    assert (state.ok, state.failed, state.error, state.took_ns) == (1, 3, "", 7 * MS)


def test_a_change_keeps_what_stays() -> None:
    """Who goes is asked no more, and an answer that was under way is nobody's."""
    scrapes = made(service(reading(queue="depth")))
    first, second = scrapes.due(T0)
    scrapes.answered(first, page(depth=1), T0 + MS)
    scrapes.change([service(reading(cache_usage="full"), backends=(1,))], T0 + MS)
    assert scrapes.answered(second, page(depth=1), T0 + 2 * MS) == ([], False, "")
    assert scrapes.of(2) is None
    assert scrapes.deadline() == T0 + S  # not at once: it was asked just now
    again = asked(scrapes, T0 + S)
    assert again.endpoint.addr == 1
    assert again.names == {"full"}
    scrapes.change([], T0 + S)
    assert scrapes.deadline() is None


@pytest.mark.parametrize(
    ("before_s", "after_s", "due_s"),
    [
        (600, 2, 12),  # from now on by the new one
        (600, 595, 600),  # never later than it was
        (2, 600, 12),  # the old one's turn is the last of its kind
        (600, 600, 600),
    ],
)
def test_another_interval_holds_at_once(before_s: int, after_s: int, due_s: int) -> None:
    """A shorter one does not wait for the end of the longer one; each place is asked once."""

    def every(seconds: int) -> list[Service]:
        return [service(replace(reading(queue="depth"), interval_ns=seconds * S), backends=(1,))]

    scrapes = Scrapes(lambda below: 0)
    scrapes.change(every(before_s), T0)
    for now_ns in range(T0, T0 + 10 * S + 1, S):
        for request in scrapes.due(now_ns):
            scrapes.answered(request, page(depth=1), now_ns)
    scrapes.change(every(after_s), T0 + 10 * S)
    due_ns = scrapes.deadline()
    assert due_ns == T0 + due_s * S
    scrapes.answered(asked(scrapes, due_ns), page(depth=1), due_ns)
    assert scrapes.due(due_ns + after_s * S - 1) == []
    asked(scrapes, due_ns + after_s * S)


def test_what_is_asked_anew_is_asked_soon() -> None:
    """Not at the end of an interval of ten minutes; what is asked no more hurries nobody."""
    slow = replace(reading(queue="depth"), interval_ns=600 * S)
    scrapes = made(service(slow, backends=(1,)))
    scrapes.answered(asked(scrapes), page(depth=1), T0 + MS)
    more = replace(reading(queue="depth", cache_usage="full"), interval_ns=600 * S)
    scrapes.change([service(more, backends=(1,))], T0 + 5 * S)
    assert scrapes.deadline() == T0 + 6 * S
    assert told(scrapes, page(depth=1, full=0.5), T0 + 6 * S) == {"queue": 1, "usage": 0.5}
    scrapes.change([service(slow, backends=(1,))], T0 + 10 * S)
    assert scrapes.deadline() == T0 + 606 * S


def test_an_answer_is_judged_by_what_was_asked() -> None:
    """One that was under way when other metrics came to be wanted says nothing of them, and keeps
    nobody from being asked for them; one that has them all says all."""
    scrapes = made(service(reading(queue="depth", cache_usage="full"), backends=(1,)))
    both = asked(scrapes)
    scrapes.change([service(reading(queue="depth"), backends=(1,))], T0)
    assert scrapes.answered(both, page(depth=1, full=0.5), T0 + MS)[0][0].values == {"queue": 1}
    old = asked(scrapes, T0 + S)
    scrapes.change([service(reading(queue="waiting"), backends=(1,))], T0 + S)
    new = asked(scrapes, T0 + 2 * S)
    assert scrapes.answered(old, page(depth=1), T0 + 3 * S) == ([], False, "")
    found = scrapes.of(1)
    assert found is not None
    assert (found[2].ok, found[2].failed) == (1, 0)
    assert scrapes.answered(new, page(waiting=2), T0 + 3 * S)[0][0].values == {"queue": 2}


def test_shares_come_of_what_was_counted_meanwhile() -> None:
    """The first answer says nothing, nor does one in which nothing was asked for."""
    scrapes = made(service(reading(cache_hit="hits / queries"), backends=(1,)))
    assert told(scrapes, page(hits=900, queries=1000), T0) == {}
    assert told(scrapes, page(hits=930, queries=1040), T0 + S) == {"cache": 0.75}
    assert told(scrapes, page(hits=930, queries=1040), T0 + 2 * S) == {}
    assert told(scrapes, page(hits=941, queries=1050), T0 + 3 * S) == {"cache": 1.0}


def test_a_server_that_begins_anew_counts_from_0() -> None:
    """Its counters have gone back."""
    scrapes = made(service(reading(cache_hit="hits / queries"), backends=(1,)))
    told(scrapes, page(hits=900, queries=1000), T0)
    assert told(scrapes, page(hits=5, queries=10), T0 + S) == {"cache": 0.5}
    assert told(scrapes, page(hits=6, queries=14), T0 + 2 * S) == {"cache": 0.25}


def test_a_series_that_is_new_says_nothing_yet() -> None:
    """What it has counted was counted before; those that were there go on."""
    scrapes = made(service(reading(cache_hit="hits / queries"), backends=(1,)))
    one: dict[str, str] = {"engine": "0"}
    two: dict[str, str] = {"engine": "1"}
    told(scrapes, {"hits": [(one, 0)], "queries": [(one, 0)]}, T0)
    both: Samples = {"hits": [(one, 1), (two, 500)], "queries": [(one, 4), (two, 500)]}
    assert told(scrapes, both, T0 + S) == {"cache": 0.25}
    both = {"hits": [(one, 1), (two, 502)], "queries": [(one, 6), (two, 502)]}
    assert told(scrapes, both, T0 + 2 * S) == {"cache": 0.5}


def test_times_are_means_or_gauges() -> None:
    """Of a histogram what has come since the last time; in seconds there, in ns here."""
    scrapes = made(service(reading(ttft="first"), backends=(1,)))
    told(scrapes, page(first_sum=10, first_count=4), T0)
    assert told(scrapes, page(first_sum=11, first_count=8), T0 + S) == {"ttft_ns": 0.25e9}
    scrapes = made(service(reading(ttft="first"), backends=(1,)))
    assert told(scrapes, page(first=0.5), T0) == {"ttft_ns": 0.5e9}


def test_engines_of_one_server_are_taken_together() -> None:
    """Their queues are one, of shares the mean counts; labels choose among them."""
    rows = [({"engine": "0"}, 0.5), ({"engine": "1"}, 0.25)]
    scrapes = made(service(reading(queue="a + b", cache_usage="a"), backends=(1,)))
    samples: Samples = {"a": rows, "b": [({}, 2.0)]}
    assert told(scrapes, samples, T0) == {"queue": 2.75, "usage": 0.375}
    scrapes = made(service(reading(queue='a{engine="1"}'), backends=(1,)))
    assert told(scrapes, samples, T0) == {"queue": 0.25}


def test_half_of_a_queue_is_none() -> None:
    """It would be the shortest of all. Which series a name has is another matter, and a counter
    that is not there has counted nothing."""
    scrapes = made(service(reading(queue='a{x="1"} + a{x="2"} + b', ttft="s + t / n"),
                           backends=(1,)))  # fmt: skip
    one: dict[str, str] = {"x": "1"}
    times = page(s=1, n=1)
    assert told(scrapes, {"a": [(one, 3)], **times}, T0) == {}
    found = scrapes.of(1)
    assert found is not None
    assert list(found[2].missing) == ["queue"]
    samples: Samples = {"a": [(one, 3)], **page(b=0, s=2, n=2)}
    assert told(scrapes, samples, T0 + S) == {"queue": 3, "ttft_ns": 1e9}
    assert not found[2].missing
    samples = {"a": [({"x": "3"}, 3)], **page(b=5)}
    scrapes.answered(asked(scrapes, T0 + 2 * S), samples, T0 + 2 * S)
    assert found[2].error.startswith("only a part is there of: a{")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue", -1),
        ("cache_hit", -1),  # vLLM's for a cache that is switched off
        ("cache_hit", 1.5),
        ("cache_usage", 85),
        ("ttft", -0.5),
        ("ttft", 1e300),
        ("ttft", 3601),
        ("queue", 1e10),
    ],
)
def test_what_no_input_can_have_is_not_told(key: str, value: float) -> None:
    """It says nothing; the page is one all the same."""
    scrapes = made(service(reading(**{key: "a", "queue" if key != "queue" else "ttft": "b"}),
                           backends=(1,)))  # fmt: skip
    assert KEYS[key] not in told(scrapes, page(a=value, b=1), T0)


def test_what_is_no_number_is_not_there() -> None:
    """NaN, infinity."""
    scrapes = made(service(reading(queue="a", ttft="b"), backends=(1,)))
    assert told(scrapes, page(a=float("nan"), b=1), T0) == {"ttft_ns": 1e9}
    found = scrapes.of(1)
    assert found is not None
    assert found[2].missing == ("queue",)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_was_no_number_is_no_start(odd: float) -> None:
    """Of what has grown since: nobody knows by how much."""
    scrapes = made(service(reading(cache_hit="hits / queries", queue="n"), backends=(1,)))
    assert told(scrapes, page(hits=odd, queries=odd, n=1), T0) == {"queue": 1}
    assert told(scrapes, page(hits=900, queries=1000, n=1), T0 + S) == {"queue": 1}
    said = told(scrapes, page(hits=901, queries=1002, n=1), T0 + 2 * S)
    assert said == {"queue": 1, "cache": 0.5}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "vllm",
            page(
                vllm__num_requests_waiting=2, vllm__num_requests_running=3,
                vllm__kv_cache_usage_perc=0.5, vllm__prefix_cache_queries_total=100,
                vllm__prefix_cache_hits_total=10, vllm__time_to_first_token_seconds_sum=1,
                vllm__time_to_first_token_seconds_count=1,
            ),
            page(
                vllm__num_requests_waiting=4, vllm__num_requests_running=6,
                vllm__kv_cache_usage_perc=0.75, vllm__prefix_cache_queries_total=200,
                vllm__prefix_cache_hits_total=60, vllm__time_to_first_token_seconds_sum=2,
                vllm__time_to_first_token_seconds_count=5,
            ),
        ),
        (
            "vllm",
            page(
                vllm__num_requests_waiting=2, vllm__num_requests_running=3,
                vllm__gpu_cache_usage_perc=0.5, vllm__gpu_prefix_cache_queries_total=100,
                vllm__gpu_prefix_cache_hits_total=10, vllm__time_to_first_token_seconds_sum=1,
                vllm__time_to_first_token_seconds_count=1,
            ),
            page(
                vllm__num_requests_waiting=4, vllm__num_requests_running=6,
                vllm__gpu_cache_usage_perc=0.75, vllm__gpu_prefix_cache_queries_total=200,
                vllm__gpu_prefix_cache_hits_total=60, vllm__time_to_first_token_seconds_sum=2,
                vllm__time_to_first_token_seconds_count=5,
            ),
        ),
        (
            "sglang",
            page(sglang__time_to_first_token_seconds_sum=1, sglang__num_queue_reqs=0,
                 sglang__time_to_first_token_seconds_count=1),
            page(
                sglang__num_queue_reqs=4, sglang__num_running_reqs=6, sglang__token_usage=0.75,
                sglang__cache_hit_rate=0.5, sglang__time_to_first_token_seconds_sum=2,
                sglang__time_to_first_token_seconds_count=5,
            ),
        ),
    ],
)  # fmt: skip
def test_presets_read_what_servers_say(name: str, before: Samples, after: Samples) -> None:
    """Of newer and older versions."""
    scrapes = made(service(preset(name), backends=(1,)))
    told(scrapes, before, T0)
    assert told(scrapes, after, T0 + S) == {
        "queue": 10, "ttft_ns": 0.25e9, "cache": 0.5, "usage": 0.75,
    }  # fmt: skip


def test_both_sides_of_a_share_are_told() -> None:
    """By how much they have grown, whether or not that makes a value; of a gauge nothing."""
    scrapes = made(service(reading(cache_hit="hits / queries", queue="depth"), backends=(1,)))
    grown = []
    pages = [(5, 10), (8, 20), (8, 20)]
    for number, (hits, queries) in enumerate(pages):
        now_ns = T0 + number * S
        samples = page(hits=hits, queries=queries, depth=1)
        (said,), _, _ = scrapes.answered(asked(scrapes, now_ns), samples, now_ns)
        grown.append(said.grown)
    assert grown == [{"cache": (0, 0)}, {"cache": (3, 10)}, {"cache": (0, 0)}]
