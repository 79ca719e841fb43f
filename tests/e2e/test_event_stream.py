# SPDX-License-Identifier: Apache-2.0
"""Looking on while things happen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.support.clients import connect, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.links import with_netlink

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2", delay_ns=3_000_000)))
CLI = [sys.executable, "-m", "xdp_router.cli.main"]


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    with routed_lab(private_mounts, SPEC, calm_config(SPEC)) as started:
        yield started


class Follower:
    """``xdp-router events --follow`` in a process of its own, and what it has said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = b""

    def lines(self) -> list[str]:
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                break
            self.said += data
        return self.said.decode().splitlines()

    def events(self, name: str) -> list[dict[str, Any]]:
        found = map(json.loads, self.lines())
        return [each for each in found if each["event"] == name]


@contextlib.contextmanager
def follower(router: Router, *options: str) -> Iterator[Follower]:
    argv = [*CLI, "--control", str(router.control), "events", "--follow", *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


def followed(router: Router) -> bool:
    return bool(router.ask("status")["event_readers"])


def switch(router: Router, state: str) -> None:
    """The interface that b1 is reached by."""

    def change(netlink: IPRoute) -> None:
        netlink.link("set", index=netlink.link_lookup(ifname="be1")[0], state=state)

    with_netlink(router.lab.router, change)


def test_what_happens_is_seen_as_it_happens(router: Router) -> None:
    """A decision, in full; an interface that goes down and comes back, and what that means."""
    with follower(router, "--json") as seen:
        wait_for(lambda: followed(router), 30, "it follows")
        with connect(router) as peer:
            name = who(peer)
            client = "{}:{}".format(*peer.getsockname())
            wait_for(lambda: seen.events("decision"), 10, "the decision is told")
        (told,) = seen.events("decision")
        assert (told["client"], told["backend"], told["service"]) == (client, name, "web")
        assert told["mode"] == "race"
        switch(router, "down")
        wait_for(lambda: seen.events("backend_down"), 10, "the backend is down")
        switch(router, "up")
        wait_for(lambda: seen.events("backend_up"), 20, "the backend is up")
        assert seen.events("backend_down")[0]["backend"] == "b1"
        assert seen.events("interface_changed")
        assert router.cli("drain", "b2").returncode == 0
        wait_for(lambda: seen.events("backend_draining"), 10, "the drain is told")
        assert router.cli("undrain", "b2").returncode == 0
        router.config.write_text(router.config.read_text().replace("weight = 1", "weight = 2"))
        assert router.cli("reload").returncode == 0
        wait_for(lambda: seen.events("reconfigured"), 10, "the reload is told")
        seen.process.send_signal(signal.SIGINT)
        assert seen.process.wait(20) == 0
    wait_for(lambda: not followed(router), 10, "the daemon has let it go")


def test_the_newest_are_kept(router: Router) -> None:
    """Without --follow: those that are kept, as lines; only some names, only so many."""
    with connect(router) as peer:
        who(peer)
    lines = router.cli("events", "--limit", "1", "--event", "decision").stdout.splitlines()
    assert len(lines) == 1
    assert " decision  client=198.18.0." in lines[0]
    shown = router.cli("events", "--json").stdout.splitlines()
    assert {"ready", "decision"} <= {json.loads(line)["event"] for line in shown}


def test_a_daemon_that_is_stopped_ends_it(router: Router) -> None:
    """With a text that says so, and exit code 1. Then it is there again."""
    with follower(router) as seen:
        wait_for(lambda: followed(router), 30, "it follows")
        assert router.stop() == 0
        assert seen.process.wait(30) == 1
        assert seen.process.stderr is not None
        assert b"has ended the stream" in seen.process.stderr.read()
    router.start(calm_config(SPEC))


def test_a_reader_that_sleeps_harms_nobody(router: Router) -> None:
    """It is cut off; connections are decided meanwhile as ever."""
    with follower(router, "--json") as seen:
        wait_for(lambda: followed(router), 30, "it follows")
        seen.process.send_signal(signal.SIGSTOP)
        for _ in range(20):
            with connect(router) as peer:
                who(peer)
        assert router.ask("status")["ready"]
        seen.process.send_signal(signal.SIGCONT)
        wait_for(lambda: len(seen.events("decision")) == 20, 10, "it has them after all")
