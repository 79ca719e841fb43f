# SPDX-License-Identifier: Apache-2.0
"""A listener in a worker: limits of all its connections, and what it tells whoever looks."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, chat, request
from tests.support.gateway_place import Place, gateway
from tests.support.netns import wait_for
from xdp_router.daemon.gateway.board import (
    CACHE,
    IN_FLIGHT,
    QUEUE,
    SILENT_SINCE,
    TOLD_TTFT,
    USAGE,
)
from xdp_router.daemon.gateway.record import Record
from xdp_router.gateway.chooser import Known

ONE = 'type = "llm"\nmode = "inline"'


def counted(place: Place, name: str) -> list[list[object]]:
    """Rows of one figure."""
    rows: list[list[object]] = place.call(lambda: place.fronts["front"].plain()).get(name, [])
    return rows


@in_fresh_netns
def test_there_may_be_so_many_of_one_source() -> None:
    """Beyond that connections are closed at once, and counted; one that goes makes room."""
    with gateway('type = "http"\nmax_per_source = 2', {"a": ""}) as place:
        kept = [place.connect() for _ in range(2)]
        for each in kept:
            assert each.ask(request("GET", "/health")).status == 200
        over = place.connect()
        with pytest.raises((CutOff, OSError)):
            over.ask(request("GET", "/health"))
        over.close()
        kept.pop().close()
        wait_for(lambda: place.call(lambda: place.fronts["front"].open) == 1, 5, "one has gone")
        with place.connect() as client:
            assert client.ask(request("GET", "/health")).status == 200
        for each in kept:
            each.close()
        assert counted(place, "connections_refused_total") == [[["front", "source"], 1]]


@in_fresh_netns
def test_who_is_silent_is_slow_now() -> None:
    """Before anything has come of it, and until it has; a whole answer that takes long is none."""
    with gateway(ONE, {"a": ""}) as place:

        def expected_ms() -> float:
            (known,) = place.call(lambda: place.fronts["front"].sight.known((0,), ()))
            return (known.ttft_ns or 0) / 1e6

        with place.connect() as client:
            assert client.ask(chat()).status == 200
            usual_ms = expected_ms()
            assert usual_ms > 0
            client.send(chat("ttft-ms=800", stream=False))
            wait_for(lambda: place.call(place.fronts["front"].streams), 5, "it is under way")
            assert expected_ms() == usual_ms
            client.answer()
        with place.connect() as client:
            client.send(chat("ttft-ms=800"))
            wait_for(lambda: expected_ms() > usual_ms + 300, 5, "it is silent")
            client.head()
            list(client.events())
        place.settled()
        assert place.board.own(0, SILENT_SINCE) == place.board.own(0, IN_FLIGHT) == 0


@in_fresh_netns
def test_what_is_under_way_is_shown() -> None:
    """With its age; and when it is over it is a decision, found by its name."""
    with gateway(ONE, {"a": "ttft-ms=150"}) as place:
        with place.connect() as client:
            client.send(chat(headers=[("X-Request-ID", "q-1")]))
            wait_for(lambda: place.call(place.fronts["front"].streams), 5, "it is under way")
            (row,) = place.call(place.fronts["front"].streams)
            assert (row["id"], row["model"]) == ("q-1", "mock")
            assert row["age_s"] >= 0
            assert place.explain("q-1")["legs"] == 1
            client.head()
            list(client.events())
        place.settled()
        told = place.explain("q-1")
        assert (told["end"], told["tokens"]) == ("complete", 9)  # with the finish
        assert place.call(lambda: place.fronts["front"].explain("no such")) is None
        (line,) = place.lines
        assert json.loads(line)["id"] == "q-1"


@in_fresh_netns
def test_decisions_are_kept_within_a_bound() -> None:
    """The oldest go first, by name too."""
    tables = "\n[gateway]\ndecisions_kept = 3\n"
    with gateway(ONE, {"a": ""}, more=tables) as place:
        for number in range(5):
            with place.connect() as client:
                client.ask(chat(stream=False, headers=[("X-Request-ID", f"q-{number}")]))
        front = place.fronts["front"]
        assert [x["id"] for x in place.call(lambda: front.decisions(9))] == ["q-4", "q-3", "q-2"]
        assert place.call(lambda: front.explain("q-1")) is None


@in_fresh_netns
def test_figures_of_a_stream() -> None:
    """Time to the first token, gaps, tokens, and what was decided."""
    with gateway(ONE, {"a": "tokens=5,gap-ms=3"}) as place:  # and one event that says the end
        with place.connect() as client:
            client.send(chat()).head()
            list(client.events())
        place.settled()
        ((labels, ttft),) = counted(place, "ttft_seconds")
        assert labels == ["front", "a", "mock"]
        assert isinstance(ttft, dict)
        assert sum(ttft["counts"]) == 1
        assert counted(place, "tokens_total") == [[["front", "a", "mock"], 6]]
        assert counted(place, "decisions_total") == [[["front", "inline", "first choice"], 1]]
        assert counted(place, "requests_total") == [[["front", "a", "200"], 1]]
        assert counted(place, "streams") == [[["front"], 0]]


@in_fresh_netns
def test_only_tokens_tell_how_quick_an_engine_is() -> None:
    """A list of models, or an error, comes at once from a busy one, too: neither is a first token,
    and neither shortens the delay of hedges. An answer in one piece takes as long as all of its
    tokens."""
    with gateway('type = "llm"', {"a": "ttft-ms=40,tokens=1"}) as place:
        front, board = place.fronts["front"], place.board
        with place.connect() as client:
            for _ in range(20):
                assert client.ask(request("GET", "/v1/models")).status == 200
            assert client.ask(chat("status=400", stream=False)).status == 400
            assert client.ask(chat(stream=False)).status == 200
        place.settled()
        assert place.call(lambda: board.look(0, 0)[1]) is None
        assert not counted(place, "ttft_seconds")
        (_, ttfb), *_ = counted(place, "ttfb_seconds")
        assert isinstance(ttfb, dict)
        assert sum(ttfb["counts"]) == 22
        assert (
            place.call(lambda: front.hedge_ns(Record("", "", "", 0, 0.0))) == 10**9
        )  # as of one that nothing is known of
        with place.connect() as client:
            client.ask(chat())
        place.settled()
        assert place.call(lambda: board.look(0, 0)[1] or 0) >= 40_000_000
        ((_, ttft),) = counted(place, "ttft_seconds")
        assert isinstance(ttft, dict)
        assert sum(ttft["counts"]) == 1


@in_fresh_netns
def test_whole_answers_do_not_make_a_backend_slow() -> None:
    """Neither those that won nor those that lost: streams would go elsewhere for a while."""
    race = 'type = "llm"\n[listener.race]\nhedge = "0s"\n'
    with gateway(race, {"a": "ttft-ms=120", "b": "ttft-ms=20"}) as place:
        with place.connect() as client:
            client.ask(chat(stream=False))
        place.settled()
        assert place.last()["legs"] == 2
        known = place.call(lambda: place.fronts["front"].sight.known((0, 1), ()))
        assert [each.ttft_ns for each in known] == [None, None]


@in_fresh_netns
def test_a_thousand_streams_at_a_time() -> None:
    """Slow readers among them: memory stays bounded, everybody else gets all of it in time."""
    much = "tokens=200,token-bytes=2000,gap-ms=1"
    with gateway(f"{ONE}\nmax_per_source = 2000", {"a": "", "b": "", "c": ""}) as place:
        slow = [place.connect() for _ in range(20)]
        for each in slow:
            each.send(chat(much))
        done: list[int] = []

        def some(count: int) -> None:
            clients = [place.connect() for _ in range(count)]
            for each in clients:
                each.send(chat("tokens=6,gap-ms=20"))
            for each in clients:
                assert each.head().status == 200
                done.append(sum(event.data != "[DONE]" for event in each.events()))
                each.close()

        threads = [threading.Thread(target=some, args=(245,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 980
        assert len(set(done)) == 1
        for each in slow:
            each.head()
            assert list(each.events())[-1].data == "[DONE]"
            each.close()
        place.settled()


@in_fresh_netns
def test_what_others_say_is_known() -> None:
    """Each value as long as it holds; a first token that was seen here counts before one that was
    told, and a prompt's own blocks before a hit rate."""
    with gateway(f"{ONE}\n[listener.score]\nage = '5s'", {"a": "ttft-ms=30"}) as place:
        front, board, row = place.fronts["front"], place.board, 0

        def known(blocks: tuple[int, ...] = ()) -> Known:
            return place.call(lambda: front.sight.known((0,), blocks)[0])

        def told(age_s: float, **values: int) -> None:
            words = {"queue": QUEUE, "usage": USAGE, "cache": CACHE, "ttft": TOLD_TTFT}
            at_ns = time.monotonic_ns() - round(age_s * 1e9)
            for name, value in values.items():
                board.tell(row, words[name], value, at_ns)

        assert (known().usage, known().cache, known().waiting) == (None, None, 0)
        told(0, queue=2_500)
        found = known()
        assert (found.waiting, found.load) == (2.5, 2.5)
        assert (found.usage, found.cache, found.ttft_ns) == (None, None, None)  # nobody said
        told(0, usage=0, cache=400, ttft=7_000_000)
        found = known()
        assert (found.usage, found.cache, found.ttft_ns) == (0.0, 0.4, 7_000_000)
        assert known((1, 2)).cache == 0.0
        told(6, queue=9_000)
        found = known()
        assert (found.waiting, found.usage) == (0.0, None)  # by the listener's age, not the rest's
        told(0, ttft=7_000_000)
        with place.connect() as client:
            client.ask(chat())
        place.settled()
        assert (known().ttft_ns or 0) >= 30_000_000


def test_only_tokens_are_times_to_a_token() -> None:
    """A list of models, an error and a refusal come sooner, and say nothing of an engine; who
    refuses has computed nothing of the prompt, either."""
    prompt = "x" * 2_000
    with gateway(ONE, {"a": ""}) as place:
        with place.connect() as client:
            assert client.ask(request("GET", "/health")).status == 200
            for status in (404, 503):
                assert client.ask(chat(f"status={status}", prompt=prompt)).status == status
            front = place.fronts["front"]
            assert counted(place, "ttft_seconds") == []
            assert place.call(lambda: front.sight.known([0], ())[0].ttft_ns) is None
            cache = front.cache
            assert cache is not None
            assert place.call(lambda: cache.size(0)) == 0
            assert client.ask(chat(prompt=prompt)).status == 200
        place.settled()
        assert place.call(lambda: front.sight.known([0], ())[0].ttft_ns) is not None
        assert place.call(lambda: cache.size(0)) > 0


@in_fresh_netns
def test_who_has_no_token_in_time_is_known_for_slow() -> None:
    """It would be asked first again and again, as one of whom nothing is known."""
    with gateway(f'{ONE}\nfirst_byte_timeout = "60ms"', {"a": "ttft-ms=9000"}) as place:
        with place.connect() as client:
            assert client.ask(chat()).status == 504
        front = place.fronts["front"]
        assert (place.call(lambda: front.sight.known([0], ())[0].ttft_ns) or 0) >= 55_000_000


@in_fresh_netns
def test_the_time_of_an_upload_is_not_the_backends() -> None:
    """Only what comes after the body's last byte is."""
    with gateway('type = "http"\nmode = "inline"', {"a": ""}) as place:
        with place.connect() as client:
            ask = request("POST", "/echo", b"xy")
            client.send(ask[:-1])
            time.sleep(0.3)
            assert client.send(ask[-1:]).answer().status == 200
        front = place.fronts["front"]
        assert 0 < (place.call(lambda: front.sight.known([0], ())[0].ttft_ns) or 0) < 250_000_000
