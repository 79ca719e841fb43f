# SPDX-License-Identifier: Apache-2.0
"""``xdp-router gateway``: what is asked, and the tables that are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from xdp_router.adapters.control import DEFAULT_GATEWAY_CONTROL_PATH, NoDaemon
from xdp_router.cli.commands.context import Context
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
DECISIONS = [
    {"worker": 43, "request": "r1", "backend": "b1", "ttft_us": 85_000.0, "reason": ""},
    {"worker": 43, "request": "r2", "backend": "b2", "hedged": True},
]
EXPLAIN = {
    "worker": 43,
    "request": "r1",
    "model": None,
    "timeline": [
        {"at_us": 0.0, "what": "accepted"},
        {"at_us": 85_000.0, "what": "first token", "backend": "b1", "ttft_us": 84_000.0},
        "closed",
    ],
}
ANSWERS: dict[str, Any] = {
    "status": STATUS,
    "listeners": LISTENERS,
    "backends": BACKENDS,
    "streams": [],
    "decisions": DECISIONS,
    "explain": EXPLAIN,
    "reload": {"applied": True, "generation": 3, "listeners": 1, "workers": 2},
    "drain": {"connections": 1, "timeout_s": 60.0},
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
    more = ["r1"] if command == "explain" else []
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


def test_decisions_and_streams(gateway: _Gateway) -> None:
    """A column for each key; none is said, too. Limits are handed on."""
    head, one, two = run(gateway, "decisions", "--limit", "5").stdout.splitlines()
    assert head.split() == ["WORKER", "REQUEST", "BACKEND", "TTFT", "REASON", "HEDGED"]
    assert one.split() == ["43", "r1", "b1", "85.0", "ms", "-", "-"]
    assert two.split() == ["43", "r2", "b2", "-", "-", "yes"]
    assert run(gateway, "streams").stdout == "nothing is open\n"
    assert [each[1:] for each in gateway.asked] == [
        ("decisions", {"limit": 5}),
        ("streams", {"limit": 100}),
    ]


def test_explain(gateway: _Gateway) -> None:
    """What is known, and then each step with its time."""
    assert run(gateway, "explain", "r1").stdout.splitlines() == [
        "worker   43",
        "request  r1",
        "model    -",
        "",
        "      0 µs  accepted",
        "   85.0 ms  first token: backend b1, ttft 84.0 ms",
        "            closed",
    ]
    assert gateway.asked[-1][2] == {"request": "r1"}


def test_reload_and_drain(gateway: _Gateway) -> None:
    """What was done, or would be."""
    assert run(gateway, "reload").stdout == "reloaded: 1 listeners, 2 workers, generation 3\n"
    ANSWERS["reload"] = {**ANSWERS["reload"], "applied": False}
    assert "nothing was changed (--dry-run)" in run(gateway, "reload", "--dry-run").stdout
    ANSWERS["reload"] = {**ANSWERS["reload"], "applied": True}
    assert run(gateway, "drain").stdout == "draining: 1 connection to finish, 60 s at most\n"
    run(gateway, "drain", "--now")
    assert [each[2] for each in gateway.asked] == [
        *({"dry_run": False}, {"dry_run": True}, {"now": False}, {"now": True})
    ]
