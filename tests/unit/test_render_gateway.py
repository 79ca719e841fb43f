# SPDX-License-Identifier: Apache-2.0
"""``xdp-router gateway``: what is asked, and the tables that are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from xdp_router.adapters.control import DEFAULT_GATEWAY_CONTROL_PATH, NoDaemon
from xdp_router.cli.commands.context import Context
from xdp_router.cli.commands.gateway import control_path
from xdp_router.cli.main import main

STATUS = {
    "state": "serving",
    "version": "0.1.0",
    "pid": 42,
    "uptime_s": 3600.0,
    "config": "/etc/xdp-router/router.toml",
    "listeners": 1,
    "backends": 2,
    "connections": 3,
    "generation": 2,
    "workers": [
        {"pid": 43, "state": "serving", "generation": 2, "connections": 2, "uptime_s": 60.0},
        {"pid": 41, "state": "retiring", "generation": 1, "connections": 1, "uptime_s": 3600.0},
    ],
}
LISTENERS = [
    {
        "name": "web",
        "type": "http",
        "address": "[2001:db8::1]:443",
        "mode": "race",
        "policy": "score",
        "tls": True,
        "backends": 2,
        "routes": 1,
    }
]
BACKEND = {
    "listener": "web",
    "name": "b1",
    "address": "198.18.1.2:8000",
    "state": "well",
    "rtt_us": 250.0,
    "rtt_age_s": 0.01,
    "in_flight": 3,
    "ttft_us": 85_000.0,
    "held_s": 0.0,
    "weight": 1,
    "models": [],
}
BACKENDS = [BACKEND, {**BACKEND, "name": "b2", "rtt_us": None, "ttft_us": None, "held_s": 2.5}]
DECISION = {
    "event": "request",
    "worker": 43,
    "id": "r1",
    "time_s": 1_790_000_000.5,
    "listener": "web",
    "client": "198.18.0.9:4000",
    "method": "POST",
    "path": "/v1/completions",
    "model": "m",
    "status": 200,
    "backend": "b1",
    "mode": "race",
    "reason": "hedge won",
    "legs": 2,
    "first_byte_us": 85_000.0,
    "total_us": 1_200_000.0,
    "bytes_out": 12_345,
    "end": "complete",
}
DECISIONS = [
    DECISION,
    {"id": "r2", "listener": "tls", "client": "198.18.0.9:4001", "host": "a.example", "status": 0,
     "legs": 0, "bytes_out": 0, "mode": "inline", "reason": "no route", "end": "no route"},
]  # fmt: skip
STREAM = {**DECISION, "age_s": 3.2, "end": None}
EXPLAIN = {
    **DECISION,
    "candidates": [
        {"backend": "b1", "in_flight": 3, "terms": {"score": 0.9, "ttft": 1.0}, "legs": 1,
         "ttft_us": 84_000.0, "outcome": "won"},
        {"backend": "b2", "in_flight": 0, "terms": None, "legs": 0, "ttft_us": None,
         "outcome": ""},
    ],
    "timeline": [
        {"at_us": -120.0, "what": "accepted", "detail": "connection of 198.18.0.9:4000"},
        {"at_us": 85_000.0, "what": "first token", "detail": "leg 1 to b1"},
    ],
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "status": STATUS,
    "listeners": LISTENERS,
    "backends": BACKENDS,
    "streams": [STREAM],
    "decisions": DECISIONS,
    "explain": EXPLAIN,
    "reload": {"applied": True, "generation": 3, "listeners": 1, "workers": 2},
    "drain": {"connections": 1, "timeout_s": 60.0},
    "upgrade": {"pid": 45, "version": "0.2.0", "former": 42},
    "push": {
        "backend": "b1",
        "address": "198.18.1.2:8000",
        "told": {"queue": 3.0},
        "holds_s": 10.0,
    },
}
ARM = {
    "listener": "web",
    "mode": "race",
    "percent": 5,
    "measured": "first token",
    "confidence": 0.95,
    "arms": {
        "mode": {"count": 900, "p50_ms": 10.0, "p99_ms": 20.5},
        "control": {"count": 50, "p50_ms": 12.0, "p99_ms": 90.0},
    },
    "gain": {
        "p50": {"gain_ms": {"estimate": 2.0, "low": 1.5, "high": 2.5}, "ratio": {}},
        "p99": {"gain_ms": {"estimate": 69.5, "low": None, "high": 80.0}, "ratio": {}},
    },
}


class _Gateway:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, object]]] = []
        self.there = True

    def ask(self, control: str, command: str, args: dict[str, object]) -> Any:
        self.asked.append((control, command, args))
        if not self.there:
            raise NoDaemon("no daemon")
        return ANSWERS[command]


@pytest.fixture
def gateway() -> _Gateway:
    return _Gateway()


def run(gateway: _Gateway, *args: str, env: dict[str, str | None] | None = None) -> Result:
    """``xdp-router gateway ARGS``."""
    clean = {"XDP_ROUTER_CONTROL": "/x", "XDP_ROUTER_GATEWAY_CONTROL": None, **(env or {})}
    context = Context(ask_daemon=gateway.ask)
    return CliRunner().invoke(main, ["gateway", *args], obj=context, env=clean)


@pytest.mark.parametrize("command", list(ANSWERS))
def test_json_is_the_gateways_data(gateway: _Gateway, command: str) -> None:
    """--json prints what was answered, of each command."""
    more = {"explain": ["r1"], "push": ["b1", "--queue", "3"]}.get(command, [])
    result = run(gateway, command, *more, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == ANSWERS[command]


def test_which_gateway(gateway: _Gateway) -> None:
    """By default its own socket, not the daemon's; by option or environment another."""
    run(gateway, "status")
    run(gateway, "status", env={"XDP_ROUTER_GATEWAY_CONTROL": "/e.sock"})
    run(gateway, "--control", "/o.sock", "status")
    assert [each[0] for each in gateway.asked] == [
        *(DEFAULT_GATEWAY_CONTROL_PATH, "/e.sock", "/o.sock")
    ]


def test_where_the_units_gateway_is(tmp_path: Path) -> None:
    """The first socket that is there; if none is, the error names the first."""
    first, second = tmp_path / "a.sock", tmp_path / "b.sock"
    assert control_path(str(first), str(second)) == str(first)
    second.touch()
    assert control_path(str(first), str(second)) == str(second)
    first.touch()
    assert control_path(str(first), str(second)) == str(first)


def test_none_is_there(gateway: _Gateway) -> None:
    """How one is started, and how another is named."""
    gateway.there = False
    result = run(gateway, "--control", "/o.sock", "status")
    assert result.exit_code == 1
    assert "no gateway listens on /o.sock: start one with 'xdp-routerd gateway" in result.stderr


def test_status(gateway: _Gateway) -> None:
    """What serves, and each worker."""
    lines = run(gateway, "status").stdout.splitlines()
    assert lines[0] == "serving, pid 42, up 60m, /etc/xdp-router/router.toml"
    assert lines[1] == "1 listeners, 2 backends, 3 connections, generation 2"
    assert [line.split() for line in lines[4:]] == [
        ["43", "serving", "2", "2", "60s"],
        ["41", "retiring", "1", "1", "60m"],
    ]


def test_listeners_and_backends(gateway: _Gateway) -> None:
    """Times in a readable unit; a backend that asked to wait is marked."""
    (_, line) = run(gateway, "listeners").stdout.splitlines()
    assert line.split() == [
        *("web", "[2001:db8::1]:443", "http,", "TLS", "ends", "here", "race", "2", "1")
    ]
    (_, one, two) = run(gateway, "backends").stdout.splitlines()
    assert one.split() == ["web", "b1", "198.18.1.2:8000", "well", "3", "250", "µs", "85.0", "ms"]
    assert two.split()[3:] == ["well,", "asked", "to", "wait", "3", "-", "-"]


def test_what_others_say(gateway: _Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are not ours in the table; below it values with their age, and what fails."""
    scrape = {"url": "http://198.18.1.2:8000/metrics", "error": "no answer", "missing": []}
    told = {"value": 0.5, "age_s": 2.0, "source": "scrape", "counts": True}
    old = {"value": 7.0, "age_s": 40.0, "source": "push", "counts": False}
    row = {
        **BACKEND,
        "told": {"cache_usage": told, "queue": old},
        "others": 4.0,
        "scrape": scrape,
        "prefix_cache": {"predicted": 0.625, "measured": 0.5},
    }
    monkeypatch.setitem(ANSWERS, "backends", [row, {**BACKEND, "name": "b2", "others": None}])
    head, one, two, *below = run(gateway, "backends").stdout.splitlines()
    assert "OTHERS" in head
    assert one.split()[4:6] == ["3", "4"]
    assert two.split()[4:6] == ["3", "-"]
    assert below == [
        "b1: cache 50% full (scrape, 2s ago), queue 7 (push, 40s ago: too old to count)",
        "b1: metrics of http://198.18.1.2:8000/metrics are not read: no answer",
        "b1: 62% of prompts were thought to be in its prefix cache, 50% were by its own count",
    ]


def test_push(gateway: _Gateway) -> None:
    """What is given is told, by name or address."""
    said = run(gateway, "push", "b1", "--queue", "3", "--ttft", "5").stdout
    assert said == "b1 (198.18.1.2:8000): queue 3, for 10s\n"
    assert gateway.asked[0][1:] == ("push", {"backend": "b1", "queue": 3.0, "ttft_ms": 5.0})
    result = run(gateway, "push", "b1")
    assert result.exit_code == 2
    assert "nothing to tell: give --queue" in result.stderr


def test_the_control_arm(gateway: _Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each quantile, with how sure it is; before there is anything, that."""
    monkeypatch.setitem(ANSWERS, "status", {**STATUS, "control_arms": [ARM]})
    lines = run(gateway, "status").stdout.splitlines()
    assert lines[-3:] == [
        "web: control arm, 5 % of requests by turns",
        "  first token p50 12 ms, with race 10 ms; it gains 2 ms (95 %: 1.5 to 2.5 ms, of 900 and "
        "50 requests)",
        "  first token p99 90 ms, with race 20.5 ms; it gains 69.5 ms (of 900 and 50 requests: too "
        "few to say how sure that is)",
    ]
    nothing = {**ARM, "gain": {"p50": None, "p99": None}}
    monkeypatch.setitem(ANSWERS, "status", {**STATUS, "control_arms": [nothing]})
    last = run(gateway, "status").stdout.splitlines()[-1]
    assert last == "web: control arm, 5 % of requests by turns: nothing to compare yet"


def test_decisions_and_streams(gateway: _Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for, who had it, why, and how long it took. Limits are handed on."""
    _, one, two = run(gateway, "decisions", "--limit", "5").stdout.splitlines()
    for words in ("r1", "POST /v1/completions (m)", "race: hedge won", "85.0 ms", "1.2 s"):
        assert words in one
    for words in ("r2", "a.example", "no route"):
        assert words in two
    _, row = run(gateway, "streams").stdout.splitlines()
    assert row.split()[-1] == "3s"
    assert [each[1:] for each in gateway.asked] == [
        ("decisions", {"limit": 5}),
        ("streams", {"limit": 100}),
    ]
    monkeypatch.setitem(ANSWERS, "streams", [])
    assert run(gateway, "streams").stdout == "no streams\n"


def test_explain(gateway: _Gateway) -> None:
    """What is known, who could have had it by which terms, and each step with its time."""
    said = run(gateway, "explain", "r1").stdout
    known, candidates, steps = said.split("\n\n")
    assert "first byte  85.0 ms" in known
    assert candidates.splitlines()[1].split() == [
        *("b1", "3", "0.90", "-", "1.00", "-", "-", "-", "1", "84.0", "ms", "won")
    ]
    assert candidates.splitlines()[2].endswith("not asked")
    assert [line.split()[:2] for line in steps.splitlines()[1:]] == [["0", "µs"], ["85.0", "ms"]]
    assert "leg 1 to b1" in steps
    assert gateway.asked[-1][2] == {"request": "r1"}


def test_reload_drain_and_upgrade(gateway: _Gateway) -> None:
    """What was done, or would be."""
    assert run(gateway, "reload").stdout == "reloaded: 1 listeners, 2 workers, generation 3\n"
    ANSWERS["reload"] = {**ANSWERS["reload"], "applied": False}
    assert "nothing was changed (--dry-run)" in run(gateway, "reload", "--dry-run").stdout
    ANSWERS["reload"] = {**ANSWERS["reload"], "applied": True}
    assert run(gateway, "drain").stdout == "draining: 1 connection to finish, 60 s at most\n"
    run(gateway, "drain", "--now")
    assert run(gateway, "upgrade").stdout == (
        "upgraded: process 45 serves, version 0.2.0; the former one (42) finishes its streams, and "
        "ends\n"
    )
    assert [each[2] for each in gateway.asked] == [
        *({"dry_run": False}, {"dry_run": True}, {"now": False}, {"now": True}, {})
    ]
