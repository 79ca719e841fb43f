# SPDX-License-Identifier: Apache-2.0
"""The ``openai`` package as the gateway's client: it has its own idea of streams and of retries."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_place import FIRST_PORT, Place, gateway
from tests.support.netns import wait_for
from xdp_router.lab.engine_behaviour import Behaviour

LLM = 'type = "llm"\nmode = "inline"'
RACE = 'type = "llm"\n[listener.race]\nhedge = "0s"\n'
BASE = f"http://127.0.0.1:{FIRST_PORT}/v1"
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say something"}]
_PATIENCE_S = 20.0


@contextlib.contextmanager
def client(
    retries: int = 0, asked: Callable[[object], None] = lambda _request: None
) -> Iterator[openai.OpenAI]:
    """In the calling thread's network namespace. ``asked`` is called before each request."""
    with openai.OpenAI(
        base_url=BASE,
        api_key="none",
        max_retries=retries,
        timeout=_PATIENCE_S,
        http_client=openai.DefaultHttpxClient(event_hooks={"request": [asked]}),
    ) as made:
        yield made


def mock(text: str) -> dict[str, str]:
    """How the engine is to answer."""
    return {"x-mock": text}


def aborted(place: Place) -> int:
    """Requests whose client went away, as the engines count them."""
    return place.call(lambda: sum(each.counts.aborted for each in place.engines.values()))


@in_fresh_netns
def test_streams_and_whole_answers() -> None:
    """Chat and completions, with usage; all on one connection."""
    with gateway(RACE, {"slow": "ttft-ms=4000", "fast": "tokens=4"}) as place, client() as ours:
        whole = ours.chat.completions.create(model="mock", messages=ASKED)
        assert whole.choices[0].message.content == "tok " * 4
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4
        text = ours.completions.create(model="mock", prompt="once", max_tokens=2)
        assert text.choices[0].text == "tok " * 2
        pieces = [
            each.choices[0].text
            for each in ours.completions.create(model="mock", prompt="once", stream=True)
        ]
        assert pieces == ["tok "] * 4 + [""]
        events = list(
            ours.chat.completions.create(
                model="mock", messages=ASKED, stream=True, stream_options={"include_usage": True}
            )
        )
        assert [each.choices[0].delta.content for each in events[:4]] == ["tok "] * 4
        assert events[-1].usage is not None
        assert [each.id for each in ours.models.list()] == ["mock"]
        assert place.call(lambda: place.fronts["front"].open) == 1
        place.settled()


@in_fresh_netns
def test_request_ids() -> None:
    """The one of an answer, or of an error, is what ``explain`` is asked for."""
    with gateway(LLM, {"one": ""}) as place, client() as ours:
        answer = ours.chat.completions.create(model="mock", messages=ASKED)
        assert answer._request_id is not None
        assert place.explain(answer._request_id)["end"] == "complete"
        with pytest.raises(openai.InternalServerError) as caught:
            ours.chat.completions.create(
                model="mock", messages=ASKED, extra_headers=mock("crash-after=0")
            )
        assert caught.value.request_id is not None
        assert place.explain(caught.value.request_id)["status"] == 502


@in_fresh_netns
def test_errors_have_their_kinds() -> None:
    """Those of the gateway and those of an engine are told apart as the package wants it."""
    with gateway(f"{LLM}\nmax_body = 5000", {"one": ""}) as place, client() as ours:
        with pytest.raises(openai.BadRequestError, match="model"):
            ours.chat.completions.create(model=7, messages=ASKED)  # type: ignore[call-overload]  # refused by the gateway
        with pytest.raises(openai.APIStatusError) as long:
            ours.completions.create(model="mock", prompt="x" * 10_000)
        assert long.value.status_code == 413
        with pytest.raises(openai.NotFoundError, match="there is no"):
            ours.embeddings.create(model="mock", input="x")
        with pytest.raises(openai.RateLimitError, match="as the mock was told"):
            ours.chat.completions.create(
                model="mock", messages=ASKED, extra_headers=mock("status=429")
            )
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("fault", ["status=503,retry-after=1", "crash-after=0"])
def test_it_retries_by_itself(fault: str) -> None:
    """Refused or broken off before the first byte: it asks again, when it was told to."""
    asked: list[float] = []
    with gateway(LLM, {"one": fault}) as place:

        def note(_request: object) -> None:
            asked.append(time.monotonic())
            if len(asked) > 1:
                place.call(lambda: setattr(place.engines["one"], "behaviour", Behaviour()))

        with client(2, note) as ours:
            answer = ours.chat.completions.create(model="mock", messages=ASKED)
        assert answer.choices[0].message.content
        assert len(asked) == 2
        if "retry-after" in fault:
            assert asked[1] - asked[0] >= 0.99
        place.settled()


@in_fresh_netns
def test_a_break_off_is_an_error_of_the_stream() -> None:
    """After the first token the package does not retry: the program sees it, and asks again."""
    with gateway(LLM, {"one": "crash-after=2,gap-ms=2"}) as place, client(retries=2) as ours:
        got: list[str | None] = []
        stream = ours.chat.completions.create(model="mock", messages=ASKED, stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            got.extend(each.choices[0].delta.content for each in stream)
        assert got == ["tok "] * 2
        place.call(lambda: setattr(place.engines["one"], "behaviour", Behaviour()))
        again = list(ours.chat.completions.create(model="mock", messages=ASKED, stream=True))
        assert again[-1].choices[0].finish_reason == "stop"
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stream_that_is_closed_ends_its_legs(when: str) -> None:
    """``close`` in the middle of it, and a cancelled task before its first token."""
    if when == "after":
        with gateway(LLM, {"one": "tokens=9000,gap-ms=5"}) as place, client() as ours:
            stream = ours.chat.completions.create(model="mock", messages=ASKED, stream=True)
            next(iter(stream))
            stream.close()
            wait_for(lambda: aborted(place) == 1, _PATIENCE_S, "the engine sees it")
            place.settled()
        return

    async def cancelled(place: Place) -> None:
        async with openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0) as ours:
            task = asyncio.ensure_future(
                ours.chat.completions.create(model="mock", messages=ASKED, stream=True)
            )
            there = functools.partial(wait_for, lambda: sum(place.in_flight()) == 2)
            await asyncio.to_thread(there, _PATIENCE_S, "both legs are under way")
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    with gateway(RACE, {"a": "ttft-ms=9000", "b": "ttft-ms=9000"}) as place:
        asyncio.run(asyncio.wait_for(cancelled(place), _PATIENCE_S))
        wait_for(lambda: aborted(place) == 2, _PATIENCE_S, "both engines see it")
        place.settled()


@in_fresh_netns
def test_a_connection_that_was_closed_in_between_is_no_error() -> None:
    """The gateway closes what is idle: the next request is made on another connection."""
    with gateway(f'{LLM}\nidle_timeout = "50ms"', {"one": ""}) as place, client() as ours:
        ours.chat.completions.create(model="mock", messages=ASKED)
        time.sleep(0.06)
        front = place.fronts["front"]
        place.call(front.sweep)
        wait_for(lambda: place.call(lambda: front.open) == 0, _PATIENCE_S, "it is closed")
        ours.chat.completions.create(model="mock", messages=ASKED)
        place.settled()
