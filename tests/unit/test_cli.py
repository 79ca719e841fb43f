# SPDX-License-Identifier: Apache-2.0
"""The operator's commands, run in-process against given data or a real control socket."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.cli_samples import BACKENDS, EXPLAIN, FLOWS, SERVICES, STATUS
from xdp_router.adapters.control import CommandError, NoDaemon
from xdp_router.cli.commands.context import Context
from xdp_router.cli.main import main

ANSWERS = {"status": STATUS, "services": SERVICES, "backends": BACKENDS, "explain": EXPLAIN}


class _Router:
    """A daemon and its maps; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, object]]] = []
        self.opened: list[str] = []
        self.limits: list[int] = []
        self.rows: list[dict[str, Any]] = FLOWS
        self.read = 0
        self.kept: dict[str, list[dict[str, Any]]] | None = None

    def ask(self, control: str, command: str, args: dict[str, object]) -> Any:
        self.asked.append((control, command, args))
        if command == "decisions":
            if self.kept is None:
                raise NoDaemon(f"no daemon listens on {control}")
            clients = args["clients"]
            assert isinstance(clients, list)
            return {client: self.kept[client] for client in clients if client in self.kept}
        return ANSWERS[command]

    def open(self, pins: str) -> _Router:
        self.opened.append(pins)
        return self

    def flows(self, limit: int) -> Iterator[dict[str, Any]]:
        self.limits.append(limit)
        for row in self.rows[:limit]:
            self.read += 1
            yield copy.deepcopy(row)

    def counters(self) -> dict[str, int]:
        return {"first_packet": 12, "ring_full": 0}


@pytest.fixture
def router() -> _Router:
    return _Router()


def _run(router: _Router, *args: str, env: dict[str, str] | None = None) -> Result:
    context = Context(ask_daemon=router.ask, open_pins=router.open)
    clean = {"XDP_ROUTER_CONTROL": None, "XDP_ROUTER_PINS": None, "XDP_ROUTER_DEBUG": None}
    return CliRunner().invoke(main, args, obj=context, env={**clean, **(env or {})})


@pytest.mark.parametrize("command", ["status", "services", "backends"])
def test_json_of_daemon_commands_is_the_daemons_data(router: _Router, command: str) -> None:
    """--json prints what the daemon answered, so its keys are the contract."""
    result = _run(router, command, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == ANSWERS[command]


@pytest.mark.parametrize("command", ["status", "services", "backends"])
def test_tables_of_daemon_commands(router: _Router, command: str) -> None:
    """Without --json there is a table for people."""
    result = _run(router, command)
    assert result.exit_code == 0
    assert not result.stdout.lstrip().startswith(("{", "["))


def test_explain_asks_for_the_client(router: _Router) -> None:
    """The client's address is handed to the daemon as given."""
    result = _run(router, "explain", "198.18.0.2:40000")
    assert result.exit_code == 0
    assert router.asked[0][1:] == ("explain", {"client": "198.18.0.2:40000"})
    assert "race won" in result.stdout
    result = _run(router, "explain", "198.18.0.2:40000", "--json")
    assert json.loads(result.stdout) == EXPLAIN


@pytest.mark.parametrize(
    "client",
    ["198.18.0.2", "198.18.0.2:0", "198.18.0.2:65536", "198.18.0:1", "host:80", "1.2.3.400:5"],
)
def test_wrong_client_is_a_usage_error(router: _Router, client: str) -> None:
    """A malformed client is exit code 2, with what was expected, and nothing is asked."""
    result = _run(router, "explain", client)
    assert result.exit_code == 2
    assert "expected" in result.stderr
    assert not router.asked


def test_paths_come_from_option_environment_or_default(router: _Router) -> None:
    """The option wins over the environment, which wins over the default."""
    env = {"XDP_ROUTER_CONTROL": "/env.sock", "XDP_ROUTER_PINS": "/env/pins"}
    _run(router, "status")
    _run(router, "status", env=env)
    _run(router, "--control", "/opt.sock", "status", env=env)
    assert [control for control, _, _ in router.asked] == [
        "/run/xdp-router/control.sock",
        "/env.sock",
        "/opt.sock",
    ]
    _run(router, "flows")
    _run(router, "flows", env=env)
    _run(router, "--pins", "/opt/pins", "counters", env=env)
    assert router.opened == ["/sys/fs/bpf/xdp-router", "/env/pins", "/opt/pins"]


def test_flows_are_read_without_the_daemon(router: _Router) -> None:
    """flows reads the maps alone; --json asks for candidates, and does without them silently."""
    result = _run(router, "flows", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == FLOWS
    assert result.stderr == ""
    router.asked.clear()
    assert _run(router, "flows").exit_code == 0
    assert not router.asked


def test_flows_have_the_candidates_that_the_daemon_keeps(router: _Router) -> None:
    """Each decision gets its candidates; a race of another service's flow is not mixed up."""
    joined = {**FLOWS[2], "client": "198.18.0.2:40003"}
    router.rows = [FLOWS[0], FLOWS[1], FLOWS[2], joined]
    won = [{"backend": name, "rtt_us": 20.0, "answer": "synack"} for name in ("b1", "b2")]
    others = [{"backend": "c1", "rtt_us": 20.0, "answer": "synack"}]
    router.kept = {FLOWS[0]["client"]: won, FLOWS[1]["client"]: won, FLOWS[2]["client"]: others}
    rows = json.loads(_run(router, "flows", "--json").stdout)
    assert [row["decision"]["candidates"] for row in rows] == [won, won, [], []]


def test_flows_ask_the_daemon_in_small_portions(router: _Router) -> None:
    """No question has more than 200 clients, and none is asked about twice."""
    router.kept = {}
    router.rows = [{**FLOWS[0], "client": f"198.18.0.2:{1 + n % 450}"} for n in range(900)]
    _run(router, "flows", "--json")
    portions = [args["clients"] for _, _, args in router.asked]
    assert [len(portion) for portion in portions if isinstance(portion, list)] == [200, 200, 50]


def test_flows_stop_at_the_limit_and_say_so(router: _Router) -> None:
    """With more flows than the limit, the rest is not read, and stderr says that there is more."""
    router.rows = [FLOWS[0]] * 5000
    result = _run(router, "flows", "--json")
    assert len(json.loads(result.stdout)) == 1000
    assert "more than 1000 flows" in result.stderr
    assert router.read == 1001
    result = _run(router, "flows", "--json", "--limit", "5000")
    assert len(json.loads(result.stdout)) == 5000
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("option", "value", "clients"),
    [
        ("--client", "255.255.255.255:65535", [0]),
        ("--client", "198.18.0.2", [1, 2]),
        ("--client", "198.18.0.2:40001", [1]),
        ("--service", "web", [0, 1, 2]),
        ("--service", "we", []),
        ("--backend", "b1", [0]),
        ("--backend", "198.19.2.2", [1]),
        ("--backend", "198.19.10.2:8080", [2]),
        ("--backend", "198.19.1", []),
        ("--state", "closing", [2]),
    ],
)
def test_flow_filters(router: _Router, option: str, value: str, clients: list[int]) -> None:
    """A filter keeps exactly the flows that it names; an address may omit the port."""
    result = _run(router, "flows", "--json", option, value)
    assert json.loads(result.stdout) == [FLOWS[index] for index in clients]


def test_filters_apply_before_the_limit(router: _Router) -> None:
    """A flow far down the table is found although the limit is small."""
    router.rows = [FLOWS[0]] * 3000 + [FLOWS[2]]
    result = _run(router, "flows", "--json", "--state", "closing", "--limit", "1")
    assert json.loads(result.stdout) == [FLOWS[2]]
    assert result.stderr == ""


def test_counters(router: _Router) -> None:
    """JSON has every counter; the table those that are not 0, or all."""
    assert json.loads(_run(router, "counters", "--json").stdout) == router.counters()
    assert "ring_full" not in _run(router, "counters").stdout
    assert "ring_full" in _run(router, "counters", "--all").stdout


def test_refusal_of_the_daemon_is_one_line(router: _Router) -> None:
    """What the daemon refuses is one line on stderr and exit code 1."""

    def refuse(_control: str, _command: str, _args: dict[str, object]) -> Any:
        raise CommandError("no decision of 198.18.0.2:40000 is kept")

    context = Context(ask_daemon=refuse, open_pins=router.open)
    result = CliRunner().invoke(main, ["explain", "198.18.0.2:40000"], obj=context)
    assert result.exit_code == 1
    assert result.stderr == "Error: no decision of 198.18.0.2:40000 is kept\n"
    assert result.stdout == ""


def test_missing_permission_names_sudo(router: _Router) -> None:
    """Reading maps as an ordinary user says what to do."""

    def denied(pins: str) -> _Router:
        raise PermissionError(13, "Permission denied", pins)

    result = CliRunner().invoke(main, ["flows"], obj=Context(open_pins=denied))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "run the command with sudo" in result.stderr


def test_fault_of_ours_is_one_line(router: _Router) -> None:
    """Even a bug gives one line without a traceback, and says how to see more."""
    del router.rows
    result = _run(router, "flows")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: internal error: AttributeError")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "services", "backends", "explain"])
def test_without_a_daemon(tmp_path: Path, command: str) -> None:
    """The real client without a daemon: one line that names the path and the mend, exit 1."""
    control = tmp_path / "control.sock"
    args = ["--control", str(control), command]
    if command == "explain":
        args.append("198.18.0.2:1")
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert str(control) in result.stderr
    assert "sudo xdp-routerd attach IFACE" in result.stderr


@pytest.mark.parametrize(
    "args", [["nonsense"], ["flows", "--limit", "0"], ["lab", "up", "--backend", "b1=5h"]]
)
def test_usage_errors(router: _Router, args: list[str]) -> None:
    """Wrong usage is exit code 2."""
    assert _run(router, *args).exit_code == 2


def test_lab_down_without_a_lab(tmp_path: Path) -> None:
    """Taking down a lab that is not there is done at once."""
    directory = str(tmp_path / "none")
    prefix = f"xr-none-{os.getpid()}"
    result = CliRunner().invoke(main, ["lab", "down", "--directory", directory, "--prefix", prefix])
    assert (result.exit_code, result.stdout) == (0, "No lab was up.\n")


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """A reader that goes away, like head, causes no message."""
    script = (
        "from tests.support.cli_samples import FLOWS\n"
        "from xdp_router.cli.commands.context import Context\n"
        "from xdp_router.cli.main import main\n"
        "class Maps:\n"
        "    def flows(self, limit):\n"
        "        return iter([FLOWS[0]] * 50000)\n"
        "main(['flows', '--json', '--limit', '50000'], obj=Context(open_pins=lambda _: Maps()))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.wait(10)
