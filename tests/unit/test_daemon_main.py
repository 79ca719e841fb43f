# SPDX-License-Identifier: Apache-2.0
"""``xdp-routerd``: its arguments, messages and exit codes. Nothing is attached here."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from xdp_router.daemon.main import main

GOOD = """
[[service]]
name = "web"
address = "198.18.100.1:80"
[[service.backend]]
name = "b1"
address = "198.19.1.2:8080"
"""
SERVICE = ("--service", "198.18.100.1:80/tcp")
BACKEND = ("--backend", "198.19.1.2:8080")


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_check_accepts_a_good_file(tmp_path: Path) -> None:
    """What is in it is counted."""
    file = tmp_path / "router.toml"
    file.write_text(GOOD)
    done = run("check", str(file))
    assert (done.exit_code, done.output) == (0, f"{file}: good; services: 1, backends: 1\n")


def test_check_accepts_ipv6(tmp_path: Path) -> None:
    """An IPv6 service with its backends is good; one without brackets is told how."""
    file = tmp_path / "router.toml"
    text = (
        '[[service]]\naddress = "[2001:db8::1]:443"\n'
        '[[service.backend]]\naddress = "[2001:db8:1::2]:8443"\n'
    )
    file.write_text(text)
    done = run("check", str(file))
    assert (done.exit_code, done.stderr) == (0, "")
    file.write_text(text.replace("[2001:db8::1]:443", "2001:db8::1:443"))
    done = run("check", str(file))
    assert done.exit_code == 2
    assert "router.toml:2: service.address: " in done.stderr
    assert "[2001:db8::1]:443 is an address with a port" in done.stderr


def test_check_counts_listeners(tmp_path: Path) -> None:
    """Where there are some; a file of listeners alone is good, though nothing can be attached."""
    file = tmp_path / "router.toml"
    listener = (
        '[[listener]]\naddress = "127.0.0.1:80"\ntype = "tls"\n'
        '[[listener.backend]]\naddress = "127.0.0.1:8000"\n'
        '[[listener.backend]]\naddress = "127.0.0.1:8001"\n'
    )
    for text, services in ((GOOD + listener, 1), (listener, 0)):
        file.write_text(text)
        done = run("check", str(file))
        counts = f"services: {services}, backends: {services}; listeners: 1, their backends: 2"
        assert (done.exit_code, done.output) == (0, f"{file}: good; {counts}\n")
    done = run("attach", "eth0", "--config", str(file))
    assert done.exit_code == 2
    assert "service: found none, expected at least one [[service]] (listeners are" in done.output


def test_the_gateway_needs_listeners(tmp_path: Path) -> None:
    """A file without any is refused, and a child without a file."""
    file = tmp_path / "router.toml"
    file.write_text(GOOD)
    done = run("gateway", "--config", str(file), "--control", str(tmp_path / "gw.sock"))
    assert done.exit_code == 1
    assert f"{file}: there is no [[listener]]" in done.output
    done = run("attach", "eth0", *SERVICE, *BACKEND, "--gateway")
    assert done.exit_code == 2
    assert "give --config FILE" in done.output


def test_check_names_file_and_line(tmp_path: Path) -> None:
    """A wrong value is exit code 2, with where it stands and what was expected."""
    file = tmp_path / "router.toml"
    file.write_text(GOOD.replace('"web"', '"web"\nmode = "fastest"'))
    done = run("check", str(file))
    assert done.exit_code == 2
    assert f"Error: {file}:4: service.mode: found 'fastest', expected 'race'" in done.output


@pytest.mark.parametrize("kind", ["missing", "directory", "binary"])
def test_a_file_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    """Named, with the reason; exit code 2."""
    file = tmp_path / "router.toml"
    if kind == "directory":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\xfe")
    done = run("check", str(file))
    assert done.exit_code == 2
    assert str(file) in done.output


def test_check_warns_of_an_interval_that_cannot_be_kept(tmp_path: Path) -> None:
    """The file is good all the same."""
    file = tmp_path / "router.toml"
    file.write_text(
        '[router]\nprobe_rate = 50\n[[service]]\naddress = "198.18.100.1:80"\n'
        'mode = "snapshot"\n[[service.backend]]\naddress = "198.19.1.2:8080"\n'
    )
    done = run("check", str(file))
    assert done.exit_code == 0
    assert "probe_rate allows 50, races included" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("eth0",), "nothing to route: give --config FILE, or --service"),
        (("eth0", *BACKEND, *SERVICE), "198.19.1.2:8080 comes before any --service"),
        (("eth0", "eth1", "eth0", *SERVICE, *BACKEND), "interface named twice: eth0"),
        (("eth0", "--config", "x", *SERVICE, *BACKEND), "exclude each other"),
        ((*SERVICE, *BACKEND), "Missing argument 'IFACE...'"),
        (("eth0", *SERVICE), "backend"),
        (("eth0", "--service", "198.18.100.1:", *BACKEND), "198.18.100.1:"),
        (("eth0", "--service=198.18.100.1:80/sctp", *BACKEND), "'sctp'"),
        (("eth0", "--mode", "fastest", *SERVICE, *BACKEND), "fastest"),
        (("eth0", "--xdp-mode", "offload", *SERVICE, *BACKEND), "offload"),
        (("eth0", "--loader", "llvm", *SERVICE, *BACKEND), "llvm"),
        (("eth0", "--max-flows", "999", *SERVICE, *BACKEND), "999 is not in the range 1000<=x"),
    ],
)
def test_a_wrong_attach_is_a_usage_error(args: tuple[str, ...], words: str) -> None:
    """Exit code 2, and the words that help; nothing was looked at yet."""
    done = run("attach", *args)
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.output.split())


def test_detach_where_nothing_is(tmp_path: Path) -> None:
    """Exit code 1, with the interface and what there is instead."""
    done = run("detach", "eth9", "--pins", str(tmp_path))
    assert done.exit_code == 1
    assert "eth9: no data plane of this router is attached there; attached: none" in done.output


@pytest.mark.parametrize("command", [(), ("attach",), ("detach",), ("check",)])
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    """-h explains, and exits with 0."""
    done = run(*command, "-h")
    assert done.exit_code == 0
    assert "Usage:" in done.output


def test_limits_that_have_no_room_are_told(tmp_path: Path) -> None:
    """What all services share may be less than the sum of what they are allowed: a warning with
    the number that would do; one that is alone beyond it is a mistake, by the option, too."""
    file = tmp_path / "router.toml"
    one = GOOD.replace(':80"', ':80"\nmax_connections = 800', 1)
    two = one.replace("100.1", "100.2").replace('"web"', '"api"').replace('"b1"', '"b2"')
    file.write_text("[router]\nmax_flows = 1000\n" + one)
    assert run("check", str(file)).stderr == ""
    file.write_text("[router]\nmax_flows = 1000\n" + one + two)
    done = run("check", str(file))
    assert done.exit_code == 0
    assert done.stderr.startswith("Warning: max_connections of web (800), api (800) add up")
    assert "max_flows = 1600" in done.stderr
    file.write_text(one.replace("= 800", "= 2000"))
    done = run("attach", "eth0", "--config", str(file), "--max-flows", "1000")
    assert done.exit_code == 2
    assert "found 2000, above --max-flows (1000)" in done.stderr
