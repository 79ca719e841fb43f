# SPDX-License-Identifier: Apache-2.0
"""Edits of a document, and the words that ask for them."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.config import parse_config, read_document
from xdp_router.core.config_edit import (
    Edit,
    EditError,
    Verb,
    apply_edit,
    parse_keys,
    parse_value,
)

TEXT = """
[[service]]
name = "web"
address = "198.18.100.1:80"
[[service.backend]]
name = "b1"
address = "198.18.1.2:8080"
[[service.backend]]
address = "198.18.1.3:8080"
[[service]]
address = "198.18.100.1:81"
[[service.backend]]
name = "a1"
address = "198.18.1.2:8081"
"""
CONFIG = parse_config(TEXT, "")
DOCUMENT = tomllib.loads(TEXT)


def edited(edit: Edit) -> dict[str, Any]:
    """DOCUMENT after an edit; the same comes of the text."""
    document = copy.deepcopy(DOCUMENT)
    apply_edit(document, CONFIG, edit)
    written = tomlkit.parse(TEXT)
    apply_edit(written, CONFIG, edit)
    assert tomllib.loads(tomlkit.dumps(written)) == document
    return document


def test_each_verb_of_a_backend() -> None:
    """By its name, which may be its address."""
    weighed = edited(Edit("backend", Verb.SET, "198.18.1.3:8080", {"weight": 3, "name": "b2"}))
    assert weighed["service"][0]["backend"][1] == {
        "name": "b2",
        "address": "198.18.1.3:8080",
        "weight": 3,
    }
    assert len(edited(Edit("backend", Verb.REMOVE, "b1"))["service"][0]["backend"]) == 1
    more = edited(Edit("backend", Verb.ADD, "web", {"address": "198.18.1.4:1", "vlan": None}))
    assert more["service"][0]["backend"][2] == {"address": "198.18.1.4:1"}


def test_each_verb_of_a_service() -> None:
    """One without a name has that of its address and protocol."""
    named = edited(Edit("service", Verb.SET, "198.18.100.1:81/tcp", {"name": "api", "quic": False}))
    assert named["service"][1]["name"] == "api"
    bare = edited(Edit("service", Verb.SET, "web", {"name": None, "deadline": None}))
    assert "name" not in bare["service"][0]
    assert len(edited(Edit("service", Verb.REMOVE, "web"))["service"]) == 1
    keys = {"address": "198.18.100.1:82"}
    added = edited(Edit("service", Verb.ADD, "", keys, ({"address": "198.18.1.9:9"},)))
    assert added["service"][2] == {**keys, "backend": [{"address": "198.18.1.9:9"}]}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (Edit("backend", Verb.SET, "b9"), "no backend is called 'b9'; there are b1, 198.18.1.3"),
        (Edit("service", Verb.SET, "b1"), "no service is called 'b1'; there are web, 198.18.100"),
        (Edit("backend", Verb.ADD, "x"), "no service is called 'x'"),
        (Edit("backend", Verb.REMOVE, "a1"), "a1 is the only backend of service 198.18.100.1:81/"),
    ],
)
def test_what_there_is_nothing_to_edit_for(edit: Edit, told: str) -> None:
    """It is told, and the document is as it was."""
    document = copy.deepcopy(DOCUMENT)
    with pytest.raises(EditError) as caught:
        apply_edit(document, CONFIG, edit)
    assert told in str(caught.value)
    assert document == DOCUMENT


def test_the_last_service_stays() -> None:
    """A router without one is told to be stopped by stopping it."""
    document = {"service": [copy.deepcopy(DOCUMENT["service"][0])]}
    config = parse_config(TEXT[: TEXT.rindex("[[service]]")], "")
    with pytest.raises(EditError, match="web is the only service: a router needs one"):
        apply_edit(document, config, Edit("service", Verb.REMOVE, "web"))


def test_words_are_values_of_the_file() -> None:
    """TOML where they are that, else text; and nothing more than one value."""
    assert parse_keys(["weight=3", "deadline=50ms", "stateless=true", "fallback="]) == {
        "weight": 3,
        "deadline": "50ms",
        "stateless": True,
        "fallback": None,
    }
    assert parse_keys(['allow=["198.18.0.0/16"]', 'name="5"', "probe=tcp:99"]) == {
        "allow": ["198.18.0.0/16"],
        "name": "5",
        "probe": "tcp:99",
    }
    assert parse_value("1\nother = 2") == "1\nother = 2"
    assert parse_value("2026-01-01") == "2026-01-01"
    assert parse_value("{a = 1}") == "{a = 1}"
    for words, told in (
        (["weight"], "'weight': expected KEY=VALUE"),
        (["=3"], "expected KEY=VALUE"),
        (["a=1", "a=2"], "'a' is given twice"),
    ):
        with pytest.raises(ValueError, match=told):
            parse_keys(words)


@given(st.text())
def test_any_word_is_some_value(text: str) -> None:
    """Nothing that is typed makes it fail."""
    value = parse_value(text)
    assert value is None or isinstance(value, (bool, int, float, str, list))


def test_a_dot_leads_into_a_table() -> None:
    """Which is made where there is none, and goes with its last key."""
    edit = Edit("service", Verb.SET, "web", parse_keys(["score.rtt=0.5", "scrape.preset=vllm"]))
    web = edited(edit)["service"][0]
    assert (web["score"], web["scrape"]) == ({"rtt": 0.5}, {"preset": "vllm"})
    document = {"service": [web, DOCUMENT["service"][1]]}
    more = parse_keys(["score.queue=2", "score.rtt=", "scrape.preset=", "scrape.port="])
    apply_edit(document, CONFIG, Edit("service", Verb.SET, "web", more))
    assert web["score"] == {"queue": 2}
    assert "scrape" not in web
    keys = parse_keys(["address=198.18.100.1:82", "score.rtt=1", "score.age="])
    added = edited(Edit("service", Verb.ADD, "", keys, ({"address": "198.18.1.9:80"},)))
    assert added["service"][2]["score"] == {"rtt": 1}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            Edit("service", Verb.SET, "web", {"mode": "race", "scores.rtt": 1}),
            "scores.rtt: 'scores' is no table of a service; there are: score.KEY, scrape.KEY",
        ),
        (Edit("service", Verb.SET, "web", {"backend.name": "x"}), "'backend' is no table"),
        (Edit("service", Verb.SET, "web", {"score.": 1}), "expected one key of the table score"),
        (Edit("service", Verb.SET, "web", {"score.a.b": 1}), "expected one key of the table sc"),
        (Edit("service", Verb.ADD, "", {"score": 1, "score.rtt": 1}), "score is no table here"),
        (Edit("service", Verb.SET, "web", {"score.rtt": 1, "score": 1}), "score is no table here"),
        (Edit("backend", Verb.SET, "b1", {"score.rtt": 1}), "no table of a backend; there are: no"),
        (Edit("backend", Verb.ADD, "web", {"score.rtt": 1}), "no table of a backend"),
    ],
)
def test_a_dot_that_leads_nowhere_is_told(edit: Edit, told: str) -> None:
    """And nothing of the edit is done."""
    document = copy.deepcopy(DOCUMENT)
    with pytest.raises(EditError) as caught:
        apply_edit(document, CONFIG, edit)
    assert told in str(caught.value)
    assert document == DOCUMENT


def test_services_of_the_gateway() -> None:
    """Added without a backend, changed, removed; a backend is refused by name."""
    text = (
        '[[listener]]\nname = "gw"\ntype = "http"\naddress = "127.0.0.1:8443"\n'
        '[[listener.backend]]\naddress = "198.18.1.2:80"\n' + TEXT
    )
    document = tomllib.loads(text)
    keys = {"address": "198.18.100.9:443", "name": "up", "handler": "gateway", "listener": "gw"}
    apply_edit(document, parse_config(text, ""), Edit("service", Verb.ADD, "", keys))
    config = read_document(document, "")
    assert [each.listener for each in config.services] == ["", "", "gw"]
    with pytest.raises(EditError, match="up is taken up by the gateway.*listener gw"):
        apply_edit(document, config, Edit("backend", Verb.ADD, "up", {"address": "198.18.1.9:1"}))
    apply_edit(document, config, Edit("service", Verb.REMOVE, "up"))
    assert document == tomllib.loads(text)
