# SPDX-License-Identifier: Apache-2.0
"""Backends that are asked for their metrics: real pages, by real HTTP, move real connections."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_metrics import PORT as METRICS_PORT
from tests.e2e.test_metrics import scrape as served
from tests.e2e.test_metrics import value
from tests.support.clients import connect, who, who_answers
from tests.support.metrics_server import Engine, serving
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

NAMES = ("b1", "b2", "b3")
SPEC = LabSpec(tuple(BackendSpec(name) for name in NAMES))
PORT = 9100
SCRAPE = f'\n[service.scrape]\npreset = "vllm"\nport = {PORT}\n'
SCORE = "[service.score]\nrtt = 0.2\nttft = 0\ncache = 0\nqueue = 0.8\n"
PATIENCE_S = 20.0


def config(more: str = SCRAPE + SCORE) -> str:
    settings = f'max_flows = 5_000\nmetrics = "127.0.0.1:{METRICS_PORT}"\n'
    text = calm_config(SPEC, settings, mode="snapshot")
    own = 'probe_interval = "20ms"\nsnapshot_age = "2s"\n'
    return text.replace("[[service]]\n", f"[[service]]\n{own}", 1) + more


class Place:
    """A router and the engines of its backends."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.engines = {name: Engine() for name in NAMES}
        self._servers = {name: contextlib.ExitStack() for name in NAMES}

    def start(self, name: str) -> None:
        namespace = self.router.lab.backends[NAMES.index(name)]
        self._servers[name].enter_context(serving(namespace, PORT, self.engines[name]))

    def stop(self, name: str) -> None:
        self._servers[name].close()

    def row(self, name: str) -> dict[str, Any]:
        """What ``backends`` says."""
        return next(row for row in self.router.json("backends") if row["name"] == name)

    def told(self, name: str, what: str = "queue") -> tuple[float, str]:
        """An input's value, and who has told it."""
        found = self.row(name)["told"].get(what, {"value": -1, "source": ""})
        return found["value"], found["source"]


@pytest.fixture(scope="module")
def place(private_mounts: Path) -> Iterator[Place]:
    with routed_lab(private_mounts, SPEC, config()) as router:
        made = Place(router)
        try:
            for name in NAMES:
                made.engines[name].queue(1, 2)
                made.start(name)
            wait_for(lambda: all(made.told(name) == (3, "scrape") for name in NAMES), PATIENCE_S)
            yield made
        finally:
            for name in NAMES:
                made.stop(name)


def test_a_queue_that_grows_costs_connections(place: Place) -> None:
    """Its backend's share falls, and comes back with it; explain says by whom that was told."""
    router, busy = place.router, place.engines["b1"]
    busy.queue(30, 10)
    wait_for(lambda: place.told("b1") == (40, "scrape"), PATIENCE_S, "its queue is known")
    wait_for(lambda: place.row("b1")["share"] < 0.1, PATIENCE_S, "b1 has few slots")
    assert Counter(who_answers(router) for _ in range(60))["b1"] < 20
    with connect(router) as peer:
        who(peer)
        host, port = peer.getsockname()
        shown = router.json("explain", f"{host}:{port}")
    rows = {row["backend"]: row for row in shown["snapshot"]["backends"]}
    assert (rows["b1"]["queue"], rows["b1"]["terms"]["queue"]) == (40, 0)
    assert rows["b1"]["sources"]["queue"] == "scrape"
    busy.queue(1, 2)
    wait_for(lambda: place.row("b1")["share"] > 0.15, PATIENCE_S, "b1 takes part again")


def test_what_is_counted_becomes_shares_and_means(place: Place) -> None:
    """Of what came between two scrapes; a full cache is told as it is."""
    engine = place.engines["b2"]
    engine.use(0.75)
    engine.serve(100, 25, 0.2)
    wait_for(lambda: place.told("b2", "cache_hit") == (0.25, "scrape"), PATIENCE_S)
    assert place.told("b2", "ttft_ms")[0] == pytest.approx(200, rel=0.01)
    assert place.told("b2", "cache_usage") == (0.75, "scrape")


def test_nobody_is_asked_more_than_once_a_second(place: Place) -> None:
    """Nor does the newest value hide who told it: of a push and a scrape the later one counts."""
    asked = place.engines["b3"].asked
    before = len(asked)
    assert place.router.cli("push", "b3", "--queue", "7").returncode == 0
    wait_for(lambda: len(asked) >= before + 3, PATIENCE_S, "it is asked")
    wait_for(lambda: place.told("b3") == (3, "scrape"), PATIENCE_S)
    # As they arrive: the first one may have been on its way for longer than the last.
    assert asked[-1] - asked[0] > len(asked) - 2


def test_what_backends_say_is_served_on(place: Place) -> None:
    """With whose word it is, and what asking costs."""
    found = served(place.router)
    of = {"service": "web", "backend": "b2"}
    assert value(found, "score_input", **of, input="cache_usage", source="scrape") == 0.75
    assert value(found, "scrapes_total", **of, result="ok") >= 1
    assert value(found, "scrapes_total", **of, result="failed") >= 0
    assert 0 < value(found, "scrape_seconds", **of) < PATIENCE_S


def test_a_page_that_is_not_there_is_told_once(place: Place) -> None:
    """In the log, in ``backends``, in its counters; and when it is there again."""
    router = place.router
    place.stop("b3")
    wait_for(lambda: place.row("b3")["scrape"]["failed"] >= 2, PATIENCE_S, "it is noticed")
    scrape = place.row("b3")["scrape"]
    assert scrape["error"] == "connection refused"
    assert scrape["url"].endswith(f":{PORT}/metrics")
    assert f"b3: metrics of {scrape['url']} are not read: connection" in " ".join(
        router.cli("backends").stdout.split()
    )
    place.start("b3")
    wait_for(lambda: not place.row("b3")["scrape"]["error"], PATIENCE_S, "it is read again")
    assert len(router.events("scrape_failed")) == 1 + _failed_at_start(router)
    assert [each["url"] for each in router.events("scrape_works_again")][-1] == scrape["url"]


def _failed_at_start(router: Router) -> int:
    """The router may have been quicker than the servers of metrics."""
    early = router.events("scrape_works_again")
    return len(early) - 1


def test_weights_change_while_it_runs(place: Place) -> None:
    """``service set`` with a dot; the queue counts for nothing then, and a bad key changes
    nothing."""
    router = place.router
    place.engines["b1"].queue(30, 10)
    wait_for(lambda: place.told("b1") == (40, "scrape"), PATIENCE_S, "its queue is known")
    wait_for(lambda: place.row("b1")["share"] < 0.1, PATIENCE_S, "b1 has few slots")
    done = router.cli("service", "set", "web", "score.queue=0", "score.rtt=1", "--save")
    assert done.returncode == 0, done.stderr
    assert "score.rtt 0.2 -> 1, score.queue 0.8 -> 0" in done.stdout
    assert "queue = 0\n" in router.config.read_text()
    wait_for(lambda: place.row("b1")["share"] > 0.15, PATIENCE_S, "its queue does not count")
    bad = router.cli("service", "set", "web", "score.speed=1")
    assert bad.returncode == 1
    assert "service.score.speed: unknown key, expected one of: age, cache, " in bad.stderr
    bad = router.cli("service", "set", "web", "scores.rtt=1")
    assert "'scores' is no table of a service; there are: score.KEY, scrape.KEY" in bad.stderr


def test_scrapes_change_while_it_runs(place: Place) -> None:
    """To the backends' own port, where XDP is in the way of nobody (an echo server is no page of
    metrics); then none at all. Connections go on."""
    router = place.router
    with connect(router) as stream:
        who(stream)
        done = router.cli("service", "set", "web", "scrape.port=")
        assert done.returncode == 0, done.stderr
        assert f"scrape.port {PORT} -> none" in done.stdout
        no_page = re.compile("the server closed the connection|is no HTTP")  # it is no web server
        wait_for(lambda: no_page.search(place.row("b2")["scrape"]["error"]), PATIENCE_S)
        stream.sendall(b"still here")
        assert stream.recv(10) == b"still here"
    done = router.cli("service", "set", "web", "scrape=")
    assert done.returncode == 0, done.stderr
    assert place.row("b1")["scrape"] is None
