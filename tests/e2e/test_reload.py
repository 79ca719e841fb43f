# SPDX-License-Identifier: Apache-2.0
"""The configuration changes while streams run that verify every byte: none of them notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.clients import connect, receive, stream_to, who, who_answers
from tests.support.netns import wait_for
from tests.support.restart_traffic import RestartTraffic
from tests.support.router import Router, calm_config
from tests.support.stopped_router import SPEC

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

STREAMS = 50
LOSSES = ("no_path", "tail_call_missed", "orphan_reset", "orphan_dropped", "refused_no_backend")
QUICK = 'closed_linger = "1s"\npending_idle = "1s"'
CONFIG = calm_config(SPEC, QUICK, fallback="b2")
B1, B2 = (f"[[service.backend]]{each}" for each in CONFIG.split("[[service.backend]]")[1:])


@dataclass
class Running:
    """A router under traffic; ``text``: what its file says."""

    router: Router
    traffic: RestartTraffic

    def write(self, text: str) -> None:
        """Change the file."""
        self.router.config.write_text(text)

    def reload(self, text: str) -> list[str]:
        """Change the file, reload; what was printed."""
        self.write(text)
        done = self.router.cli("reload")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def running(place: Router) -> Iterator[Running]:
    """One router, and its traffic, for all; each test begins, and ends, with CONFIG."""
    place.start(CONFIG)
    with RestartTraffic(place, STREAMS, 40) as traffic:
        yield Running(place, traffic)
        traffic.wait_for_more(10)
    counters = place.counters()
    assert {name: counters[name] for name in LOSSES} == dict.fromkeys(LOSSES, 0)
    place.close()
    assert not place.left_behind()


@pytest.fixture(autouse=True)
def as_it_was(running: Running) -> Iterator[None]:
    """All streams get on before the test and after it."""
    assert running.reload(CONFIG) in ([], ["Nothing differs from what runs."])
    yield
    running.traffic.wait_for_more(10)
    running.reload(CONFIG)
    wait_for(lambda: running.router.ask("status")["backends_up"] == 2, message="all are up")
    running.traffic.wait_for_more(10)


def test_a_dry_run_changes_nothing(running: Running) -> None:
    """It prints what would be."""
    router = running.router
    running.write(CONFIG.replace(B1, B1.replace("weight = 1", "weight = 7")))
    done = router.cli("reload", "--dry-run")
    assert done.stdout == (
        "~ backend b1 of web: weight 1 -> 7\nNothing was changed: this was a dry run.\n"
    )
    assert [row["weight"] for row in router.json("backends")] == [1, 1]


def test_weights_and_settings(running: Running) -> None:
    """They are as the file says, at once, and a second time nothing differs."""
    text = CONFIG.replace(B1, B1.replace("weight = 1", "weight = 7"))
    text = text.replace('"1s"\n', '"1s"\ncoalesce_window = "5ms"\n', 1)
    assert running.reload(text) == [
        "~ coalesce_window 2ms -> 5ms",
        "~ backend b1 of web: weight 1 -> 7",
    ]
    assert [row["weight"] for row in running.router.json("backends")] == [7, 1]
    assert running.reload(text) == ["Nothing differs from what runs."]


def test_a_backend_goes_and_comes_back(running: Running) -> None:
    """Its streams go on without it in the file, and it gets no new flow until it is back."""
    router = running.router
    kept = stream_to(router, "b1")
    assert running.reload(CONFIG.replace(B1, "")) == [
        "- backend b1 of web: its connections go on until they end"
    ]
    assert {who_answers(router) for _ in range(20)} == {"b2"}
    running.traffic.wait_for_more(20)
    kept.sendall(b"still there")
    assert receive(kept, 11) == b"still there"
    flow = router.flow(kept.getsockname())
    assert flow is not None
    assert flow["backend"] == "b1"
    (added,) = running.reload(CONFIG)
    assert added.startswith("+ backend b1 of web: address 198.19.1.2:")
    stream_to(router, "b1").close()
    kept.sendall(b"still there")
    assert receive(kept, 11) == b"still there"
    kept.close()


def test_a_backend_is_forgotten_after_its_last_flow(running: Running) -> None:
    """Its place is free then, and the log says so."""
    router = running.router
    other = B1.replace('"b1"', '"b3"').replace("198.19.1.2", "198.19.2.2").replace(":8080", ":9")
    running.reload(CONFIG + other)
    (b3,) = (row for row in router.json("backends") if row["name"] == "b3")
    assert b3["up"]
    running.reload(CONFIG)
    retired = [line["backend"] for line in router.events("backend_retired")]
    assert "b3" not in retired
    wait_for(
        lambda: "b3" in [line["backend"] for line in router.events("backend_retired")],
        20,
        "b3 retires",
    )


def test_a_service_comes_and_goes(running: Running) -> None:
    """A new one takes connections; removed, it takes none, and those that it has go on."""
    router = running.router
    api = CONFIG[CONFIG.index("[[service]]") :].replace('"web"', '"api"').replace(':80"', ':81"')
    api = api.replace('"b1"', '"a1"').replace('"b2"', '"a2"')
    lines = running.reload(CONFIG + api)
    assert [line.split(":")[0] for line in lines] == [
        "+ service api",
        "+ backend a1 of api",
        "+ backend a2 of api",
    ]
    address = (router.service[0], 81)
    peer = router.lab.client.connect(address)
    assert who(peer) in ("b1", "b2")
    assert [row["name"] for row in router.json("services")] == ["web", "api"]
    lines = running.reload(CONFIG)
    assert lines[-1] == "- service api: its connections go on until they end"
    with pytest.raises(OSError, match="refused|unreachable|timed out"):
        router.lab.client.connect(address)
    peer.sendall(b"still there")
    assert receive(peer, 11) == b"still there"
    peer.close()


def test_a_service_is_forwarded_otherwise(running: Running) -> None:
    """New flows go by the other method, those that are there by the old one, and back."""
    router = running.router
    with connect(router) as before:
        who(before)
        text = CONFIG.replace('forwarding = "nat"', 'forwarding = "fullnat"')
        assert running.reload(text) == ["~ service web: forwarding nat -> fullnat"]
        with connect(router) as after:
            who(after)
            flow = router.flow(after.getsockname())
            assert flow is not None
            assert flow["source_address"]
            flow = router.flow(before.getsockname())
            assert flow is not None
            assert not flow["source_address"]
            running.reload(CONFIG)
            for peer in (before, after):
                peer.sendall(b"still there")
                assert receive(peer, 11) == b"still there"


def test_a_broken_file_changes_nothing(running: Running) -> None:
    """SIGHUP logs each problem with its line; the command prints it, exit code 1."""
    router = running.router
    broken = CONFIG.replace("weight = 1", "weight = 0", 1)
    running.write(broken)
    line = broken[: broken.index("weight = 0")].count("\n") + 1
    done = router.cli("reload")
    assert done.returncode == 1
    assert f"{router.config}:{line}: service.backend.weight: found 0" in done.stderr
    before = len(router.events("reload_refused"))
    os.kill(router.pid, signal.SIGHUP)
    wait_for(lambda: len(router.events("reload_refused")) > before, message="the log line")
    refused = router.events("reload_refused")[-1]
    assert f":{line}: service.backend.weight" in refused["reason"]
    assert refused["consequence"] == "nothing has changed"


def test_what_cannot_change_is_refused_as_a_whole(running: Running) -> None:
    """All of it is named, with the mend, and the weight beside it stays as it was."""
    router = running.router
    text = CONFIG.replace(B1, B1.replace("weight = 1", "weight = 7"))
    text = text.replace('"1s"\n', '"1s"\nmax_flows = 1000\nprobe_ports = "62000-62999"\n', 1)
    running.write(text)
    done = router.cli("reload")
    assert done.returncode == 1
    assert "nothing was changed: max_flows 500000 -> 1000: tables keep their size" in done.stderr
    assert "probe_ports 61000-61999 -> 62000-62999: restart the daemon" in done.stderr
    assert [row["weight"] for row in router.json("backends")] == [1, 1]


def test_sighup_reads_the_file_again(running: Running) -> None:
    """As reload does; the log has the changes."""
    router = running.router
    running.write(CONFIG.replace(B2, B2.replace("weight = 1", "weight = 9")))
    os.kill(router.pid, signal.SIGHUP)
    wait_for(
        lambda: [row["weight"] for row in router.json("backends")] == [1, 9], message="weights"
    )
    assert router.events("reconfigured")[-1]["changes"] == ["~ backend b2 of web: weight 1 -> 9"]
