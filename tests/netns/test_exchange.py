# SPDX-License-Identifier: Apache-2.0
"""One request and its answer, through a gateway between real sockets and mock engines."""

from __future__ import annotations

import threading
import time
import uuid
import zlib

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import Answer, CutOff, Event, chat, request
from tests.support.gateway_place import ENGINE_PORT, Place, gateway
from tests.support.netns import wait_for
from tests.support.scripted_backend import Step, reset, scripted
from xdp_router.daemon.gateway.board import HELD_UNTIL

LLM = 'type = "llm"'
ONE = f'{LLM}\nmode = "inline"'


def racing(hedge: str, more: str = "") -> str:
    """A listener that races two, the second one after so long."""
    return f'{LLM}\n{more}\n[listener.race]\nhedge = "{hedge}"\n'


def stream(place: Place, what: bytes | None = None) -> list[Event]:
    """One request of a client of its own, to its end."""
    with place.connect() as client:
        assert client.send(chat() if what is None else what).head().status == 200
        return list(client.events())


def counted(place: Place, name: str) -> list[list[object]]:
    """Rows of one figure."""
    rows: list[list[object]] = place.call(lambda: place.fronts["front"].plain()).get(name, [])
    return rows


def client_of(place: Place, what: bytes) -> Answer:
    """The answer to one request of a client of its own."""
    with place.connect() as client:
        return client.ask(what)


# Who wins


@in_fresh_netns
def test_the_first_token_wins_and_the_loser_is_closed() -> None:
    """All at once: the slower one is cut when the faster one's first token is there."""
    with gateway(racing("0s"), {"slow": "ttft-ms=5000", "fast": "ttft-ms=20"}) as place:
        assert stream(place)[-1].data == "[DONE]"
        slow = place.engines["slow"]
        wait_for(lambda: slow.counts.aborted == 1, 5, "the loser sees that nobody waits")
        told = place.last()
        assert (told["backend"], told["legs"], told["end"]) == ("fast", 2, "complete")
        outcomes = {each["backend"]: each["outcome"] for each in told["candidates"]}
        assert outcomes == {"slow": "another one was first", "fast": "won"}
        place.settled()


@in_fresh_netns
def test_early_headers_and_roles_win_nothing() -> None:
    """A head at once, a role and a comment before the token: the one with the token wins."""
    early = "ttft-ms=3000,early-headers=1,role-first=1,comment-first=1"
    with gateway(racing("0s"), {"early": early, "plain": "ttft-ms=100"}) as place:
        stream(place)
        assert place.last()["backend"] == "plain"
        # What it cost: an event that was there already.
        assert counted(place, "loser_tokens_total") == [[["front", "early"], 1]]


@in_fresh_netns
def test_nobody_else_is_asked_before_the_delay() -> None:
    """One that answers in time stays alone; one that does not gets a rival, which is told."""
    with gateway(racing("400ms"), {"only": "ttft-ms=5"}, more="") as place:
        stream(place)
        assert place.last()["legs"] == 1
    with gateway(racing("50ms"), {"one": "ttft-ms=700", "two": "ttft-ms=700"}) as place:
        stream(place)
        told = place.last()
        assert (told["legs"], told["hedged"]) == (2, 1)
        second = [each for each in told["timeline"] if each["what"] == "leg"][1]
        assert second["at_us"] >= 50_000


@in_fresh_netns
def test_rivals_are_paid_for() -> None:
    """Without a budget for further legs there are none, however slow the first one is."""
    quiet = racing("1ms") + "extra_legs = 0\n"
    with gateway(quiet, {"one": "ttft-ms=60", "two": "ttft-ms=60"}) as place:
        stream(place)
        told = place.last()
        assert (told["legs"], told["hedges_denied"]) == (1, 1)


@in_fresh_netns
def test_a_whole_answer_wins_when_it_is_whole() -> None:
    """Not streamed: an error in its place is none, and the client gets one answer."""
    with gateway(racing("0s"), {"bad": "error-first=1", "good": "ttft-ms=50"}) as place:
        with place.connect() as client:
            answer = client.ask(chat(stream=False))
        assert answer.status == 200
        assert b'"choices"' in answer.body
        assert place.last()["backend"] == "good"


@in_fresh_netns
def test_who_loses_once_is_not_asked_first_again() -> None:
    """It took at least as long as it was given: the winner comes first from then on."""
    with gateway(racing("40ms"), {"slow": "ttft-ms=3000", "fast": "ttft-ms=5"}) as place:
        for _ in range(8):
            stream(place)
        slow, fast = (place.engines[each].counts.requests for each in ("slow", "fast"))
        assert fast == 8
        assert slow <= 2


# Failures before the first byte


@in_fresh_netns
@pytest.mark.parametrize("fault", ["status=429", "status=500", "status=503", "error-first=1"])
def test_who_cannot_is_passed_over(fault: str) -> None:
    """Its refusal is not the client's business while another one can."""
    with gateway(f'{LLM}\nmode = "snapshot"', {"no": fault, "yes": ""}) as place:
        for _ in range(4):
            stream(place)
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize(
    "fault", ["crash-after=0", "close-after=0", "crash-after=0,early-headers=1,role-first=1"]
)
def test_a_crash_before_the_first_token_is_retried(fault: str) -> None:
    """The head alone was never shown to the client."""
    with gateway(ONE, {"no": fault, "yes": ""}) as place:
        for _ in range(4):
            assert stream(place)[-1].data == "[DONE]"
        assert not any("broke off" in line for line in place.lines)
        assert counted(place, "loser_tokens_total") == []  # nobody was better, it failed
        place.settled()


@in_fresh_netns
def test_where_nobody_listens_another_one_is_taken() -> None:
    """And for a while it is not tried first again; what its cache had is forgotten."""
    port = ENGINE_PORT + 50
    nobody = f'[[listener.backend]]\nname = "nobody"\naddress = "127.0.0.1:{port}"\n'
    with gateway(ONE, {"there": ""}, more=nobody) as place:
        cache = place.fronts["front"].cache
        assert cache is not None
        place.call(lambda: cache.credit(1, (1, 2, 3)))
        for _ in range(6):
            stream(place)
        tried = place.call(lambda: place.fronts["front"].figures.plain())["failed_legs_total"]
        assert tried == [[["front", "nobody"], 1]]
        assert place.call(lambda: cache.size(1)) == 0


@in_fresh_netns
def test_if_all_refuse_the_best_refusal_is_passed_on() -> None:
    """With the least Retry-After that anybody said; and none is asked again before."""
    busy = {"a": "status=429,retry-after=30", "b": "status=503,retry-after=7"}
    with gateway(ONE, busy) as place, place.connect() as client:
        answer = client.ask(chat())
        assert answer.status in (429, 503)
        assert answer.head.get("retry-after") == "7"
        before_ns = time.monotonic_ns()
        assert place.call(lambda: place.board.held_until_ns(0)) > before_ns + 25 * 10**9
        again = client_of(place, chat("status=429,retry-after=2"))
        assert again.head.get("retry-after") == "2"
        # Who has asked for half a minute is not asked sooner by what it says later.
        assert place.call(lambda: place.board.held_until_ns(0)) > before_ns + 25 * 10**9


@in_fresh_netns
def test_a_refusal_that_is_passed_on_says_when_to_come_again() -> None:
    """If the one that is passed on does not know, another one has said it."""
    busy = {"a": "status=500,retry-after=9", "b": "status=503"}
    with gateway(ONE, busy) as place:
        for _ in range(6):
            with place.connect() as client:
                answer = client.ask(chat())
            assert (answer.status, answer.head.get("retry-after")) == (503, "9")
            place.call(lambda: place.board.set_own(0, HELD_UNTIL, 0))


@in_fresh_netns
def test_no_token_in_time_is_a_504() -> None:
    """The error has the form that clients of this interface read."""
    late = f'{ONE}\nfirst_byte_timeout = "80ms"'
    with gateway(late, {"one": "ttft-ms=9000,early-headers=1"}) as place:
        with place.connect() as client:
            answer = client.ask(chat())
            assert answer.status == 504
            assert b'"error"' in answer.body
            assert client.end() is False
        wait_for(lambda: place.engines["one"].counts.aborted == 1, 5, "nobody waits there")
        place.settled()


@in_fresh_netns
def test_asking_twice_may_do_harm() -> None:
    """A POST of a listener without models, that broke off after it was sent, is not repeated."""
    with gateway('type = "http"\nmode = "snapshot"', {"a": "", "b": ""}) as place:
        with place.connect() as client:
            answer = client.ask(chat("crash-after=0"))
        assert answer.status == 502
        assert sum(each.counts.requests for each in place.engines.values()) == 1


# After the first byte


@in_fresh_netns
def test_a_crash_in_the_middle_is_told_and_cut() -> None:
    """After the first byte nobody else is asked: an error event, no [DONE], and RST."""
    with gateway(ONE, {"only": "tokens=9,crash-after=3,gap-ms=2"}) as place:
        with place.connect() as client:
            client.send(chat()).head()
            seen: list[Event] = []
            with pytest.raises(CutOff) as cut:
                seen.extend(client.events())
        assert cut.value.reset
        assert seen[-1].name == "error"
        assert "backend_lost" in seen[-1].data
        assert not any(each.data == "[DONE]" for each in seen)
        assert place.last()["end"].startswith("the backend broke off")
        place.settled()


@in_fresh_netns
def test_a_plain_answer_that_breaks_off_is_cut() -> None:
    """By RST: nobody takes what there is for the whole."""
    with gateway('type = "http"', {"only": ""}) as place, place.connect() as client:
        client.send(request("GET", "/sse", headers=[("x-mock", "tokens=9,crash-after=2,gap-ms=2")]))
        client.head()
        with pytest.raises(CutOff) as cut:
            list(client.events())
        assert cut.value.reset


@in_fresh_netns
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_that_goes_ends_all_legs(when: str) -> None:
    """Before the first token and after it, by FIN and by RST."""
    how = "ttft-ms=9000" if when == "before" else "tokens=900,gap-ms=20"
    legs = 2 if when == "before" else 1
    with gateway(racing("0s"), {"a": how, "b": how}) as place:
        for reset in (False, True):
            client = place.connect()
            client.send(chat())
            if when == "after":
                client.head()
                next(client.events())
            wait_for(lambda: sum(place.in_flight()) == legs, 5, "legs are under way")
            if reset:
                client.reset()
            else:
                client.close()
            place.settled()
        aborted = [each.counts.aborted for each in place.engines.values()]
        wait_for(
            lambda: sum(each.counts.aborted for each in place.engines.values()) == 4,
            5,
            f"each leg was cut, not {aborted}",
        )
        assert place.last()["end"] == "the client is gone"


# Bodies


@in_fresh_netns
def test_bodies_pass_as_they_are() -> None:
    """Large ones too, in chunks or not, and connections are kept on both sides."""
    body = bytes(range(256)) * 4096
    with gateway('type = "http"', {"one": ""}) as place:
        with place.connect() as client:
            assert client.ask(request("POST", "/echo", body)).body == body
            pieces = [body[at : at + 70_000] for at in range(0, len(body), 70_000)]
            assert client.ask(request("POST", "/echo", chunks=pieces)).body == body
            assert client.ask(request("GET", "/health")).status == 200
        assert place.call(lambda: place.engines["one"].counts.connections) == 1
        place.settled()


@in_fresh_netns
def test_a_prompt_in_chunks_is_read() -> None:
    """The model is in it, whatever its framing; it goes on in chunks as it came."""
    ask = chat()
    head, _, body = ask.partition(b"\r\n\r\n")
    lines = [x for x in head.split(b"\r\n") if not x.lower().startswith(b"content-length")]
    chunked = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""])
    half = len(body) // 2
    for piece in (body[:half], body[half:], b""):
        chunked += b"%x\r\n%b\r\n" % (len(piece), piece)
    with gateway(racing("0s"), {"a": "", "b": ""}) as place:
        assert stream(place, chunked)[-1].data == "[DONE]"
        assert place.last()["model"] == "mock"


@in_fresh_netns
def test_one_byte_at_a_time() -> None:
    """Of the request and of the answer: nothing depends on how bytes are cut up."""
    with gateway(ONE, {"one": "split=1,tokens=3"}) as place, place.connect() as client:
        client.send_slowly(chat())
        assert client.head().status == 200
        assert [each.data for each in client.events()][-1] == "[DONE]"
        place.settled()


@in_fresh_netns
def test_an_answer_up_to_the_end_of_the_connection() -> None:
    """The client's connection ends with it, and says so."""
    with gateway(ONE, {"one": "to-end=1,tokens=3"}) as place, place.connect() as client:
        head = client.send(chat()).head()
        assert head.get("connection") == "close"
        assert list(client.events())[-1].data == "[DONE]"
        assert client.end() is False
        place.settled()


@in_fresh_netns
def test_a_request_has_a_number() -> None:
    """A UUID, since some backends (starlette-context) refuse others; the client's own one stays."""
    with gateway(ONE, {"one": ""}) as place, place.connect() as client:
        ids = []
        for _ in range(2):
            answer = client.ask(chat(stream=False))
            ids.append(answer.head.get("x-request-id") or "")
            sent = place.call(lambda: place.engines["one"].recent[-1].headers)
            assert dict(sent)["X-Request-ID"] == ids[-1]
            assert str(uuid.UUID(ids[-1], version=4)) == ids[-1]
        assert ids[0] != ids[1]
        mine = client.ask(chat(stream=False, headers=[("X-Request-ID", "mine-7")]))
        assert mine.head.get("x-request-id") == "mine-7"
        assert place.explain("mine-7")["end"] == "complete"


@in_fresh_netns
@pytest.mark.parametrize("breaks", [False, True])
def test_a_stream_that_is_compressed(breaks: bool) -> None:
    """Nobody can see its tokens: its first bytes win, they pass as they come, and nothing is
    written into them."""
    packer = zlib.compressobj(wbits=31)
    pieces = []
    for text in (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', b"data: [DONE]\n\n"):
        data = packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH)
        pieces.append(b"%x\r\n%b\r\n" % (len(data), data))
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    seen = threading.Event()
    last: Step = reset if breaks else pieces[1] + b"0\r\n\r\n"
    play: list[Step] = [head + pieces[0], lambda _: seen.wait(10), last]
    one = f'[[listener.backend]]\nname = "one"\naddress = "127.0.0.1:{ENGINE_PORT}"\n'
    with scripted(ENGINE_PORT, play), gateway(ONE, {}, more=one) as place:
        with place.connect() as client:
            assert client.send(chat()).head().get("content-encoding") == "gzip"
            content = client.pieces()
            reader = zlib.decompressobj(wbits=31)
            assert reader.decompress(next(content)).startswith(b"data: {")
            seen.set()
            if breaks:
                with pytest.raises(CutOff) as cut:
                    next(content)
                assert (cut.value.reset, cut.value.rest) == (True, b"")
            else:
                assert reader.decompress(next(content)) == b"data: [DONE]\n\n"
        place.settled()
