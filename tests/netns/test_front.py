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
            assert place.call(lambda: front.known([0], ())[0].ttft_ns) is None
            cache = front.cache
            assert cache is not None
            assert place.call(lambda: cache.size(0)) == 0
            assert client.ask(chat(prompt=prompt, stream=False)).status == 200
        place.settled()
        assert place.call(lambda: front.known([0], ())[0].ttft_ns) is not None
        assert place.call(lambda: cache.size(0)) > 0


@in_fresh_netns
def test_who_has_no_token_in_time_is_known_for_slow() -> None:
    """It would be asked first again and again, as one of whom nothing is known."""
    with gateway(f'{ONE}\nfirst_byte_timeout = "60ms"', {"a": "ttft-ms=9000"}) as place:
        with place.connect() as client:
            assert client.ask(chat()).status == 504
        front = place.fronts["front"]
        assert (place.call(lambda: front.known([0], ())[0].ttft_ns) or 0) >= 55_000_000


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
        assert 0 < (place.call(lambda: front.known([0], ())[0].ttft_ns) or 0) < 250_000_000
