# SPDX-License-Identifier: Apache-2.0
"""The table of scrapes: what it means, what it refuses, and how it is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.config import parse_config
from xdp_router.core.config_scrape import (
    KEYS,
    PRESETS,
    format_scrape,
    format_sum,
    parse_readings,
    scrape_keys,
    scraped_endpoint,
)
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Endpoint, Reading, Scrape, Series, Service

MS, S = 10**6, 10**9
ADDR = 0xC6120102


def parsed(scrape: str, service: str = "", backend: str = "", score: str = "") -> Service:
    """The one service of a file that has these lines in it."""
    text = f'[[service]]\naddress = "198.18.100.1:80"\n{service}\n'
    text += f"[service.score]\n{score}\n" if score else ""
    text += f'[service.scrape]\n{scrape}\n[[service.backend]]\naddress = "198.18.1.2:8080"\n'
    return parse_config(f"{text}{backend}\n", "x").services[0]


def problem(scrape: str, **more: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(scrape, **more)
    (found,) = caught.value.problems
    return f"{found.key}: {found.detail}"


def scrape_of(text: str) -> Scrape:
    found = parsed(text).scrape
    assert found is not None
    return found


def test_without_the_table_nobody_is_asked() -> None:
    """Nor with an empty one: it would ask for nothing."""
    text = '[[service]]\naddress = "198.18.100.1:80"\n[[service.backend]]\naddress = "198.18.1.2:1"'
    assert parse_config(text, "x").services[0].scrape is None
    assert problem("") == (
        "service.scrape.preset: found nothing that is asked for, expected preset ('vllm' or "
        "'sglang'), or metrics by name: queue, ttft, cache_hit, cache_usage"
    )


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_a_preset_has_all_inputs(preset: str) -> None:
    """Once a second, at the backend's own port; of names of several versions the newest first."""
    found = scrape_of(f'preset = "{preset}"')
    assert (found.port, found.path) == (0, "/metrics")
    assert (found.interval_ns, found.timeout_ns) == (S, 500 * MS)
    assert dict(found.inputs).keys() == set(KEYS.values())
    assert all(each.name.startswith(f"{preset}:") for _, readings in found.inputs
               for reading in readings for each in (*reading.of, *reading.over))  # fmt: skip


def test_a_name_goes_before_the_presets() -> None:
    """For that input alone."""
    found = dict(scrape_of('preset = "vllm"\nqueue = "depth{pool=\\"a\\"}"').inputs)
    assert found["queue"] == (Reading((Series("depth", (("pool", "a"),)),)),)
    assert found["cache"] == PRESETS["vllm"]["cache_hit"]


@pytest.mark.parametrize(
    ("key", "text", "readings"),
    [
        ("queue", "a", (Reading((Series("a"),)),)),
        ("queue", " a+b:c ", (Reading((Series("a"), Series("b:c"))),)),
        (
            "queue",
            'a { x = "1" , y="}\\"\\\\ \\n" } + b{}',
            (Reading((Series("a", (("x", "1"), ("y", '}"\\ \n'))), Series("b"))),),
        ),
        ("cache_hit", "h / q + r", (Reading((Series("h"),), (Series("q"), Series("r"))),)),
        ("cache_usage", "u", (Reading((Series("u"),)),)),
        (
            "ttft",
            't{m="1"}',
            (
                Reading((Series("t_sum", (("m", "1"),)),), (Series("t_count", (("m", "1"),)),)),
                Reading((Series("t", (("m", "1"),)),)),
            ),
        ),
        ("ttft", "s / c", (Reading((Series("s"),), (Series("c"),)),)),
    ],
)
def test_how_metrics_are_written(key: str, text: str, readings: tuple[Reading, ...]) -> None:
    """As in a query; a time that is named alone may be a histogram, or a gauge."""
    assert parse_readings(key, text) == readings


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('queue = ""', "queue: found no metric's name at ''"),
        ('queue = "a b"', "found 'b' behind 'a'"),
        ('queue = "a +"', "no metric's name at ''"),
        ('queue = "a / b"', "a '/', which queue has no use for"),
        ('cache_usage = "a + b"', "a '+', which cache_usage has no use for"),
        ('cache_usage = "a + b"', "expected a metric as it is called, as 'share{engine=\"0\"}'"),
        ('cache_hit = "a + b"', "a '+', which cache_hit has on a side of a '/' alone"),
        ('ttft = "a + b"', "a '+', which ttft has on a side of a '/' alone"),
        ('ttft = "a + b"', 'expected a metric as it is called, as "first_token_seconds", or "sum'),
        ('cache_hit = "a / b / c"', "'/ c' behind 'a / b'"),
        ("queue = 'a{b=c}'", "'{b=c}' behind 'a'"),
        ("queue = '{b=\"c\"}'", "no metric's name at"),
        (f'queue = "{"a" * 1025}"', "more than 1024 characters"),
        ("queue = 7", "found the number 7, expected metrics as they are called"),
        ('preset = "tgi"', "preset: found 'tgi', expected 'vllm' or 'sglang'"),
        ('preset = ""', "preset: found ''"),
        ('preset = "vllm"\npath = "metrics"', "path: found 'metrics', expected a path that begins"),
        ('preset = "vllm"\npath = "/a b"', "path: found '/a b'"),
        ('preset = "vllm"\ninterval = "999ms"', 'expected a duration from "1s" to "10m"'),
        ('preset = "vllm"\nport = 0', "port: found 0, expected a whole number from 1 to 65535"),
        ('preset = "vllm"\nload = "a"', "load: unknown key, expected one of: cache_hit, cache_us"),
    ],
)
def test_what_is_wrong_is_named(line: str, words: str) -> None:
    """The key, what was found, what is expected; nothing else is complained about."""
    assert words in problem(line)


@given(st.text(max_size=60))
def test_any_text_is_readings_or_an_error(text: str) -> None:
    """And what is taken can be written again."""
    try:
        first = parse_readings("queue", text)
    except ValueError:
        return
    assert parse_readings("queue", format_sum(first[0].of)) == first


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.text(max_size=9)), max_size=3
    )
)
def test_labels_are_written_as_they_are_read(labels: list[tuple[str, str]]) -> None:
    """Whatever they have in them."""
    series = (Series("depth", tuple(labels)), Series("more"))
    assert parse_readings("queue", format_sum(series)) == (Reading(series),)


def test_where_metrics_are() -> None:
    """A backend's own word, the service's port, the backend's port; one of UDP has none."""
    service = parsed('preset = "vllm"\nport = 9100', backend='scrape = "127.0.0.1:9200"')
    (backend,) = service.backends
    assert service.scrape is not None
    assert scraped_endpoint(service.scrape, backend) == Endpoint(0x7F000001, 9200)
    backend = replace(backend, scrape=None)
    assert scraped_endpoint(service.scrape, backend) == Endpoint(ADDR, 9100)
    scrape = replace(service.scrape, port=0)
    assert scraped_endpoint(scrape, backend) == Endpoint(ADDR, 8080)
    assert scraped_endpoint(scrape, replace(backend, endpoint=Endpoint(ADDR, 80, 17))) is None


def test_somebody_has_to_say_the_port() -> None:
    """Of a backend of UDP, or of all ports."""
    udp = 'protocol = "udp"\nprobe = "icmp"'
    told = problem('preset = "vllm"', service=udp)
    assert told == (
        "service.scrape.port: found none, and backend 198.18.1.2:8080 has no TCP port of its own, "
        "expected the port of their metrics"
    )
    assert parsed('preset = "vllm"\nport = 80', service=udp).scrape is not None
    assert parsed('preset = "vllm"', service=udp, backend='scrape = "198.18.1.2:9"').scrape


def test_a_backends_address_needs_something_to_read() -> None:
    """And it is an address with its port."""
    text = '[[service]]\naddress = "198.18.100.1:80"\n[[service.backend]]\n'
    with pytest.raises(ConfigError, match=r"expected \[service.scrape\] beside it"):
        parse_config(f'{text}address = "198.18.1.2:80"\nscrape = "198.18.1.2:9"\n', "x")
    told = problem('preset = "vllm"', backend='scrape = "host:9"')
    assert told.startswith("service.backend.scrape: found 'host'")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("127.0.0.1:9100", "127.0.0.1:9100"),
        ("127.8.9.10:9100", "127.8.9.10:9100"),
        ("[::1]:9100", "[::1]:9100"),
        ("[0:0:0:0:0:0:0:1]:9100", "[::1]:9100"),
        ("169.254.1.1:9100", "169.254.1.1:9100"),
        ("[2001:db8::9]:9100", "[2001:db8::9]:9100"),
    ],
)
def test_metrics_may_be_on_this_host(written: str, shown: str) -> None:
    """Of either family, and wherever it reaches; what is shown can be written again."""
    (backend,) = parsed('preset = "vllm"', backend=f'scrape = "{written}"').backends
    assert format_scrape(backend.scrape) == shown
    (again,) = parsed('preset = "vllm"', backend=f'scrape = "{shown}"').backends
    assert again.scrape == backend.scrape


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("0.0.0.0:9100", "the unspecified address"),
        ("255.255.255.255:9100", "the broadcast address"),
        ("224.0.0.1:9100", "a multicast address"),
        ("0.1.2.3:9100", "a reserved address"),
        ("[::]:9100", "the unspecified address"),
        ("[ff02::1]:9100", "a multicast address"),
        ("[fe80::1]:9100", "a link-local address"),
        ("[::1]:0", "port '0'"),
        ("[::1]:", "port ''"),
        ("::1:9100", "in brackets"),
    ],
)
def test_where_nobody_can_be_asked(written: str, kind: str) -> None:
    """It is said what the address is."""
    told = problem('preset = "vllm"', backend=f'scrape = "{written}"')
    assert told.startswith("service.backend.scrape: ")
    assert kind in told
    assert 'as "198.18.1.2:9100"' in told


def test_values_outlive_two_missed_scrapes() -> None:
    """By themselves, or not at all."""
    assert parsed('preset = "vllm"\ninterval = "2s"').score_age_ns == 10 * S
    assert parsed('preset = "vllm"\ninterval = "1m"').score_age_ns == 180 * S
    assert parsed('preset = "vllm"\ninterval = "2s"', score='age = "6s"').score_age_ns == 6 * S
    told = problem('preset = "vllm"\ninterval = "2s"', score='age = "5s"')
    assert told.startswith(
        "service.scrape.interval: found 2s, expected at most a third of score.age (5s)"
    )


def test_it_is_shown_as_it_is_written() -> None:
    """What goes before the preset, too."""
    found = scrape_of('preset = "sglang"\nttft = "wait"\nqueue = "a{b=\\"c\\"} + d"\nport = 9')
    assert scrape_keys(found) == {
        "scrape": 'sglang queue a{b="c"} + d ttft wait',
        "scrape.port": "9",
        "scrape.path": "/metrics",
        "scrape.interval": "1s",
        "scrape.timeout": "500ms",
    }
    assert scrape_keys(None) == {"scrape": "none"}
    assert scrape_keys(scrape_of('cache_hit = "a / b"'))["scrape"] == "cache_hit a / b"
    assert format_scrape(None) == "none"
    assert format_scrape(Endpoint(ADDR, 9100)) == "198.18.1.2:9100"
