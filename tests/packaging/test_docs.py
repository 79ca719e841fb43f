# SPDX-License-Identifier: Apache-2.0
"""The manuals keep to the code: every key with its default and range, every counter and option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from bench.__main__ import BENCHMARKS
from xdp_router.cli.commands.gateway import gateway
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig, parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.daemon.main import main
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_GOOD = {
    "router": "",
    "service": 'address = "198.18.100.1:80"\n',
    "service.score": "",
    "service.scrape": 'preset = "vllm"\n',
    "service.backend": 'address = "198.19.1.2:8080"\n',
    "gateway": "",
    "listener": 'address = "198.18.100.1:443"\ntype = "llm"\n',
    "listener.score": "",
    "listener.scrape": 'preset = "vllm"\n',
    "listener.race": "",
    "listener.tls": "",
    "listener.tenant": 'name = "t"\n',
    "listener.route": 'backends = ["198.18.1.2:80"]\n',
    "listener.backend": 'address = "198.18.1.2:80"\n',
}
_HEADERS = {
    "router": "[router]",
    "service": "[[service]]",
    "service.score": "[service.score]",
    "service.scrape": "[service.scrape]",
    "service.backend": "[[service.backend]]",
    "gateway": "[gateway]",
    "listener": "[[listener]]",
    "listener.score": "[listener.score]",
    "listener.scrape": "[listener.scrape]",
    "listener.race": "[listener.race]",
    "listener.tls": "[listener.tls]",
    "listener.tenant": "[[listener.tenant]]",
    "listener.route": "[[listener.route]]",
    "listener.backend": "[[listener.backend]]",
}


_PARTNERS = {
    "service.affinity_time": ("service", 'affinity = "source"'),
    "service.max_connections": ("router", "max_flows = 16000000"),
    "service.snapshot_age": ("service", 'probe_interval = "1ms"'),
    "listener.snapshot_age": ("listener", 'probe_interval = "1ms"'),
    "listener.tenant.burst": ("listener.tenant", "rate = 5"),
}
"""What stands beside keys that are refused alone: table and line."""
_OF_OTHERS = (
    *("the address", "none", "service_event_rate", "the service's", "the type's"),
    *("the backends'", "the rate's", "its number"),
)
"""Defaults that are no values."""


@dataclass(frozen=True)
class Row:
    """One line of a table of keys."""

    table: str
    key: str
    default: str
    low: str
    high: str


def rows() -> Iterator[Row]:
    """The keys of docs/configuration.md."""
    table = ""
    for line in (DOCS / "configuration.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            title = re.match(r"## `\[+([a-z.]+)\]+`", line)
            table = title[1] if title else ""
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if (
            table
            and len(cells) == 5
            and re.fullmatch(r"[a-z_]+", cells[0])
            and cells[1] != "default"
        ):
            yield Row(table, *cells[:4])


ROWS = list(rows())
RANGES = [row for row in ROWS if row.low]


def parsed(table: str = "", line: str = "") -> RouterConfig:
    """A small good configuration with one further line in one of its tables, and its partner."""
    text = ""
    beside, partner = _PARTNERS.get(f"{table}.{line.partition(' ')[0]}", ("", ""))
    for name, header in _HEADERS.items():
        # A key of the given line takes the place of the good one.
        good = "" if name == table and line.startswith("address") else _GOOD[name]
        more = f"{line if name == table else ''}\n{partner if name == beside else ''}"
        text += f"{header}\n{good}{more}\n"
    return parse_config(text, "x")


def complains(row: Row, value: str) -> bool:
    """Whether the key itself is refused; what it means for other keys does not count."""
    try:
        parsed(row.table, f"{row.key} = {value}")
    except ConfigError as error:
        return any(each.key.endswith(row.key) for each in error.problems)
    return False


@pytest.mark.parametrize("table", list(_HEADERS))
def test_every_key_is_documented(table: str) -> None:
    """Exactly the keys that the reader knows."""
    with pytest.raises(ConfigError) as caught:
        parsed(table, "no_such_key = 1")
    known = set(caught.value.expected.split(", "))
    assert {row.key for row in ROWS if row.table == table} == known


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table}.{row.key}")
def test_defaults(row: Row) -> None:
    """The documented default changes nothing, and what is required is."""
    if row.default in _OF_OTHERS:
        return
    if row.key == "snapshot_age":  # its default depends on another key
        assert parsed("service").services[0].snapshot_age_ns == 10 * 10**7
        return
    if row.default == "required":
        text = "".join(
            f"{header}\n{'' if name == row.table else _GOOD[name]}\n"
            for name, header in _HEADERS.items()
            if name != f"{row.table}.{row.key}"
        )
        with pytest.raises(ConfigError, match=row.key):
            parse_config(text, "x")
        return
    table, partner = _PARTNERS.get(f"{row.table}.{row.key}", ("", ""))
    assert parsed(row.table, f"{row.key} = {row.default}") == parsed(table, partner)


@pytest.mark.parametrize("row", RANGES, ids=lambda row: f"{row.table}.{row.key}")
def test_ranges(row: Row) -> None:
    """Both ends are taken, what is a step beyond them is not."""
    assert not complains(row, row.low) or row.key in ("heartbeat_stale", "max_body")
    assert not complains(row, row.high)
    for end, step in ((row.low, -1), (row.high, 1)):
        duration = re.fullmatch(r'"(\d+)(ms|s|m|h)"', end)
        if duration:
            units = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
            beyond = int(duration[1]) * units[duration[2]] + step
            text = f'"{beyond}ns"'
        else:
            beyond = int(end.replace("_", "")) + step
            text = str(beyond)
        assert complains(row, text), text


def test_every_option_of_attach_is_documented() -> None:
    """Each one of ``attach`` stands in docs/configuration.md."""
    text = (DOCS / "configuration.md").read_text("utf-8")
    attach = main.commands["attach"]
    for parameter in attach.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in text or f" {parameter.opts[0]} " in text, parameter


@pytest.mark.parametrize("command", list(gateway.commands))
def test_every_command_of_the_gateway_is_documented(command: str) -> None:
    """docs/gateway.md has a row for each, with its arguments and options."""
    text = (DOCS / "gateway.md").read_text("utf-8").partition("## Commands")[2]
    (row,) = re.findall(rf"^\| `({command}(?: [^`]*)?)` \|", text, re.MULTILINE)
    words = []
    for each in gateway.commands[command].params:
        if isinstance(each, click.Argument):
            words.append(str(each.make_metavar(click.Context(gateway))))
        elif each.opts[0] != "--json":
            flag = isinstance(each, click.Option) and each.is_flag
            words.append(f"[{each.opts[0]}]" if flag else f"[{each.opts[0]} N]")
    assert row.split(" ", 1)[1:] == ([" ".join(words)] if words else [])


def test_the_guide_has_no_other_commands() -> None:
    """Whatever 'xdp-router gateway' is said to have is there."""
    text = (DOCS / "gateway.md").read_text("utf-8")
    table = text.partition("## Commands")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z]+)", table, re.MULTILINE)) == set(gateway.commands)
    assert set(re.findall(r"xdp-router gateway ([a-z]+)", text)) <= set(gateway.commands)


def test_every_option_of_the_gateway_is_documented() -> None:
    """Those of 'xdp-routerd gateway' stand in its guide."""
    text = (DOCS / "gateway.md").read_text("utf-8")
    for each in main.commands["gateway"].params:
        assert f"{each.opts[0]}" in text, each


def test_metrics_of_the_gateway_that_the_guide_names() -> None:
    """Each exists; docs/metrics.md has all of them (tests/unit/test_catalogue.py)."""
    text = (DOCS / "gateway.md").read_text("utf-8").partition("## What to watch")[2]
    rows = re.findall(r"^\| (.*?) \|", text.partition("\n## ")[0], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)[`{]", row)}
    assert len(named) > 9
    assert {f"gateway_{name}" for name in named} <= set(GATEWAY_METRICS)


def test_every_counter_is_explained() -> None:
    """docs/operations.md has a row for each counter of the program, and for no other."""
    text = (DOCS / "operations.md").read_text("utf-8").partition("## Counters")[2]
    told = re.findall(r"^\| `([a-z_0-9]+)` \|", text, re.MULTILINE)
    assert sorted(told) == sorted(abi.Counter.__members__)


def test_every_benchmark_is_explained() -> None:
    """docs/measurement.md has a row for each benchmark, and for no other."""
    text = (DOCS / "measurement.md").read_text("utf-8")
    told = re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)
    assert sorted(told) == sorted(BENCHMARKS)


def test_links_between_documents() -> None:
    """Every relative link leads to a file."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
