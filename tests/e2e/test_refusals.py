# SPDX-License-Identifier: Apache-2.0
"""When the daemon must not start: each time a message with cause and mend, and an exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf_programs import trivial_program
from tests.support.clients import who_answers
from tests.support.netns import running_lab
from tests.support.router import Finished, Router, drop_privileges_argv, routed_lab, router_in
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2")))
ALL = ("client0", "be1", "be2")


@pytest.fixture(scope="module")
def place(private_mounts: Path) -> Iterator[Router]:
    """A lab whose router is never started by the tests that share it."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as router:
        router.config.write_text(SPEC.config_toml())
        yield router


@pytest.fixture(scope="module")
def running(private_mounts: Path) -> Iterator[Router]:
    """A router that is attached."""
    with routed_lab(private_mounts, SPEC) as router:
        yield router


def refused(done: Finished, *words: str, code: int = 1) -> None:
    """A refusal: the exit code, one error on stderr with these words, no traceback."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    missing = [word for word in words if word not in done.stderr]
    assert not missing, f"{missing} not in: {done.stderr}"


def good(place: Router) -> tuple[str, str]:
    """Options that name a good configuration."""
    return ("--config", str(place.config))


def test_no_such_interface(place: Router) -> None:
    """An interface that is not there: the message names those that are."""
    done = place.attach_in_vain(["client0", "eth7"], *good(place))
    refused(done, "interface eth7 does not exist", "client0", "be1", "be2")
    assert not place.left_behind()


def test_not_ethernet(place: Router) -> None:
    """An interface without Ethernet frames can't take part."""
    done = place.attach_in_vain(["lo", *ALL], *good(place))
    refused(done, "lo is not an Ethernet interface")


def test_not_root(place: Router) -> None:
    """Without root nothing is tried, and the message says sudo."""
    address, port = SPEC.addresses.service
    args = ["attach", *ALL, "--service", f"{address}:{port}/tcp", "--backend", "198.19.1.2:8080"]
    done = place.run(drop_privileges_argv("xdp_router.daemon.main", args))
    refused(done, "attaching XDP needs root: sudo xdp-routerd attach")


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ('mode = "race"', 'mode = "rce"', (":5:", "mode", "'rce'", "expected 'race'")),
        ('mode = "race"', "probe_interval = 10", (":5:", "probe_interval", "duration")),
        ('fallback = "b1"', 'fallback = "b9"', (":7:", "fallback", "'b9'", "'b1', 'b2'")),
        ('deadline = "50ms"', "deadline = 50", (":8:", "deadline", '"50ms"')),
        ('protocol = "tcp"', 'protocoll = "tcp"', (":4:", "protocoll", "unknown key", "protocol")),
        (
            '[[service.backend]]\nname = "b2"',
            '[[service.backend]\nname = "b2"',
            ("not valid TOML",),
        ),
    ],
)
def test_wrong_configuration(place: Router, line: str, wrong: str, words: tuple[str, ...]) -> None:
    """Exit code 2 for attach and check alike; the message has file, line, key and expectation."""
    text = SPEC.config_toml()
    assert line in text
    file = place.directory / "wrong.toml"
    file.write_text(text.replace(line, wrong))
    for done in (
        place.attach_in_vain(ALL, "--config", str(file)),
        place.routerd("check", str(file), pins=False),
    ):
        refused(done, str(file), *words, code=2)


def test_missing_configuration(place: Router) -> None:
    """No file, or no services at all, is exit code 2 as well."""
    done = place.attach_in_vain(ALL, "--config", str(place.directory / "none.toml"))
    refused(done, "none.toml", "cannot be read", code=2)
    refused(place.attach_in_vain(ALL), "nothing to route", "--config FILE", code=2)


def test_backend_behind_an_interface_that_is_not_attached(place: Router) -> None:
    """Replies would return untranslated: the message names backend and interface."""
    done = place.attach_in_vain(["client0", "be1"], *good(place))
    refused(done, "b2", "be2")
    assert not place.left_behind()


def test_pins_must_be_on_bpffs(place: Router) -> None:
    """A pin directory on another file system: the message has the mount command."""
    pins = place.directory / "pins"
    done = place.attach_in_vain(ALL, *good(place), "--pins", str(pins))
    refused(done, "is not on a BPF file system", "mount -t bpf bpf")
    assert not place.left_behind()


def test_other_program_is_respected_unless_told(place: Router) -> None:
    """Another XDP program is named by its id and kept; --replace takes its place."""
    prog = trivial_program("somebody")
    link = place.lab.router.run(
        lambda: bpf.link_create(prog, place.links()["be2"].ifindex, bpf.XDP_FLAGS_DRV_MODE)
    )
    try:
        other = place.links()["be2"].xdp_prog_id
        done = place.attach_in_vain(ALL, *good(place))
        refused(done, "be2: another XDP program is attached", f"id {other}", "--replace")
        assert place.links()["be2"].xdp_prog_id == other
        assert place.links()["client0"].xdp_prog_id == 0
        place.start(None, "--replace")
        assert place.links()["be2"].xdp_prog_id == place.ask("status")["xdp_program_id"]
        assert who_answers(place) in ("b1", "b2")
        assert place.stop() == 0
    finally:
        os.close(link)
        os.close(prog)
    assert not place.left_behind()


def test_second_daemon_on_the_same_interfaces(running: Router) -> None:
    """A second daemon refuses, even with --replace, and the first one is not disturbed."""
    mine = running.ask("status")["xdp_program_id"]
    other = ("--control", str(running.directory / "second.sock"))
    for options in (other, (*other, "--replace"), ()):
        done = running.attach_in_vain(["be2", "client0", "be1"], *good(running), *options)
        refused(done, "be2 already has a data plane of a running daemon", "stop that daemon first")
        assert "--replace" not in done.stderr
    assert {link.xdp_prog_id for link in running.links().values()} == {mine}
    assert who_answers(running) in ("b1", "b2")


def test_detach_leaves_a_running_daemon_alone(running: Router) -> None:
    """detach is for daemons that are gone; the other refusal is for interfaces without any."""
    refused(running.routerd("detach", "client0"), "client0: its daemon is running", "SIGTERM")
    refused(running.routerd("detach", "eth7"), "eth7: no data plane", "client0+be1+be2")
    assert who_answers(running) in ("b1", "b2")


def test_control_socket_in_use(running: Router, place: Router) -> None:
    """Two daemons can't share a control socket: the message names it and the option."""
    taken = ("--control", str(running.control))
    done = place.attach_in_vain(ALL, *good(place), *taken)
    refused(done, f"another xdp-routerd listens on {running.control}", "--control")
    assert not place.left_behind()
    assert running.ask("status")["ready"]


def test_two_routers_side_by_side(running: Router, place: Router) -> None:
    """Daemons in different network namespaces do not meet, although names are the same."""
    place.start()
    try:
        for router in (place, running, place):
            before = router.ask("status")["decisions_total"]
            assert who_answers(router) in ("b1", "b2")
            assert router.ask("status")["decisions_total"] == before + 1
        assert place.json("status")["pid"] != running.json("status")["pid"]
        assert len(place.json("flows")) == 2
    finally:
        assert place.stop() == 0
    assert who_answers(running) in ("b1", "b2")
