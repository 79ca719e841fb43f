# SPDX-License-Identifier: Apache-2.0
"""The mock engine over loopback, in a namespace of the test: what it says, and what it has seen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tests.support.engines import EngineProcess, engine, loopback_up
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, Event, RawClient, chat, request
from xdp_router.lab import websocket

T = TypeVar("T")
MS = 1_000_000


def with_engine(run: Callable[[EngineProcess], T], *options: str) -> T:
    """Run with an engine in a namespace of its own."""

    def there() -> T:
        loopback_up()
        with engine(*options) as one:
            return run(one)

    return in_fresh_netns(there)()


def stream(one: EngineProcess, mock: str, **more: Any) -> list[Event]:
    """The events of a whole stream."""
    with RawClient.connect(one.address) as client:
        client.send(chat(mock, **more))
        head = client.head()
        assert (head.status, head.get("transfer-encoding")) == (200, "chunked")
        return list(client.events())


def deltas(events: list[Event]) -> list[str]:
    """The tokens of a chat."""
    found = [json.loads(each.data) for each in events if each.data[:1] == "{"]
    return [each["choices"][0]["delta"].get("content", "") for each in found if each["choices"]]


def test_a_stream_is_timed() -> None:
    """The first token after its time, the others by gaps; each says when it was sent."""

    def run(one: EngineProcess) -> None:
        began_ns = time.monotonic_ns()
        events = stream(one, "")
        assert deltas(events) == ["tok ", "tok ", "tok ", ""]
        assert events[-1].data == "[DONE]"
        sent = [each.sent_ns for each in events[:3]]
        assert sent[0] - began_ns >= 38 * MS
        assert sent[2] - began_ns >= 76 * MS
        assert all(each.at_ns >= each.sent_ns for each in events[:3])
        assert len(stream(one, "", max_tokens=1)) == 3

    with_engine(run, "--ttft-ms", "40", "--gap-ms", "20", "--tokens", "3")


def test_what_comes_before_the_first_token() -> None:
    """Heads, comments, roles, errors: early, and no token."""

    def run(one: EngineProcess) -> None:
        with RawClient.connect(one.address) as client:
            client.send(chat("early-headers,ttft-ms=300"))
            early_ns = client.head().at_ns
            first = next(client.events())
            assert first.at_ns - early_ns > 150 * MS
        first, second, third, *_ = stream(one, "comment-first,role-first,ttft-ms=300")
        assert first.raw == b": ping\n\n"
        assert json.loads(second.data)["choices"][0]["delta"] == {
            "role": "assistant",
            "content": "",
        }
        assert third.at_ns - second.at_ns > 50 * MS
        assert sum(not each.data for each in stream(one, "ping-ms=20,ttft-ms=200")) > 1
        error, done = stream(one, "error-first")
        assert json.loads(error.data)["error"]["code"] == 500
        assert done.data == "[DONE]"
        reasoning = json.loads(stream(one, "reasoning")[0].data)["choices"][0]["delta"]
        assert reasoning == {"reasoning_content": "tok "}
        tool = json.loads(stream(one, "tool")[0].data)["choices"][0]["delta"]
        assert tool["tool_calls"][0]["function"]["name"] == "look"
        assert one.seen()["completed"] == 6

    with_engine(run)


def test_answers_that_are_no_streams() -> None:
    """Whole, of both paths, on one connection, several sent at once, and with faults."""

    def run(one: EngineProcess) -> None:
        with RawClient.connect(one.address) as client:
            for target, object_ in (
                ("/v1/chat/completions", "chat.completion"),
                ("/v1/completions", "text_completion"),
            ):
                answer = client.ask(chat(stream=False, target=target))
                said = json.loads(answer.body)
                assert (said["object"], said["usage"]["completion_tokens"]) == (object_, 8)
            client.send(chat("ttft-ms=20", stream=False) + request("GET", "/health") + chat())
            assert json.loads(client.answer().body)["id"].endswith("-3")
            assert client.answer().body == b""
            assert client.answer().body.endswith(b"data: [DONE]\n\n")
            answer = client.ask(chat("status=429,retry-after=2"))
            assert (answer.status, answer.head.get("retry-after")) == (429, "2")
            assert json.loads(answer.body)["error"]["code"] == 429
            for bad, text in (
                (request("POST", "/v1/completions", b"{"), "no JSON"),
                (request("POST", "/v1/completions", b"{}"), "no 'prompt'"),
                (chat("tokens=x"), "tokens=x: expected a number"),
                (request("GET", "/v1/completions"), "not for GET"),
                (request("GET", "/nowhere"), "no /nowhere"),
            ):
                assert text in json.loads(client.ask(bad).body)["error"]["message"]
            assert client.ask(request("HEAD", "/health"), method="HEAD").status == 200
        seen = one.seen()
        assert (seen["connections"], seen["refused"], seen["completed"]) == (2, 5, 5)

    with_engine(run)


def test_it_breaks_as_it_is_told() -> None:
    """RST, FIN and silence after a number of tokens; an answer that is no HTTP; no chunks."""

    def cut(one: EngineProcess, mock: str) -> tuple[int, bool]:
        events: list[Event] = []

        def read(client: RawClient) -> None:
            client.send(chat(mock)).head()
            events.extend(client.events())

        with RawClient.connect(one.address) as client, pytest.raises(CutOff) as caught:
            read(client)
        return len(events), caught.value.reset

    def run(one: EngineProcess) -> None:
        assert cut(one, "crash-after=0") == (0, True)
        assert cut(one, "close-after=0") == (0, False)
        assert cut(one, "close-after=2,gap-ms=5")[1] is False
        assert cut(one, "crash-after=2,gap-ms=5")[1] is True
        with RawClient.connect(one.address) as client, pytest.raises(ValueError, match="no HTTP"):
            client.send(chat("bad-head")).head()
        with RawClient.connect(one.address) as client:
            client.send(chat("stall-after=2,stall-ms=400"))
            client.head()
            events = list(client.events())
            assert events[2].at_ns - events[1].at_ns > 150 * MS
        with RawClient.connect(one.address) as client:
            answer = client.ask(chat("to-end"))
            assert answer.head.get("transfer-encoding") is None
            assert answer.body.endswith(b"data: [DONE]\n\n")
        assert len(stream(one, "split,tokens=2")) == 4
        seen = one.seen()
        assert seen["crashed"] == 5
        assert seen["aborted"] == 0

    with_engine(run)


def test_it_notices_who_goes_away() -> None:
    """Before the first token, while waiting for a place, after some tokens; by FIN and RST."""

    def run(one: EngineProcess) -> None:
        with RawClient.connect(one.address) as client:
            client.send(chat("ttft-ms=60000"))
            one.wait(lambda seen: seen["running"] == 1)
            other = RawClient.connect(one.address).send(chat())
            one.wait(lambda seen: seen["waiting"] == 1)
            gone_ns = other.reset()
            seen = one.wait(lambda seen: seen["aborted"] == 1)
            assert seen["waiting"] == 0
            assert seen["recent"][1]["ended_ns"] >= gone_ns
            client.half_close()
            seen = one.wait(lambda seen: seen["aborted_before_token"] == 2)
            assert seen["running"] == 0
        with RawClient.connect(one.address) as client:
            client.send(chat("tokens=100000,gap-ms=1")).head()
            next(client.events())
        seen = one.wait(lambda seen: seen["aborted"] == 3)
        assert seen["aborted_before_token"] == 2
        assert seen["tokens_of_aborted"] == seen["recent"][-1]["tokens"] > 0
        one.forget()
        assert one.seen()["aborted"] == 0

    with_engine(run, "--queue", "1")


def test_a_cancelled_prefill_keeps_its_place() -> None:
    """With --hold, the next one waits until the first token of who went would have come."""

    def run(one: EngineProcess) -> None:
        client = RawClient.connect(one.address).send(chat("ttft-ms=400"))
        one.wait(lambda seen: seen["running"] == 1)
        client.reset()
        stream(one, "")
        first, second = one.seen()["recent"]
        assert first["end"] == "aborted"
        assert second["served_ns"] - first["served_ns"] > 350 * MS

    with_engine(run, "--queue", "1", "--hold")


def test_an_engine_begins_anew() -> None:
    """Without a cache, and with other stalls; what a cancelled prefill has cost is counted."""

    def run(one: EngineProcess) -> None:
        for _ in range(2):
            with RawClient.connect(one.address) as client:
                assert client.ask(chat(prompt="word " * 100)).status == 200
        seen = one.seen()
        assert seen["prefix_hits"] > 0
        assert seen["recent"][0]["prefill_bytes"] == seen["recent"][0]["body_bytes"]
        one.anew("every-ms=50,for-ms=40,seed=2")
        assert one.seen()["prefix_hits"] == one.seen()["prefill_bytes"] == 0
        stream(one, "tokens=60,gap-ms=5")
        assert one.seen()["stalls"] > 0
        client = RawClient.connect(one.address).send(chat("ttft-ms=60000"))
        one.wait(lambda seen: seen["running"] == 1)
        client.reset()
        seen = one.wait(lambda seen: seen["aborted"] == 1)
        assert seen["prefill_of_aborted"] == seen["recent"][-1]["prefill_bytes"]
        assert seen["busy_ns"] > 300 * MS

    with_engine(run, "--cache-blocks", "64")


def test_a_client_that_does_not_read_stops_it() -> None:
    """Nothing piles up in the engine; all comes when it is read."""

    def run(one: EngineProcess) -> None:
        with RawClient.connect(one.address) as client:
            client.send(chat("tokens=3000,token-bytes=10000"))
            seen = one.wait(lambda seen: seen["paused"] > 0)
            assert seen["tokens"] < 2500
            client.head()
            assert sum(map(len, client.pieces())) > 30_000_000

    with_engine(run)


def test_other_paths() -> None:
    """Echo, events, metrics, models, and a behaviour that is changed while it runs."""

    def run(one: EngineProcess) -> None:
        body = bytes(range(256)) * 1000
        with RawClient.connect(one.address) as client:
            assert client.ask(request("PUT", "/echo", body)).body == body
            parts = [body[:1], body[1:70_000], body[70_000:]]
            assert client.ask(request("POST", "/echo", chunks=parts)).body == body
            expects = request("POST", "/echo", b"x", headers=[("Expect", "100-continue")])
            client.send(expects[:-1])
            assert client.head(interim=True).status == 100
            assert client.ask(b"x").body == b"x"
            seen = one.seen()["recent"]
            assert seen[0]["body_xxh3"] == seen[1]["body_xxh3"] != seen[2]["body_xxh3"]
            client.send(request("GET", "/sse")).head()
            events = list(client.events())
            assert [each.name for each in events] == [""] * 8 + ["end"]
            page = client.ask(request("GET", "/page"))
            assert (page.head.get("content-type"), b'EventSource("/sse")' in page.body) == (
                "text/html; charset=utf-8",
                True,
            )
            metrics = client.ask(request("GET", "/metrics")).body.decode()
            assert 'vllm:num_requests_running{model_name="some"} 0' in metrics
            models = json.loads(client.ask(request("GET", "/v1/models")).body)
            assert models["data"][0]["id"] == "some"
            one.behave("tokens=1")
            assert len(stream(one, "")) == 3
            wrong = client.ask(request("POST", "/mock", b"tokns=1"))
            assert (wrong.status, b"'tokns' is no behaviour" in wrong.body) == (400, True)
            assert client.ask(b"nonsense\r\n\r\n").status == 400
            assert client.end() is False

    with_engine(run, "--model", "some")


def test_a_websocket_echoes() -> None:
    """After the upgrade, with what was sent along with it; a plain GET is told so."""

    def run(one: EngineProcess) -> None:
        lines = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ]
        with RawClient.connect(one.address) as client:
            assert client.ask(request("GET", "/ws")).status == 426
            hello = websocket.frame(1, b"hello", mask=b"abcd")
            client.send(request("GET", "/ws", headers=lines) + hello)
            head = client.head()
            assert head.status == 101
            assert head.get("sec-websocket-accept") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
            assert client.take(7) == websocket.frame(1, b"hello")
            client.send(websocket.frame(8, b"\x03\xe8", mask=b"abcd"))
            assert client.take(4) == websocket.frame(8, b"\x03\xe8")
            assert client.end() is False
        one.wait(lambda seen: seen["completed"] == 1)

    with_engine(run)


def test_a_body_is_left_in_the_socket() -> None:
    """For the time that the request says: whoever sends it is held up."""

    def run(one: EngineProcess) -> None:
        body = b"x" * (16 << 20)
        with RawClient.connect(one.address) as client:
            began_ns = time.monotonic_ns()
            lines = [("x-mock", "read-after-ms=300")]
            assert client.ask(request("POST", "/echo", body, headers=lines)).body == body
            assert time.monotonic_ns() - began_ns > 250 * MS

    with_engine(run)
