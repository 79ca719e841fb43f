# SPDX-License-Identifier: Apache-2.0
"""One request and its answer, through a gateway between real sockets and mock engines."""

from __future__ import annotations

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, Event, chat, request
from tests.support.gateway_place import gateway
from tests.support.netns import wait_for

LLM = 'type = "llm"'
HEDGE = f'{LLM}\n[listener.race]\nhedge = "{{}}"'


@in_fresh_netns
def test_the_first_token_wins_and_the_loser_is_closed() -> None:
    """All at once: the slower one is cut when the faster one's first token is there."""
    with gateway(HEDGE.format("0s"), {"slow": "ttft-ms=5000", "fast": "ttft-ms=20"}) as place:
        with place.connect() as client:
            head = client.send(chat()).head()
            events = list(client.events())
        assert head.status == 200
        assert [each.data for each in events][-1] == "[DONE]"
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
    with gateway(HEDGE.format("0s"), {"early": early, "plain": "ttft-ms=100"}) as place:
        with place.connect() as client:
            client.send(chat()).head()
            list(client.events())
        assert place.last()["backend"] == "plain"


@in_fresh_netns
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_who_cannot_is_passed_over(status: int) -> None:
    """Its refusal is not the client's business while another one can."""
    refusal = f"status={status}"
    with gateway(f'{LLM}\nmode = "snapshot"', {"no": refusal, "yes": ""}) as place:
        with place.connect() as client:
            for _ in range(4):
                assert client.ask(chat()).status == 200
        place.settled()


@in_fresh_netns
def test_a_crash_in_the_middle_is_told_and_cut() -> None:
    """After the first byte nobody else is asked: an error event, no [DONE], and RST."""
    with gateway(f'{LLM}\nmode = "inline"', {"only": "tokens=9,crash-after=3"}) as place:
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
