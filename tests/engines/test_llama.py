# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as the gateway's backend: a real engine has its own heads, chunks, events and pace."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, Event, RawClient, chat, request
from tests.support.gateway_place import FIRST_PORT, serving
from tests.support.llama import MODEL, Llama, llamas
from tests.support.netns import wait_for

_PATIENCE_S = 60.0
_GONE = "Disconnected from client"
INLINE = 'mode = "inline"\n'
CACHED = """
[listener.race]
hedge = "30s"
[listener.score]
rtt = 0.0
ttft = 0.0
cache = 0.8
queue = 0.2
"""
RACE = '[listener.race]\nhedge = "0s"\n'


def listener(engines: Sequence[Llama], keys: str) -> str:
    """A configuration of one listener over these engines."""
    text = f'[[listener]]\nname = "front"\ntype = "llm"\naddress = "127.0.0.1:{FIRST_PORT}"\n{keys}'
    for each in engines:
        at = f"{each.address[0]}:{each.address[1]}"
        text += f'[[listener.backend]]\nname = "{each.name}"\naddress = "{at}"\n'
    return text


def ask(tokens: int, *, stream: bool = True, prompt: str = "ba da fa") -> bytes:
    """A prompt whose answer has so many tokens, the same each time."""
    return chat(
        stream=stream, prompt=prompt, model=MODEL, max_tokens=tokens, temperature=0.0, seed=1
    )


def answer(client: RawClient, what: bytes) -> list[Event]:
    """The events of a stream, to its end."""
    client.patience_s = _PATIENCE_S
    client.sock.settimeout(_PATIENCE_S)
    head = client.send(what).head()
    assert head.status == 200
    return list(client.events())


def text_of(events: Sequence[Event]) -> str:
    """What a stream said."""
    found = [json.loads(each.data) for each in events if each.data[:1] == "{"]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in found)


def has_rested(engine: Llama) -> None:
    """Nothing is generated there: a short prompt is answered at once."""
    with RawClient.connect(engine.address) as client:
        client.sock.settimeout(_PATIENCE_S)
        assert client.ask(ask(1, stream=False)).status == 200


@in_fresh_netns
def test_answers_and_prefixes(tmp_path: Path) -> None:
    """Through the gateway as without it; and what begins alike goes where that is cached."""
    with llamas(tmp_path, ("a", "b")) as engines, serving(listener(engines, CACHED), {}) as place:
        with RawClient.connect(engines[0].address) as direct:
            whole = json.loads(direct.ask(ask(20, stream=False)).body)
        with place.connect() as client:
            said = json.loads(client.ask(ask(20, stream=False)).body)
            assert said["choices"] == whole["choices"]
            assert said["usage"] == whole["usage"]
            events = answer(client, ask(20))
            assert events[-1].data == "[DONE]"
            assert text_of(events) == whole["choices"][0]["message"]["content"]
            told = place.last()
            (leg,) = [each for each in told["candidates"] if each["outcome"] == "won"]
            assert leg["ttft_ms"] > 0
            assert told["tokens"] >= 20

            before = [each.said("prefix-match hit") for each in engines]
            common = "ka la ma na pa ra sa ta " * 100
            used = []
            for word in ("ba", "da", "fa", "ga"):
                answer(client, ask(2, prompt=common + word))
                used.append(place.last()["backend"])
            assert len(set(used)) == 1
            there = [each.name for each in engines].index(used[0])
            assert engines[there].said("prefix-match hit") >= before[there] + 3
        place.settled()


@in_fresh_netns
def test_paths_that_are_no_prompts(tmp_path: Path) -> None:
    """They pass: lists of models, embeddings (refused by this engine), and what nobody knows."""
    with llamas(tmp_path, ("a",)) as engines, serving(listener(engines, INLINE), {}) as place:
        with RawClient.connect(engines[0].address) as direct, place.connect() as client:
            body = json.dumps({"model": MODEL, "input": "ba"}).encode()
            kind = [("Content-Type", "application/json")]
            for each in (
                request("GET", "/v1/models"),
                request("POST", "/v1/embeddings", body, headers=kind),
                request("POST", "/extras/tokenize", body, headers=kind),
                request("GET", "/nowhere"),
                request("OPTIONS", "/v1/models"),
            ):
                ours, theirs = client.ask(each), direct.ask(each)
                assert (ours.status, ours.body) == (theirs.status, theirs.body)
                assert ours.head.get("connection") is None
        place.settled()


@in_fresh_netns
def test_a_race(tmp_path: Path) -> None:
    """The one that is busy loses, and its leg is closed; the client has the other's answer."""
    with llamas(tmp_path, ("a", "b")) as engines, serving(listener(engines, RACE), {}) as place:
        busy = engines[0]
        with RawClient.connect(busy.address) as other, place.connect() as client:
            other.send(ask(4000)).head()
            next(other.events())
            assert answer(client, ask(10))[-1].data == "[DONE]"
            told = place.last()
            assert (told["backend"], told["legs"]) == ("b", 2)
            outcomes = {each["backend"]: each["outcome"] for each in told["candidates"]}
            assert outcomes == {"a": "another one was first", "b": "won"}
        wait_for(lambda: busy.said(_GONE) >= 1, _PATIENCE_S, "the busy one has ended its stream")
        has_rested(busy)
        with place.connect() as client:
            for _ in range(4):
                assert text_of(answer(client, ask(10)))
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_client_that_goes_stops_the_engine(tokens: int, tmp_path: Path) -> None:
    """In the middle of an answer, and while its long prompt is read: soon there is room again."""
    with llamas(tmp_path, ("a",)) as engines, serving(listener(engines, INLINE), {}) as place:
        engine = engines[0]
        client = place.connect()
        begun = time.monotonic()
        if tokens:
            client.send(ask(7000)).head()
            for _, _ in zip(range(tokens), client.events(), strict=False):
                pass
        else:
            client.send(ask(1000, prompt="ka la ma na pa ra sa ta " * 750))
            wait_for(lambda: sum(place.in_flight()) == 1, _PATIENCE_S, "it is there")
            time.sleep(0.1)
        client.close()
        place.settled()
        wait_for(lambda: engine.said(_GONE) == 1, _PATIENCE_S, "the engine sees it")
        has_rested(engine)
        print(f"free again after {time.monotonic() - begun:.2f} s", place.last())


@in_fresh_netns
def test_an_engine_that_is_killed(tmp_path: Path) -> None:
    """Its stream is told as broken off; whoever asks again is answered by the other one."""
    with llamas(tmp_path, ("a", "b")) as engines, serving(listener(engines, INLINE), {}) as place:
        with place.connect() as client:
            client.send(ask(7000)).head()
            events = client.events()
            seen = [next(events) for _ in range(5)]
            (stream,) = place.call(place.fronts["front"].streams)
            next(each for each in engines if each.name == stream["backend"]).process.kill()
            with pytest.raises(CutOff):
                seen.extend(events)
            assert seen[-1].name == "error", seen[-1]
        for _ in range(3):
            with place.connect() as client:
                assert answer(client, ask(5))[-1].data == "[DONE]"
        assert place.last()["backend"] != stream["backend"]
        place.settled()
