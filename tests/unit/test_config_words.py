# SPDX-License-Identifier: Apache-2.0
"""What is offered for a configuration is what a configuration takes."""

from __future__ import annotations

import re

import pytest

from xdp_router.core import config_words
from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError

SERVICE = '[[service]]\naddress = "198.18.100.1:80"\n{service}\n'
BACKEND = '[[service.backend]]\naddress = "198.18.1.2:8080"\n{backend}\n'


def _told(service: str = "", backend: str = "") -> str:
    text = SERVICE.format(service=service) + BACKEND.format(backend=backend)
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "router.toml")
    return str(caught.value)


def _known(told: str) -> set[str]:
    found = re.search("expected one of: (.*)", told)
    assert found
    return set(found[1].split(", "))


def test_keys_are_those_that_a_file_may_have() -> None:
    """Of a service with its tables, and of a backend: all of them, and no others."""
    keys = _known(_told("colour = 1")) - {"backend", "score", "scrape"}
    for table in ("score", "scrape"):
        known = _known(_told(f'{table} = {{ colour = 1, preset = "vllm" }}'))
        keys |= {f"{table}.{key}" for key in known}
    assert keys == set(config_words.SERVICE)
    assert _known(_told(backend="colour = 1")) == set(config_words.BACKEND)


@pytest.mark.parametrize(
    ("what", "key"), [(what, key) for what, keys in config_words.KEYS.items() for key in keys]
)
def test_words_are_those_that_a_key_takes(what: str, key: str) -> None:
    """A wrong one is refused with the very words that are offered."""
    words = config_words.KEYS[what][key]
    if key in ("probe", "vlan") or not words:
        return  # words beside others: below
    if words == ("true", "false"):
        assert "expected true or false" in _told(f"{key} = 'blue'")
        return
    table, dot, rest = key.partition(".")
    told = _told(f"{table} = {{ {rest} = 'blue' }}" if dot else f"{key} = 'blue'")
    (found,) = re.findall("found 'blue', expected (.*)", told)
    assert set(found.split(" or ")) == {repr(word) for word in words}


def test_every_probe_is_one() -> None:
    """With a port, where the word ends in a colon."""
    for word in config_words.SERVICE["probe"]:
        probe = f"{word}80" if word.endswith(":") else word
        text = SERVICE.format(service=f'probe = "{probe}"') + BACKEND.format(
            backend="vlan = 'none'"
        )
        assert parse_config(text, "router.toml").services[0].backends[0].probe.name == probe


def test_what_was_begun_goes_on() -> None:
    """As a key that is not there yet, or as its value."""
    assert config_words.begun("service", "dead") == ["deadline="]
    assert config_words.begun("service", "health_h") == ["health_hold=", "health_hold_max="]
    assert config_words.begun("service", "mode=") == ["mode=race", "mode=snapshot", "mode=inline"]
    assert config_words.begun("service", "mode=s") == ["mode=snapshot"]
    assert config_words.begun("service", "deadline=") == []
    assert config_words.begun("service", "weight") == []
    assert config_words.begun("backend", "w", ("name=b1",)) == ["weight="]
    assert "name=" not in config_words.begun("backend", "", ("name=b1",))
    assert config_words.begun("backend", "colour=") == []
