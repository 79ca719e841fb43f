# SPDX-License-Identifier: Apache-2.0
"""Clients' connections to a listener that speaks HTTP/1.1: what they may do, and what ends them."""

from __future__ import annotations

import base64
import json
import os
import threading
import time

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import Answer, CutOff, RawClient, chat, request
from tests.support.gateway_place import Place, gateway
from tests.support.netns import wait_for

HTTP = 'type = "http"'


def closes(place: Place, deadline: str) -> int:
    """How many connections were closed by a deadline."""
    rows = place.call(lambda: place.fronts["front"].figures.plain())
    found = rows.get("deadline_closes_total", [])
    return sum(value for (_, name), value in found if name == deadline)


@in_fresh_netns
def test_requests_in_a_row_are_answered_in_order() -> None:
    """Many at once on one connection: each body belongs to its request."""
    bodies = [os.urandom(size) for size in (1, 900, 70_000, 3, 20_000)]
    with gateway(HTTP, {"a": "", "b": ""}) as place, place.connect() as client:
        client.send(b"".join(request("POST", "/echo", each) for each in bodies))
        for each in bodies:
            assert client.answer().body == each
        place.settled()


@in_fresh_netns
def test_a_head_and_no_body() -> None:
    """HEAD, 204 and 304 keep the connection; what comes next is not taken for a body."""
    with gateway(HTTP, {"a": ""}) as place, place.connect() as client:
        assert client.ask(request("HEAD", "/echo"), method="HEAD").status == 200
        assert client.ask(request("GET", "/health")).status == 200
        place.settled()


@in_fresh_netns
def test_old_clients_are_spoken_to_in_their_way() -> None:
    """HTTP/1.0: chunks are taken away, the end of the connection is the end of the answer."""
    with gateway(HTTP, {"a": "tokens=3"}) as place, place.connect() as client:
        client.send(b"GET /sse HTTP/1.0\r\n\r\n")
        head = client.head()
        assert head.get("transfer-encoding") is None
        assert list(client.events())[-1].data == "end"
        assert client.end() is False
        place.settled()


@in_fresh_netns
def test_who_waits_for_a_100_gets_one() -> None:
    """And the backend is not asked to say it once more."""
    with gateway(HTTP, {"a": ""}) as place, place.connect() as client:
        head = request("POST", "/echo", b"x" * 10, headers=[("Expect", "100-continue")])
        client.send(head[:-10])
        assert client.head(interim=True).status == 100
        assert client.send(b"x" * 10).answer().body == b"x" * 10
        seen = place.call(lambda: place.engines["a"].recent[-1].headers)
        assert "expect" not in {name.lower() for name, _ in seen}


@in_fresh_netns
def test_a_websocket_passes() -> None:
    """The upgrade, frames both ways, and the close."""
    key = base64.b64encode(os.urandom(16)).decode()
    ask = request(
        "GET",
        "/ws",
        headers=[
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", key),
        ],
    )
    with gateway(HTTP, {"a": "", "b": ""}) as place, place.connect() as client:
        assert client.send(ask).head().status == 101
        mask = b"\1\2\3\4"
        for text in (b"hello", b"again"):
            masked = bytes(each ^ mask[at % 4] for at, each in enumerate(text))
            client.send(bytes([0x81, 0x80 | len(text)]) + mask + masked)
            assert client.take(2 + len(text)) == bytes([0x81, len(text)]) + text
        client.send(bytes([0x88, 0x80]) + mask)
        assert client.take(2)[0] == 0x88
        client.close()
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 501),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)  # fmt: skip - one line each would say less
def test_what_is_no_good_request_reaches_nobody(bad: bytes, status: int) -> None:
    """It is answered and the connection closed; a request hidden behind it is never sent on."""
    hidden = request("GET", "/health")
    with gateway(HTTP, {"a": ""}) as place, place.connect() as client:
        answer = client.ask(bad + hidden)
        assert answer.status == status
        assert answer.head.get("connection") == "close"
        client.buffer.clear()
        assert client.end() in (False, True)
        (line,) = map(json.loads, place.lines)
        assert (line["id"], line["status"]) == (answer.head.get("x-request-id"), status)
        assert line["end"].encode() in answer.body
        assert place.call(lambda: place.engines["a"].counts.requests) == 0


@in_fresh_netns
def test_each_answer_has_a_name_and_a_line_and_none_to_head_a_body() -> None:
    """Also those that are given before the body, or before there is a whole head."""
    keys = """type = "llm"
max_body = 2000
head_timeout = "100ms"
[[listener.route]]
path = "/v1"
backends = ["a"]
"""
    packed = request("POST", "/v1/completions", b"x", headers=[("Content-Encoding", "gzip")])
    large = request("HEAD", "/v1/x", b"x" * 2001)[:-2001]
    waits = request("PUT", "/nobody", b"x", headers=[("Expect", "100-continue")])
    asks: list[tuple[bytes, int, str]] = [
        (chat(prompt="x" * 4000), 413, "/v1/chat/completions"),
        (large, 413, "/v1/x"),
        (packed, 415, "/v1/completions"),
        (request("HEAD", "/nobody"), 404, "/nobody"),
        (request("GET", "/nobody"), 404, "/nobody"),
        (waits[:-1], 404, "/nobody"),
        (b"HEAD /v1/late HTTP/1.1\r\n", 408, "/v1/late"),
        (b"HEAD /v1/two?x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "/v1/two"),
        (b"HEAD /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "/aaaa"),
    ]
    with gateway(keys, {"a": ""}) as place:
        for data, status, path in asks:
            with place.connect() as client:
                method = data.partition(b" ")[0].decode()
                head = client.send(data).head(interim=True)  # nobody is told to go on before it
                answer = Answer(head, b"" if method == "HEAD" else b"".join(client.pieces()))
                assert int(answer.head.get("content-length") or 0) > 0
                assert client.end() is False  # and no byte before
            told = place.last()
            assert answer.status == status == told["status"]
            assert told["id"] == answer.head.get("x-request-id")
            assert (told["method"], told["path"][: len(path)]) == (method, path)
        ids = [json.loads(each)["id"] for each in place.lines]
        assert len(ids) == len(set(ids)) == len(asks)
        with place.connect() as client:
            client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").take(9)
        place.settled()
        told = place.last()
        assert (told["method"], told["path"], told["status"]) == ("PRI", "*", 505)
        assert len(place.lines) == len(asks) + 1
        assert place.call(lambda: place.engines["a"].counts.requests) == 0


@in_fresh_netns
def test_a_body_of_chunks_that_are_none_is_cut_off() -> None:
    """The backend gets nothing that it could read in another way."""
    bad = request("POST", "/echo", chunks=[b"abc"])[:-5] + b"3;\n\r\nabc\r\n0\r\n\r\n"
    with gateway(HTTP, {"a": ""}) as place, place.connect() as client:
        client.send(bad)
        assert client.answer().status == 400
        place.settled()


@in_fresh_netns
def test_a_slow_head_is_closed_from_its_first_byte_on() -> None:
    """By 408. A connection that has said nothing yet is not slow."""
    keys = f'{HTTP}\nhead_timeout = "150ms"'
    with gateway(keys, {"a": ""}) as place:
        with place.connect() as early, place.connect() as client:
            client.send(b"GET / HTTP/1.1\r\n")
            begun = time.monotonic()
            assert client.answer().status == 408
            assert time.monotonic() - begun >= 0.14
            assert client.end() is False
            assert early.ask(request("GET", "/health")).status == 200
            early.send(b"GET /health HTTP/1.1\r\nHost: a\r\n")
            assert early.answer().status == 408
        assert closes(place, "head") == 2


@in_fresh_netns
def test_a_slow_body_is_closed() -> None:
    """A prompt that stops coming does not hold its place for ever."""
    with gateway('type = "llm"\nbody_timeout = "100ms"', {"a": ""}) as place:
        with place.connect() as client:
            assert client.send(chat()[:-4]).answer().status == 408
        assert closes(place, "body") == 1


@in_fresh_netns
def test_a_large_body_may_take_its_time() -> None:
    """Only one that hardly comes at all is late; one that the backend does not take is not."""
    keys = f'{HTTP}\nbody_timeout = "60ms"'
    with gateway(keys, {"a": ""}) as place, place.connect() as client:
        body = b"x" * 200_000
        client.send(request("POST", "/echo", body)[: -len(body)])
        for at in range(0, len(body), 20_000):
            client.send(body[at : at + 20_000])
            time.sleep(0.02)
        assert client.answer().body == body
        held = request("POST", "/echo", b"y" * 9_000_000, headers=[("x-mock", "read-after-ms=200")])
        sender = threading.Thread(target=client.send, args=(held,))
        sender.start()
        assert len(client.answer().body) == 9_000_000
        sender.join()
        assert closes(place, "body") == 0
        place.settled()


@in_fresh_netns
def test_idle_connections_end() -> None:
    """Those that have said nothing, and those between two requests."""
    with gateway(f'{HTTP}\nidle_timeout = "50ms"', {"a": ""}) as place:
        with place.connect() as silent, place.connect() as kept:
            assert kept.ask(request("GET", "/health")).status == 200
            time.sleep(0.06)
            place.call(place.fronts["front"].sweep)
            assert (silent.end(), kept.end()) == (False, False)
        assert closes(place, "idle") == 2


@in_fresh_netns
def test_an_empty_line_is_no_request() -> None:
    """Old clients send one behind a body; a connection that has said no more is idle."""
    with gateway(f'{HTTP}\nidle_timeout = "50ms"\nhead_timeout = "20ms"', {"a": ""}) as place:
        with place.connect() as client:
            client.send(b"\r\n")
            wait_for(lambda: place.call(lambda: place.fronts["front"].open) == 1, 5, "it is there")
            time.sleep(0.06)
            place.call(place.fronts["front"].sweep)
            assert client.end() is False
        assert (closes(place, "idle"), closes(place, "head")) == (1, 0)


@in_fresh_netns
def test_bodies_have_limits() -> None:
    """By the length that is announced, and by what comes in chunks."""
    keys = 'type = "llm"\nmax_body = 2000'
    with gateway(keys, {"a": ""}) as place:
        with place.connect() as client:
            assert client.ask(chat(prompt="x" * 4000)).status == 413
        with place.connect() as client:
            pieces = [b"x" * 500] * 10
            assert client.ask(request("POST", "/v1/completions", chunks=pieces)).status == 413
        with place.connect() as client:
            assert client.ask(chat(prompt="x" * 100, stream=False)).status == 200
        assert place.call(lambda: place.engines["a"].counts.requests) == 1


@in_fresh_netns
def test_a_slow_reader_stops_only_its_own_backend() -> None:
    """The engine is held back, memory stays bounded, others go on."""
    much = "tokens=4000,token-bytes=4000"
    with gateway('type = "llm"\nmode = "inline"', {"a": ""}) as place:
        slow = RawClient.connect(place.address())
        slow.send(chat(much))
        wait_for(lambda: place.call(lambda: place.engines["a"].counts.paused) > 0, 20, "held back")
        with place.connect() as client:
            assert client.ask(chat(stream=False)).status == 200
        (row,) = place.call(place.fronts["front"].streams)
        assert row["bytes_out"] < 12_000_000
        slow.head()
        assert len(list(slow.events())) == 4002
        slow.close()
        place.settled()


@in_fresh_netns
def test_a_reader_that_stands_still_is_cut() -> None:
    """After stream_timeout nobody keeps a backend for it."""
    keys = 'type = "llm"\nmode = "inline"\nstream_timeout = "100ms"'
    with gateway(keys, {"a": ""}) as place:
        slow = place.connect()
        slow.send(chat("tokens=4000,token-bytes=4000"))
        wait_for(lambda: place.call(lambda: place.engines["a"].counts.paused) > 0, 20, "held back")
        time.sleep(0.15)
        place.call(place.fronts["front"].sweep)
        place.settled()
        slow.head()
        with pytest.raises(CutOff):
            list(slow.events())
        assert closes(place, "slow reader") == 1


@in_fresh_netns
def test_a_backend_that_stands_still_has_broken_off() -> None:
    """The same for the other side."""
    keys = 'type = "llm"\nmode = "inline"\nstream_timeout = "100ms"'
    with gateway(keys, {"a": "stall-after=2"}) as place, place.connect() as client:
        client.send(chat()).head()
        seen = client.events()
        next(seen)
        time.sleep(0.15)
        place.call(place.fronts["front"].sweep)
        with pytest.raises(CutOff) as cut:
            list(seen)
        assert cut.value.reset
        place.settled()


@in_fresh_netns
def test_when_it_retires_answers_end_with_close() -> None:
    """What is under way is finished. Who may just be asking is answered, and told to close; who
    was told before that the connection goes on can ask once more. Quiet connections are closed."""
    with gateway('type = "llm"\nmode = "inline"', {"a": "ttft-ms=100"}) as place:
        quiet, idle, busy, told = (place.connect() for _ in range(4))
        assert idle.ask(chat(stream=False)).status == 200
        told.send(chat("gap-ms=30,ttft-ms=0")).head()
        events = told.events()
        next(events)
        busy.send(chat())
        wait_for(lambda: sum(place.in_flight()) == 2, 5, "both are under way")
        place.call(place.fronts["front"].retire)
        for each in (idle, busy):
            if each is idle:
                each.send(chat())
            assert each.head().get("connection") == "close"
            assert list(each.events())[-1].data == "[DONE]"
            assert each.end() is False
            each.close()
        assert list(events)[-1].data == "[DONE]"
        again = told.ask(chat("ttft-ms=0", stream=False))
        assert (again.status, again.head.get("connection")) == (200, "close")
        told.close()
        assert quiet.end() is False
        quiet.close()
        wait_for(lambda: place.call(lambda: place.fronts["front"].open) == 0, 5, "all have gone")


@in_fresh_netns
def test_who_was_just_accepted_when_it_retires_is_served() -> None:
    """The kernel had shaken hands with it: nobody else would answer."""
    with gateway('type = "http"', {"a": ""}) as place:
        place.call(place.fronts["front"].retire)
        with place.connect() as client:
            answer = client.ask(request("GET", "/health"))
            assert (answer.status, answer.head.get("connection")) == (200, "close")
