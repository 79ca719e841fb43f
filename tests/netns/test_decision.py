# SPDX-License-Identifier: Apache-2.0
"""Who gets a request, and what it looks like there: through a gateway, by what the engine saw."""

from __future__ import annotations

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import Answer, chat, request
from tests.support.gateway_place import ENGINE_PORT, Place, gateway
from xdp_router.daemon.gateway.record import Record
from xdp_router.gateway.hedge_delay import LEAST_SAMPLES
from xdp_router.gateway.prefix_cache import PrefixCache

ROUTED = """type = "http"
[[listener.route]]
name = "canary"
headers = { X-Canary = "yes" }
backends = ["b"]
[[listener.route]]
name = "main"
names = ["main.example"]
path = "/e"
backends = ["a"]
"""
TENANTS = """type = "llm"
mode = "inline"
[listener.priorities]
high = 5
[[listener.tenant]]
name = "acme"
rate = 1
burst = 2
priority = "high"
"""


def ask(place: Place, what: bytes) -> Answer:
    """By a client of its own."""
    with place.connect() as client:
        return client.ask(what)


def seen(place: Place, engine: str) -> list[tuple[str, str]]:
    """Headers of the newest request that it got."""
    return place.call(lambda: place.engines[engine].recent[-1].headers)


@in_fresh_netns
def test_the_first_route_that_fits() -> None:
    """A header before a host; who fits none gets a 404, and nobody is asked."""
    with gateway(ROUTED, {"a": "", "b": ""}) as place:
        main = request("POST", "/echo", b"x", host="Main.Example:8080")
        assert ask(place, main).status == 200
        assert place.last()["route"] == "main"
        canary = request("POST", "/echo", b"x", host="other", headers=[("x-canary", "yes")])
        assert ask(place, canary).status == 200
        assert (place.last()["route"], place.last()["backend"]) == ("canary", "b")
        assert ask(place, request("GET", "/echo", host="other")).status == 404
        counts = [place.engines[each].counts.requests for each in "ab"]
        assert counts == [1, 1]


@in_fresh_netns
def test_only_who_has_the_model() -> None:
    """The others are never asked; a model that nobody has is told in the clients' form."""
    big = f'[[listener.backend]]\nname = "big"\naddress = "127.0.0.1:{ENGINE_PORT + 1}"\n'
    other = f'[[listener.backend]]\nname = "x"\naddress = "127.0.0.1:{ENGINE_PORT + 9}"\n'
    more = f'{big}models = ["big"]\n{other}models = ["small"]\n'
    with gateway('type = "llm"\n[listener.race]\nhedge = "0s"', {}, more=more) as place:
        place.engines.update()
        answer = ask(place, chat(model="none"))
        assert answer.status == 404
        assert b'"error"' in answer.body
        ask(place, chat(model="big"))
        assert [each["backend"] for each in place.last()["candidates"]] == ["big"]


@in_fresh_netns
def test_tenants_have_limits() -> None:
    """429 with Retry-After; another tenant is not concerned."""
    with gateway(TENANTS, {"a": ""}) as place:
        acme = chat(stream=False, headers=[("X-Tenant-ID", "acme")])
        statuses = [ask(place, acme).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert ask(place, acme).head.get("retry-after") == "1"
        assert ask(place, chat(stream=False)).status == 200
        assert ask(place, chat(stream=False, headers=[("X-Tenant-ID", "b")])).status == 200
        assert place.last()["tenant"] == "b"
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize(
    "bad",
    [b"not json", b"[]", b'{"model": 3}', b'{"model": "m", "messages": 1}', b'{"model": "m"}'],
)
def test_a_prompt_that_is_none_is_refused(bad: bytes) -> None:
    """By 400 and the name of what is wrong, in the clients' form; no engine sees it."""
    with gateway('type = "llm"', {"a": ""}) as place:
        answer = ask(place, request("POST", "/v1/chat/completions", bad))
        assert answer.status == 400
        assert b'"error"' in answer.body
        assert place.call(lambda: place.engines["a"].counts.requests) == 0


@in_fresh_netns
def test_what_a_cache_has_need_not_be_computed() -> None:
    """The hedge waits for the rest of the prompt; a prompt that is known has none."""
    with gateway('type = "llm"', {"a": ""}) as place:
        found = []
        for _ in range(2):
            ask(place, chat(prompt="word " * 400))
            place.settled()
            found.append(place.last()["uncached_bytes"])
        assert found[0] > 1_900
        assert found[1] < 300


def test_the_cache_is_asked_when_a_backend_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the first place, and for the next one; what was decided by is what its legs are told to
    have."""
    asked: list[int] = []
    hit = PrefixCache.hit

    def counting(cache: PrefixCache, backend: int, blocks: tuple[int, ...]) -> float:
        asked.append(backend)
        return hit(cache, backend, blocks)

    monkeypatch.setattr(PrefixCache, "hit", counting)

    def there() -> None:
        race = 'type = "llm"\n[listener.race]\nhedge = "0s"\n'
        with gateway(race, {"a": "ttft-ms=60", "b": "ttft-ms=60"}) as place:
            for number in range(2):
                ask(place, chat(prompt="word " * 400))
                place.settled()
                assert sorted(asked[:2]) == [0, 1], number
                assert len(asked) == 3
                asked.clear()
            rows = place.call(lambda: place.fronts["front"].figures.plain())
            predicted = rows["predicted_bytes_total"]
            assert sum(value for _, value in predicted) >= 7 * 256

    in_fresh_netns(there)()


@in_fresh_netns
def test_whole_answers_do_not_put_off_hedges_of_streams() -> None:
    """They take as long as all of their tokens: their times are a series of their own."""
    with gateway('type = "llm"', {"a": ""}) as place:
        with place.connect() as client:
            for _ in range(LEAST_SAMPLES):
                client.ask(chat())
                client.ask(chat("ttft-ms=40", stream=False))

        def delay_ms(streams: bool) -> float:
            record = Record("", "", "", 0, 0.0)
            record.model, record.streams = "mock", streams
            return place.call(lambda: place.fronts["front"].hedge_ns(record)) / 1e6

        assert 39 < delay_ms(streams=False) < 1_000
        assert delay_ms(streams=True) < delay_ms(streams=False)


@in_fresh_netns
def test_other_paths_of_an_engine_pass() -> None:
    """Lists of models and the like, without a race."""
    with gateway('type = "llm"', {"a": "", "b": ""}) as place:
        assert ask(place, request("GET", "/v1/models")).status == 200
        assert ask(place, request("POST", "/echo", b"any")).body == b"any"
        assert place.last()["legs"] == 1


@in_fresh_netns
def test_what_the_backend_sees() -> None:
    """The client's headers as they came, who it is, and a name for the request."""
    with gateway('type = "http"', {"a": ""}) as place:
        headers = [
            ("X-Odd", "  kept as is "),
            ("Connection", "keep-alive, X-Drop"),
            ("X-Drop", "1"),
            ("X-Forwarded-For", "198.18.7.7"),
            ("TE", "trailers"),
        ]
        answer = ask(place, request("POST", "/echo", b"x", host="h:1", headers=headers))
        found = {name.lower(): value for name, value in seen(place, "a")}
        assert found["x-odd"].strip() == "kept as is"
        assert found["x-forwarded-for"] == "198.18.7.7, 127.0.0.1"
        assert (found["x-forwarded-proto"], found["x-forwarded-host"]) == ("http", "h:1")
        assert found["host"] == "h:1"
        assert not {"x-drop", "te", "keep-alive"} & set(found)
        assert found["x-request-id"] == answer.head.get("x-request-id")
        assert place.explain(found["x-request-id"])["path"] == "/echo"


@in_fresh_netns
def test_a_clients_own_name_for_a_request_is_kept() -> None:
    """It is found by it. A strange one is nobody's: backend, answer and log have one of ours."""
    with gateway('type = "http"', {"a": ""}) as place:
        for own, extra in (
            (["mine-1"], []),
            (["mine-2"], [("Connection", "X-Request-ID")]),
            (["x" * 200], []),
            ([""], []),
            (["a b"], []),
            (["q\xe9"], []),
            (["one", "two"], []),
            (["same", "same"], []),
        ):
            headers = [*extra, *(("X-Request-ID", each) for each in own)]
            answer = ask(place, request("POST", "/echo", b"x", headers=headers))
            name = place.last()["id"]
            assert (name in own) == (own[0][:5] == "mine-")
            for told in (answer.head.headers, seen(place, "a")):
                assert [value for key, value in told if key.lower() == "x-request-id"] == [name]
            assert place.explain(name)["status"] == 200


@in_fresh_netns
def test_a_share_goes_in_turn() -> None:
    """The control arm: by it the gain is measured; its requests are not raced."""
    keys = 'type = "llm"\ncontrol_arm = 50\n[listener.race]\nhedge = "0s"\n'
    with gateway(keys, {"a": "", "b": ""}) as place:
        for _ in range(24):
            ask(place, chat(stream=False))
        rows = place.call(lambda: place.fronts["front"].decisions(24))
        control = [each for each in rows if each["mode"] == "control"]
        assert 2 <= len(control) <= 22
        assert {each["legs"] for each in control} == {1}
        assert {each["legs"] for each in rows if each["mode"] == "race"} == {2}


@in_fresh_netns
def test_a_name_that_no_model_has_is_refused() -> None:
    """It would be kept, and shown."""
    with gateway('type = "http"', {"a": ""}) as place:
        for name, status in (("m" * 255, 200), ("m" * 256, 400)):
            asked = request("GET", "/health", headers=[("X-Model-Name", name)])
            assert ask(place, asked).status == status


@in_fresh_netns
def test_a_tenant_that_can_have_no_rival_spends_none() -> None:
    """What a backend may be asked beside others is everybody's."""
    keys = TENANTS.replace("inline", "race").replace("burst = 2", "burst = 1")
    race = '[listener.race]\nhedge = "0s"\ncandidates = 4\nextra_legs = 1\n'
    with gateway(keys + race, dict.fromkeys("abcd", "ttft-ms=30")) as place:
        acme = chat(stream=False, headers=[("X-Tenant-ID", "acme")])
        assert ask(place, acme).status == 200
        assert place.last()["legs"] == 2
        front, now_ns = place.fronts["front"], place.world.clock()
        assert sorted(each.available(now_ns) for each in front._extra) == [0, 1, 1, 1]
