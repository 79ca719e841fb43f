# SPDX-License-Identifier: Apache-2.0
"""Metrics of a router at work, and what its mode gains over the control arm, as an operator sees
both."""

from __future__ import annotations

import http.client
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.clients import connect, receive, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.core import abi
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.measure.catalogue import METRICS, xdp_counter

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2", delay_ns=30_000_000)))
PORT = 9850
CONNECTIONS = 40
PAYLOAD = 100_000

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def with_arm(metrics: str, percent: int = 50) -> str:
    settings = f'metrics = "{metrics}"\nclosed_linger = "1s"'
    text = calm_config(SPEC, settings)
    return text.replace("[[service]]", f"[[service]]\ncontrol_arm = {percent}", 1)


def get(router: Router, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    """Status, content type, and text."""

    def ask() -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()

    return router.lab.router.run(ask)


def scrape(router: Router) -> Values:
    status, kind, text = get(router)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Values, name: str, **labels: str) -> float:
    return found["xdp_router_" + name, frozenset(labels.items())]


def talk(router: Router) -> str:
    """A connection that carries some data, and ends."""
    with connect(router) as peer:
        name = who(peer)
        peer.sendall(b"x" * PAYLOAD)
        assert len(receive(peer, PAYLOAD)) == PAYLOAD
    return name


def first_bytes(router: Router) -> int:
    """Flows whose first byte is known."""
    arms = web(router)["first_byte"]["arms"].values()
    return sum(int(each["count"]) for each in arms)


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """It has carried so many connections, and all of them are known to be over."""
    with routed_lab(private_mounts, SPEC, with_arm(f"0.0.0.0:{PORT}")) as started:
        for _ in range(CONNECTIONS):
            talk(started)
        wait_for(lambda: first_bytes(started) == CONNECTIONS, 20, "first bytes")
        yield started


def web(router: Router) -> dict[str, Any]:
    found: dict[str, Any] = router.json("services")[0]
    return found


def test_every_metric_that_is_served_is_in_the_catalogue(router: Router) -> None:
    """And the other way round; Prometheus' own parser reads all of it."""
    _, _, text = get(router)
    served = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    wanted = {metric.full_name for metric in METRICS.values()}
    wanted |= {xdp_counter(name).full_name for name in abi.Counter.__members__}
    # Those that need 368 flows of each arm, or a backend that was never asked.
    assert served - wanted == {each for each in served if each.startswith("process_")}
    asked = ("scrapes_total", "scrape_seconds", "score_input")  # see test_scraper
    assert wanted - {METRICS[name].full_name for name in asked} <= served
    assert "process_resident_memory_bytes" in served


def test_traffic_is_counted_to_the_byte(router: Router) -> None:
    """Of live connections and of those that are over: payload and headers, both directions."""

    def carried() -> tuple[float, float, float]:
        found = scrape(router)
        both = [{"service": "web", "backend": name} for name in ("b1", "b2")]
        return (
            sum(value(found, "flows_total", **each) for each in both),
            sum(value(found, "bytes_total", **each, direction="request") for each in both),
            sum(value(found, "flows", **each) for each in both),
        )

    def open_now() -> float:
        found = scrape(router)
        return sum(value(found, "flows_open", service="web", backend=b) for b in ("b1", "b2"))

    wait_for(lambda: carried()[::2] == (CONNECTIONS, 0), 30, "all are aged out")
    flows, octets, _ = carried()
    with connect(router) as peer:
        who(peer)
        peer.sendall(b"x" * PAYLOAD)
        assert len(receive(peer, PAYLOAD)) == PAYLOAD
        wait_for(lambda: carried()[0] == flows + 1, 10, "it is counted while it lives")
        (row,) = [each for each in router.json("flows") if each["state"] == "established"]
        wait_for(lambda: carried()[1] - octets == row["bytes"], 10, "every byte")
        assert row["bytes"] > PAYLOAD
        assert open_now() == 1
    wait_for(lambda: open_now() == 0, 30, "it is not open any more")
    wait_for(lambda: carried()[2] == 0, 30, "it is aged out")
    assert carried()[1] - octets >= row["bytes"]
    counted = scrape(router)
    assert value(counted, "xdp_promoted_total") == CONNECTIONS + 1


def test_decisions_fppl_and_the_field_are_told(router: Router) -> None:
    """By mode and reason; histograms have as many values as there were flows."""
    found = scrape(router)
    decided: Counter[str] = Counter()
    for (name, labels), count in found.items():
        if name == "xdp_router_decisions_total":
            decided[dict(labels)["mode"]] += int(count)
    raced, turns = decided["race"], decided["round_robin"]
    assert raced + turns >= CONNECTIONS
    of_arm = {"service": "web", "mode": "round_robin", "reason": "control_arm"}
    assert value(found, "decisions_total", **of_arm) == turns
    assert min(raced, turns) >= 5
    assert value(found, "fppl_seconds_count", service="web") >= CONNECTIONS
    assert 0 < value(found, "fppl_share_ratio", service="web") <= 1
    assert value(found, "flow_binding_retention_ratio") == 1
    assert 0 < value(found, "probe_overhead_ratio") < 0.01
    assert value(found, "probe_rtt_seconds", service="web", backend="b2") > 0.025
    assert value(found, "loop_late_seconds_count") > 10
    full = {name: value(found, "map_entries", map=name) for name in ("flow_table", "backend_index")}
    assert full["backend_index"] >= 2  # of those that nobody ages
    for name, entries in full.items():
        assert value(found, "map_max_entries", map=name) > entries


def test_the_control_arm_shows_the_gain(router: Router) -> None:
    """Turns go to the slow backend half of the time, races never: p99 is 30 ms better."""
    arms = web(router)["first_byte"]["arms"]
    assert arms["mode"]["decided"] + arms["control"]["decided"] >= CONNECTIONS
    assert arms["control"]["p99_ms"] > 60
    gain = web(router)["first_byte"]["control_arm"]
    assert gain["by"] == "round_robin"
    assert gain["gain_p99_ms"]["estimate"] > 10
    # So few flows have no upper bound of a p99.
    assert gain["gain_p99_ms"]["low"] is None
    assert value(scrape(router), "first_byte_gain_seconds", service="web", bound="estimate") > 0.01


def test_everything_else_is_refused(router: Router) -> None:
    """Another path, another method, something that is no HTTP, a request without an end."""
    assert get(router, "/")[0] == 404
    assert get(router, method="POST")[0] == 405
    assert get(router, method="HEAD") == (200, "text/plain; version=0.0.4; charset=utf-8", "")

    def raw(data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", PORT), timeout=10) as peer:
            peer.sendall(data)
            return peer.recv(100)

    run = router.lab.router.run
    assert b" 400 " in run(lambda: raw(b"hello\r\n\r\n"))
    assert b" 431 " in run(lambda: raw(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 9000))


def test_the_costs_are_in_status_too(router: Router) -> None:
    """The figures of the field that are of the whole router."""
    status = router.json("status")
    assert status["flow_binding_retention"] == 1
    assert 0 < status["probe_overhead"] < 0.01


def test_totals_live_on_when_the_daemon_is_killed(router: Router) -> None:
    """The next one goes on from what its predecessors' flows have carried."""
    labels = {"service": "web", "backend": "b1", "direction": "reply"}
    before = value(scrape(router), "bytes_total", **labels)
    assert before > PAYLOAD
    assert router.stop(signal.SIGKILL) != 0
    router.start(router.config.read_text())

    def go_on() -> bool:
        """Not there until they are known, and never less than before."""
        now = scrape(router).get(("xdp_router_bytes_total", frozenset(labels.items())))
        assert now is None or now >= before
        return now is not None

    wait_for(go_on, 20, "they go on")


def test_a_port_in_use_keeps_the_daemon_from_starting(router: Router) -> None:
    """It says which, and what to do; nothing was changed. (The last test: it stops the router.)"""
    assert router.stop() == 0
    with router.lab.router.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", PORT))
        taken.listen()
        done = router.attach_in_vain(router.lab.router_interfaces, "--config", str(router.config))
    assert done.returncode == 1
    assert f"metrics cannot be served at 0.0.0.0:{PORT}: Address already in use" in done.stderr
    assert "change metrics in [router]" in done.stderr
    assert router.left_behind() == []
