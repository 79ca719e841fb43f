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
from xdp_router.core.address import parse_addr

ANSWERS = {
    "status": STATUS,
    "services": SERVICES,
    "backends": BACKENDS,
    "explain": EXPLAIN,
}


class _Router:
    """A daemon and its maps; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, object]]] = []
        self.opened: list[str] = []
        self.limits: list[int] = []
        self.rows: list[dict[str, Any]] = FLOWS
        self.read = 0
        self.kept: dict[str, list[dict[str, Any]]] | None = None
        self.client_addrs: list[int | None] = []

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

    def flows(self, limit: int, client_addr: int | None = None) -> Iterator[dict[str, Any]]:
        self.limits.append(limit)
        self.client_addrs.append(client_addr)
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
    """The client's address is handed to the daemon."""
    result = _run(router, "explain", "198.18.0.2:40000")
    assert result.exit_code == 0
    assert router.asked[0][1:] == ("explain", {"client": "198.18.0.2:40000"})
    assert "race won" in result.stdout
    result = _run(router, "explain", "198.18.0.2:40000", "--json")
    assert json.loads(result.stdout) == EXPLAIN


@pytest.mark.parametrize(
    "client",
    [
        *("198.18.0.2", "198.18.0.2:0", "198.18.0.2:65536", "198.18.0:1", "host:80", "1.2.3.400:5"),
        *("198.18.0.2:5/sctp", "198.18.0.2:5/", "198.18.0.2/udp"),
    ],
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
    names = [f"{row['client']}/tcp" for row in FLOWS]
    router.kept = dict(zip(names, (won, won, others), strict=True))
    router.kept[f"{joined['client']}/udp"] = won
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


@pytest.mark.parametrize(
    ("value", "addr"),
    [
        ("198.18.0.2", parse_addr("198.18.0.2")),
        ("198.18.0.2:40001", parse_addr("198.18.0.2")),
        ("[2001:DB8:0::5]:4711", parse_addr("2001:db8::5")),
        ("[2001:db8::5]", parse_addr("2001:db8::5")),
        ("2001:db8::5:80", parse_addr("2001:db8::5:80")),
    ],
)
def test_only_the_clients_entries_are_decoded(router: _Router, value: str, addr: int) -> None:
    """In a flood that is one of a million: the maps are asked for the address."""
    _run(router, "flows", "--client", value)
    _run(router, "flows")
    assert router.client_addrs == [addr, None]


FLOW6 = {
    **FLOWS[0],
    "client": "[2001:db8::5]:4711",
    "backend_address": "[2001:db8:0:1::2]:8080",
}


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--client", "2001:db8::5", True),
        ("--client", "[2001:db8::5]", True),
        ("--client", "[2001:DB8:0::5]:4711", True),
        ("--client", "[2001:db8::5]:471", False),
        ("--client", "2001:db8::55", False),
        ("--client", "2001:db8::", False),
        ("--backend", "2001:db8:0:1::2", True),
        ("--backend", "[2001:db8:0:1:0::2]:8080", True),
        ("--backend", "2001:db8::2", False),
        ("--backend", "b1", True),
    ],
)
def test_filters_of_ipv6_flows(router: _Router, option: str, value: str, found: bool) -> None:
    """An address is the same in each of its forms, with brackets or, without a port, none."""
    router.rows = [FLOW6]
    result = _run(router, "flows", "--json", option, value)
    assert json.loads(result.stdout) == ([FLOW6] if found else [])


def test_explain_of_an_ipv6_client(router: _Router) -> None:
    """The daemon is asked for the client in the form that flows show."""
    result = _run(router, "explain", "[2001:0DB8::5]:4711")
    assert result.exit_code == 0
    assert router.asked[0][1:] == ("explain", {"client": "[2001:db8::5]:4711"})
    result = _run(router, "explain", "[2001:0DB8::5]:4711/udp")
    assert router.asked[-1][1:] == ("explain", {"client": "[2001:db8::5]:4711/udp"})
    assert "in brackets" in _run(router, "explain", "2001:db8::5:4711").stderr


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
        "    def flows(self, limit, client_addr):\n"
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


DRAINED = {
    "backend": "b1",
    "service": "web",
    "draining": True,
    "changed": True,
    "warning": "nobody is left",
}


class _Drains(_Router):
    """Its backend has so many flows less each time that it is asked."""

    def __init__(self, *flows: int, draining: bool = True) -> None:
        super().__init__()
        self.left = list(flows)
        self.draining = draining

    def ask(self, control: str, command: str, args: dict[str, object]) -> Any:
        self.asked.append((control, command, args))
        if command == "backend_flows":
            return {"backend": "b1", "draining": self.draining, "flows": self.left.pop(0)}
        return {**DRAINED, "draining": command == "drain"}


def test_drain_and_undrain_say_what_they_did() -> None:
    """The daemon's warning goes to stderr, and with --json into the answer alone."""
    router = _Drains()
    result = _run(router, "drain", "b1")
    assert (result.exit_code, result.stdout) == (0, "b1 (web): draining\n")
    assert result.stderr == "Warning: nobody is left\n"
    result = _run(router, "undrain", "b1")
    assert result.stdout == "b1 (web): taking new flows\n"
    result = _run(router, "drain", "b1", "--json")
    assert json.loads(result.stdout) == DRAINED
    assert [command for _, command, _ in router.asked] == ["drain", "undrain", "drain"]


def test_drain_waits_for_the_last_flow() -> None:
    """Done when there is none; a timeout, or somebody who undrains, is exit code 1."""
    result = _run(_Drains(2, 0), "drain", "b1", "--wait", "--json")
    assert (result.exit_code, json.loads(result.stdout)["flows"]) == (0, 0)
    result = _run(_Drains(1), "drain", "b1", "--wait", "--timeout", "0")
    assert result.exit_code == 1
    assert "b1 still has 1 flow after 0 s, and goes on draining" in result.stderr
    result = _run(_Drains(3, draining=False), "drain", "b1", "--wait")
    assert result.exit_code == 1
    assert "b1 was undrained meanwhile, and has 3 flows" in result.stderr


LINES = {"changes": [{"text": "~ backend b1 of web: weight 1 -> 3"}], "applied": True}


class _Changes(_Router):
    """It says what it was asked to change."""

    def ask(self, control: str, command: str, args: dict[str, object]) -> Any:
        self.asked.append((control, command, args))
        return {
            **LINES,
            "applied": not args["dry_run"],
            "saved": "/r.toml" if "save" in args else "",
        }


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (
            "service add 198.18.100.1:53/udp --backend 198.18.1.2:53,name=b9,weight=2 probe=icmp",
            {
                "verb": "add",
                "keys": {"address": "198.18.100.1:53", "protocol": "udp", "probe": "icmp"},
                "backends": [{"address": "198.18.1.2:53", "name": "b9", "weight": 2}],
            },
        ),
        (
            "service set web deadline=9ms fallback=",
            {"verb": "set", "name": "web", "keys": {"deadline": "9ms", "fallback": None}},
        ),
        ("service remove web", {"verb": "remove", "name": "web"}),
        (
            "backend add web 198.18.1.4:80 weight=2",
            {"verb": "add", "name": "web", "keys": {"address": "198.18.1.4:80", "weight": 2}},
        ),
        ("backend set b1 weight=3", {"verb": "set", "name": "b1", "keys": {"weight": 3}}),
        ("backend remove b1", {"verb": "remove", "name": "b1"}),
    ],
)
def test_edits_are_asked_for(words: str, args: dict[str, object]) -> None:
    """With values as the file has them; what the daemon says has changed is printed."""
    router = _Changes()
    result = _run(router, *words.split(), "--save")
    assert result.exit_code == 0, result.output
    assert result.stdout == "~ backend b1 of web: weight 1 -> 3\nWritten to /r.toml.\n"
    ((_, command, asked),) = router.asked
    assert command == words.split()[0]
    assert asked == {**args, "save": True, "dry_run": False}
    result = _run(router, *words.split(), "--json")
    assert json.loads(result.stdout)["changes"] == LINES["changes"]


def test_wrong_words_are_usage_errors() -> None:
    """Exit code 2, what was expected, and nothing is asked."""
    router = _Changes()
    for words in ("backend set b1", "backend set b1 weight", "service add 198.18.100.1:80"):
        result = _run(router, *words.split())
        assert result.exit_code == 2
        assert "expected KEY=VALUE" in result.stderr or "Missing" in result.stderr
    assert not router.asked


def test_reload_prints_what_differs() -> None:
    """Or that nothing does; a dry run says that it was one."""
    router = _Changes()
    assert _run(router, "reload").stdout == "~ backend b1 of web: weight 1 -> 3\n"
    result = _run(router, "reload", "--dry-run")
    assert result.stdout.endswith("\nNothing was changed: this was a dry run.\n")
    assert [args for _, _, args in router.asked] == [{"dry_run": False}, {"dry_run": True}]


def test_what_follows_from_a_change_is_a_warning() -> None:
    """On standard error, beside what has changed; the change is made all the same."""
    warned = {**LINES, "warnings": ["backend b9 of web is down: no route to 198.19.77.9"]}
    router = _Router()
    result = CliRunner().invoke(
        main, ["reload"], obj=Context(ask_daemon=lambda *_: warned, open_pins=router.open)
    )
    assert result.exit_code == 0
    assert result.stdout == "~ backend b1 of web: weight 1 -> 3\n"
    assert result.stderr == "Warning: backend b9 of web is down: no route to 198.19.77.9\n"
