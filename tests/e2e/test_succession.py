# SPDX-License-Identifier: Apache-2.0
"""A daemon that was taken for gone, and wakes up when another one is at work."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.clients import stream_to, who_answers
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config
from tests.support.stopped_router import IN_BOTH_MODES, SPEC, reserved_ports
from xdp_router.adapters.dataplane import find_instances

from .test_interfaces import delete, rewire

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

pytestmark = IN_BOTH_MODES

NAMES = ("b1", "b2")


def pins(router: Router) -> set[str]:
    """Names of the pins that are there."""
    return {pin.name for found in find_instances(router.pins) for pin in found.path.iterdir()}


@pytest.mark.parametrize("end", ["by itself", "by a signal"])
def test_a_daemon_that_wakes_up_leaves_its_successor_alone(
    router: Router, place: Router, tmp_path: Path, end: str
) -> None:
    """Pins, ports and packets are the successor's; the old one says why it ends, with 1."""
    router.start()
    old, log = router._process, router.log
    assert old is not None
    os.kill(old.pid, signal.SIGSTOP)
    wait_for(lambda: router.routerd("detach", "client0").returncode == 0, 10, "detach")
    successor = Router(router.lab, tmp_path, router.pins.parent)
    successor.pins = router.pins
    try:
        successor.start(calm_config(SPEC))
        before = pins(successor)
        if end == "by a signal":
            old.send_signal(signal.SIGTERM)
        os.kill(old.pid, signal.SIGCONT)
        code = old.wait(5)
        assert code == 1 if end == "by itself" else code in (0, 1)
        if end == "by itself":
            assert "pins" in log.read_text().splitlines()[-1]
            assert "Error: " in log.read_text().splitlines()[-1]
            assert [line["level"] for line in router.events("data_plane_lost")] == ["error"]
        assert pins(successor) == before
        assert reserved_ports(successor) == "61000-61999"
        assert successor.ask("status")["ready"] is True
        assert all(who_answers(successor) in NAMES for _ in range(3))
        assert successor.stop(signal.SIGKILL) == -signal.SIGKILL
        assert who_answers(successor, timeout=10) in NAMES, "its links were not pinned any more"
    finally:
        successor.close()
    assert not successor.left_behind()


def test_an_interface_made_anew_is_the_successors(router: Router, tmp_path: Path) -> None:
    """It wakes up to an interface that it should attach again, even with --replace: it is taken."""
    router.start(None, "--replace")
    old = router._process
    assert old is not None
    os.kill(old.pid, signal.SIGSTOP)
    time.sleep(1.1)  # then it is taken for gone
    successor = Router(router.lab, tmp_path, router.pins.parent)
    successor.pins, successor.xdp_mode = router.pins, router.xdp_mode
    try:
        successor.start(calm_config(SPEC))
        assert successor.events("adopted")
        delete(router.lab, "be1")
        rewire(router.lab, "be1")
        wait_for(lambda: successor.events("interface_back"), 5, "attached again")
        program = successor.links()["be1"].xdp_prog_id
        os.kill(old.pid, signal.SIGCONT)
        assert old.wait(5) == 1
        assert successor.links()["be1"].xdp_prog_id == program
        assert [line["interface"] for line in router.events("interface_not_attached")] == []
        time.sleep(1.1)  # it looks twice a second at what is its own
        assert successor.ask("status")["ready"] is True
        stream_to(successor, "b1").close()
    finally:
        successor.close()
    assert not successor.left_behind()


def test_a_program_that_somebody_took_off_is_noticed(router: Router, tmp_path: Path) -> None:
    """Another router with --replace and pins of its own: the first ends within two seconds."""
    router.start()
    other = Router(router.lab, tmp_path, router.pins.parent)
    other.pins = router.pins.with_name("other")
    try:
        other.start(calm_config(SPEC), "--replace")
        assert router._process is not None
        assert router._process.wait(2) == 1
        last = router.log.read_text().splitlines()[-1]
        assert "client0: somebody has detached this router's program" in last
        assert all(who_answers(other) in NAMES for _ in range(3))
        assert other.stop() == 0
    finally:
        other.close()
