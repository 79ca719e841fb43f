# SPDX-License-Identifier: Apache-2.0
"""The table ``[service.scrape]``: where backends say how they are doing, and by which metrics.

A metric is written as in a query, ``depth{queue="a"}``. ``/`` stands between two counters of which
the increases are compared. ``+`` adds up queues, or counters on a side of the ``/``: of shares and
times that stand for themselves nobody could say what their sum is.

Names of presets: vLLM, ``docs/usage/metrics`` and ``docs/design/metrics`` of its versions 0.4 to
0.32; SGLang, ``srt/metrics/collector.py`` and ``docs/references/production_metrics``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from .address import LOOPBACK_IPV6, PROTOCOLS, format_endpoint, parse_endpoint, unusable
from .config_fields import MS, Problems, S, Table, format_duration
from .model import Backend, Endpoint, Reading, Scrape, Series, Service

INTERVAL_LEAST_NS = S
"""A scrape costs a server 10 ms and more, on the thread that answers requests."""
_INTERVAL_MOST_NS = 600 * S
AGE_INTERVALS = 3
"""Scrapes that may be missed before what the last one said is forgotten."""

KEYS = {"queue": "queue", "ttft": "ttft_ns", "cache_hit": "cache", "cache_usage": "usage"}
"""By key of the file, what a score calls the input."""
_RATIOS = frozenset({"cache_hit", "ttft"})
_ONE = "a metric as it is called, as 'share{engine=\"0\"}'"
_EXPECTED = {
    "queue": 'metrics as they are called, as \'depth{queue="a"}\' or "waiting + running"',
    "ttft": 'a metric as it is called, as "first_token_seconds", or "sum / count", in seconds',
    "cache_hit": f'{_ONE}, or "hits_total / queries_total"',
    "cache_usage": _ONE,
}

_PATH = re.compile(r"/[!-~]{0,1023}")
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\\n]|\\["\\n])*"'
_SERIES = re.compile(rf"\s*({_NAME})\s*(?:\{{\s*((?:{_LABEL}\s*,?\s*)*)\}})?\s*")
_LABEL_PARTS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\["\\n])*)"')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_TEXT_MAX = 1024

_PRESETS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "queue": ("vllm:num_requests_waiting + vllm:num_requests_running",),
        "ttft": ("vllm:time_to_first_token_seconds",),
        "cache_hit": (
            "vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_hits_total / vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_hit_rate",
        ),
        "cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    "sglang": {
        "queue": ("sglang:num_queue_reqs + sglang:num_running_reqs",),
        "ttft": ("sglang:time_to_first_token_seconds",),
        "cache_hit": (
            "sglang:cached_tokens_total / sglang:prompt_tokens_total",
            "sglang:cache_hit_rate",
        ),
        "cache_usage": ("sglang:token_usage",),
    },
}


def parse_readings(key: str, text: str) -> tuple[Reading, ...]:
    """What a text of one key means. Raises ValueError, saying what is wrong with it.

    A time that is named alone may be a histogram or summary, of which the mean of what came since
    the last scrape is taken, or a gauge.
    """
    if len(text) > _TEXT_MAX:
        raise ValueError(f"more than {_TEXT_MAX} characters")
    of, position = _sum(text, 0)
    over: tuple[Series, ...] = ()
    if text[position : position + 1] == "/":
        if key not in _RATIOS:
            raise ValueError(f"a '/', which {key} has no use for")
        over, position = _sum(text, position + 1)
    if position != len(text):
        raise ValueError(f"{text[position:][:20]!r} behind {text[:position].strip()!r}")
    if len(of) > 1 and key != "queue" and not over:
        use = "on a side of a '/' alone" if key in _RATIOS else "no use for"
        raise ValueError(f"a '+', which {key} has {use}")
    if key == "ttft" and not over:
        sums = tuple(Series(f"{each.name}_sum", each.labels) for each in of)
        counts = tuple(Series(f"{each.name}_count", each.labels) for each in of)
        return Reading(sums, counts), Reading(of)
    return (Reading(of, over),)


def _sum(text: str, position: int) -> tuple[tuple[Series, ...], int]:
    found = []
    while True:
        match = _SERIES.match(text, position)
        if match is None:
            raise ValueError(f"no metric's name at {text[position:].strip()[:20]!r}")
        labels = tuple(
            (name, re.sub(r'\\[\\"n]', lambda part: _ESCAPED[part[0]], value))
            for name, value in _LABEL_PARTS.findall(match[2] or "")
        )
        found.append(Series(match[1], labels))
        position = match.end()
        if text[position : position + 1] != "+":
            return tuple(found), position
        position += 1


PRESETS: dict[str, dict[str, tuple[Reading, ...]]] = {
    name: {
        key: tuple(each for text in texts for each in parse_readings(key, text))
        for key, texts in keys.items()
    }
    for name, keys in _PRESETS.items()
}
"""By name and key; of newer and older names the newer ones first."""


def read_scrape(table: Table) -> Scrape | None:
    """The table ``scrape`` of a service; None: there is none."""
    exists = table.has("scrape")
    scrape = table.table("scrape")
    if not exists:
        return None
    preset = ""
    if scrape.has("preset"):
        preset = scrape.choice("preset", "vllm", {name: name for name in PRESETS})
    else:
        scrape.text("preset", "")
    inputs = dict(PRESETS.get(preset, {}))
    for key in KEYS:
        expected = _EXPECTED[key]
        text = scrape.text(key, expected)
        if text is None:
            continue
        try:
            inputs[key] = parse_readings(key, text)
        except ValueError as error:
            scrape.found(key, f"{error}, in {text[:80]!r}", expected)
            inputs.setdefault(key, ())
    if not inputs and not any(map(scrape.has, KEYS)):  # else it was bad, and reported
        scrape.found(
            "preset",
            "nothing that is asked for",
            f"preset ({' or '.join(map(repr, PRESETS))}), or metrics by name: {', '.join(KEYS)}",
        )
    path = scrape.text("path", 'a path, as "/metrics"')
    if path is not None and not _PATH.fullmatch(path):
        scrape.wrong("path", path, 'a path that begins with "/", of printable ASCII')
        path = None
    found = Scrape(
        tuple((KEYS[key], inputs[key]) for key in KEYS if key in inputs),
        preset,
        scrape.integer("port", 0, 1, 65_535),
        "/metrics" if path is None else path,
        scrape.duration("interval", S, INTERVAL_LEAST_NS, _INTERVAL_MOST_NS),
        scrape.duration("timeout", 500 * MS, 10 * MS, 60 * S),
    )
    scrape.refuse_unknown()
    return found


def read_scrape_address(table: Table) -> Endpoint | None:
    """A backend's own address of its metrics; any that this host can reach, loopback too."""
    expected = 'an address and port, as "198.18.1.2:9100"'
    text = table.text("scrape", expected)
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    try:
        if _is_loopback_ipv6(host):
            return Endpoint(LOOPBACK_IPV6, parse_endpoint(f"127.0.0.1:{port}").port)
        endpoint = parse_endpoint(text)
    except ValueError as error:
        table.found("scrape", str(error).removeprefix("found "), expected)
        return None
    kind = _unreachable(endpoint.addr)
    if kind:
        table.found("scrape", f"{text!r}, {kind}", expected)
        return None
    return endpoint


def _is_loopback_ipv6(host: str) -> bool:
    """Whether it is ``[::1]``, however that is written."""
    try:
        return host[:1] + host[-1:] == "[]" and int(ipaddress.IPv6Address(host[1:-1])) == 1
    except ValueError:
        return False


def _unreachable(addr: int) -> str:
    """Why this host itself cannot ask at an address, or ""."""
    if addr >> 24 == 127 or addr >> 16 == 0xA9FE:
        return ""
    return unusable(addr)


def check_scrapes(services: Sequence[Service], problems: Problems) -> None:
    """Note where there is no port to ask, or nobody who is asked, or values would not last."""
    for service in services:
        scrape = service.scrape
        for index, backend in enumerate(service.backends):
            if scrape is None and backend.scrape is not None:
                problems.found(
                    ("service", service.id, "backend", index, "scrape"),
                    "an address of metrics, and nothing that is read there",
                    "[service.scrape] beside it",
                )
        if scrape is None:
            continue
        portless = [each for each in service.backends if scraped_endpoint(scrape, each) is None]
        if portless and portless[0].endpoint.addr:
            own = f"{portless[0].name} has no TCP port of its own"
            problems.found(
                ("service", service.id, "scrape", "port"),
                f"none, and backend {own}",
                "the port of their metrics",
            )
        if service.score_age_ns < AGE_INTERVALS * scrape.interval_ns:
            problems.found(
                ("service", service.id, "scrape", "interval"),
                format_duration(scrape.interval_ns),
                f"at most a third of score.age ({format_duration(service.score_age_ns)}), or "
                "values are forgotten before the next ones",
            )


def scraped_endpoint(scrape: Scrape, backend: Backend) -> Endpoint | None:
    """Where a backend's metrics are; None: nobody has said."""
    if backend.scrape is not None:
        return backend.scrape
    own = backend.endpoint.port if backend.endpoint.proto == PROTOCOLS["tcp"] else 0
    port = scrape.port or own
    return Endpoint(backend.endpoint.addr, port) if port else None


def scrape_keys(scrape: Scrape | None) -> dict[str, str]:
    """What is said of it, by key of the file."""
    if scrape is None:
        return {"scrape": "none"}
    said = []
    preset = PRESETS.get(scrape.preset, {})
    inputs = dict(scrape.inputs)
    for key, name in KEYS.items():
        readings = inputs.get(name)
        if readings is not None and readings != preset.get(key):
            said.append(f"{key} {_format(readings)}")
    return {
        "scrape": " ".join([*([scrape.preset] if scrape.preset else []), *said]),
        "scrape.port": str(scrape.port or "none"),
        "scrape.path": scrape.path,
        "scrape.interval": format_duration(scrape.interval_ns),
        "scrape.timeout": format_duration(scrape.timeout_ns),
    }


def _format(readings: Sequence[Reading]) -> str:
    """As it is written; a time that is named alone by the gauge that it may be."""
    reading = readings[-1]
    text = format_sum(reading.of)
    return f"{text} / {format_sum(reading.over)}" if reading.over else text


def format_sum(series: Sequence[Series]) -> str:
    """As it is written."""
    return " + ".join(map(_series, series))


def _series(series: Series) -> str:
    if not series.labels:
        return series.name
    parts = (f'{name}="{_escape(value)}"' for name, value in series.labels)
    return f"{series.name}{{{','.join(parts)}}}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def format_scrape(endpoint: Endpoint | None) -> str:
    """A backend's own address of its metrics."""
    return "none" if endpoint is None else format_endpoint(endpoint)
