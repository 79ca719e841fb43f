# SPDX-License-Identifier: Apache-2.0
"""``service`` and ``backend``: ``add``, ``set``, ``remove``, beside streams that verify bytes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.clients import who, who_answers
from tests.support.netns import wait_for
from tests.support.restart_traffic import RestartTraffic
from tests.support.router import Finished, Router, calm_config
from tests.support.stopped_router import SPEC

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

CONFIG = "# all of it\n" + calm_config(SPEC, fallback="b2").replace('"b1"', '"b1" # the first')


@pytest.fixture(scope="module")
def running(place: Router) -> Iterator[Router]:
    """One router under traffic for all; each test begins with CONFIG."""
    place.start(CONFIG, "--persist")
    with RestartTraffic(place, 50, 40) as traffic:
        yield place
        traffic.wait_for_more(10)
    place.stop()
    place.close()
    assert not place.left_behind()


@pytest.fixture(autouse=True)
def as_it_was(running: Router) -> None:
    running.config.write_text(CONFIG)
    assert running.cli("reload").returncode == 0
    wait_for(lambda: running.ask("status")["backends_up"] == 2, message="both are up")


def good(done: Finished) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def weights(router: Router) -> dict[str, int]:
    return {row["name"]: row["weight"] for row in router.json("backends")}


def test_edits_last_until_the_next_start(running: Router) -> None:
    """As in ipvsadm: the file is as it was, and a daemon that is started again goes by it."""
    assert good(running.cli("backend", "set", "b1", "weight=7")) == [
        "~ backend b1 of web: weight 1 -> 7"
    ]
    tried = good(running.cli("backend", "set", "b1", "weight=9", "--dry-run", "--save"))
    assert tried[-1] == "Nothing was changed: this was a dry run."
    done = running.cli("backend", "remove", "b2")
    assert done.returncode == 1
    assert "service.fallback: found 'b2', expected a backend of this service" in done.stderr
    assert good(running.cli("service", "set", "web", "fallback=", "deadline=2s")) == [
        "~ service web: fallback b2 -> none, deadline 1s -> 2s"
    ]
    good(running.cli("backend", "remove", "b2"))
    assert weights(running) == {"b1": 7}
    assert {who_answers(running) for _ in range(10)} == {"b1"}
    done = running.cli("backend", "remove", "b1")
    assert "b1 is the only backend of service web" in done.stderr
    assert running.config.read_text() == CONFIG
    running.stop(signal.SIGKILL)
    running.start(CONFIG, "--persist")
    assert weights(running) == {"b1": 1, "b2": 1}


def test_what_is_saved_is_there_after_the_next_start(running: Router) -> None:
    """With the file's comments; the edits of another hand are never overwritten."""
    good(running.cli("backend", "set", "b1", "weight=7"))
    lines = good(running.cli("backend", "set", "b2", "weight=3", "--save"))
    assert lines == ["~ backend b2 of web: weight 1 -> 3", f"Written to {running.config}."]
    saved = running.config.read_text()
    assert saved.startswith("# all of it\n")
    assert '"b1" # the first' in saved
    assert weights(running) == {"b1": 7, "b2": 3}
    running.config.write_text(f"{saved}# by hand\n")
    done = running.cli("backend", "set", "b2", "weight=4", "--save")
    assert done.returncode == 1
    assert "was edited since it was read, and is not overwritten: reload it first" in done.stderr
    assert running.config.read_text() == f"{saved}# by hand\n"
    assert weights(running) == {"b1": 7, "b2": 3}
    assert good(running.cli("reload")) == ["~ backend b1 of web: weight 7 -> 1"]
    good(running.cli("backend", "set", "b2", "weight=4", "--save"))
    running.stop(signal.SIGKILL)
    running.start(running.config.read_text(), "--persist")
    assert weights(running) == {"b1": 1, "b2": 4}


def test_a_service_is_added_and_removed(running: Router) -> None:
    """It takes connections at once; what is wrong is told, and changes nothing."""
    address = f"{running.service[0]}:81"
    server = running.json("backends")[0]["address"]
    add = ("service", "add", address, "--backend", f"{server},name=a1", "name=api")
    assert good(running.cli(*add))[0].startswith(f"+ service api: address {address}, protocol tcp")
    with running.lab.client.connect((running.service[0], 81)) as peer:
        assert who(peer) == "b1"
    done = running.cli(*add)
    assert done.returncode == 1
    assert f"found {address}, the address of service 'api' as well" in done.stderr
    assert good(running.cli("backend", "add", "api", server.replace(":8", ":9"), "name=a2"))[
        0
    ].startswith("+ backend a2 of api")
    nowhere = ("backend", "add", "api", "198.19.77.9:80", "name=a3")
    for more in (("--dry-run",), ()):
        done = running.cli(*nowhere, *more)
        assert done.returncode == 0
        assert done.stderr == "Warning: backend a3 of api is down: no route to 198.19.77.9\n"
    good(running.cli("backend", "set", "a3", "weight=2"))  # told once
    good(running.cli("backend", "remove", "a3"))
    done = running.cli("service", "remove", "api", "--save")
    assert "no service is called 'api'; there are web: what was changed without --save is not" in (
        done.stderr
    )
    assert good(running.cli("service", "remove", "api"))[-1].startswith("- service api")
    assert [row["name"] for row in running.json("services")] == ["web"]
    dns = (f"{running.service[0]}:53/udp", "--backend", server.replace(":8080", ":53,name=u1"))
    done = running.cli("service", "add", *dns, "name=dns")
    assert done.returncode == 1
    assert "service.probe: found none, and UDP has no answer that all servers give" in done.stderr
    good(running.cli("service", "add", *dns, "name=dns", "probe=icmp"))
    (row,) = (each for each in running.json("backends") if each["name"] == "u1")
    assert (row["up"], row["probe"]) == (True, "icmp")
