# SPDX-License-Identifier: Apache-2.0
"""Streams and new connections go on over restart after restart: none is lost, none refused."""

from __future__ import annotations

import signal

import pytest

from tests.support.netns import wait_for
from tests.support.restart_traffic import RestartTraffic
from tests.support.router import Router, calm_config
from tests.support.stopped_router import SPEC

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

LOSSES = ("no_path", "tail_call_missed", "orphan_reset", "orphan_dropped", "refused_no_backend")


@pytest.mark.timeout(300)  # on a machine that others use as well
@pytest.mark.parametrize(
    ("mode", "restarts", "streams", "rate"), [("native", 5, 200, 100), ("generic", 4, 50, 50)]
)
def test_restarts_cost_no_stream_and_no_connection(
    router: Router, mode: str, restarts: int, streams: int, rate: int
) -> None:
    """A quarter by SIGKILL, the others stopped with --persist; some with another program.

    Every byte of the streams is compared, every connection is answered by a backend.
    """
    config = calm_config(SPEC, fallback="b2")
    options = ("--persist", "--xdp-mode", mode)
    router.start(config, *options, "--loader", "object")
    with RestartTraffic(router, streams, rate) as traffic:
        for number in range(restarts):
            traffic.wait_for_more(rate // 4)
            killed = number % 4 == 3
            code = router.stop(signal.SIGKILL if killed else signal.SIGTERM)
            assert code == (-signal.SIGKILL if killed else 0)
            loader = "bcc" if number % 5 == 1 else "object"
            router.start(config, *options, "--loader", loader)
            assert router.ask("status")["loader"] == loader
        traffic.wait_for_more(rate)
        wait_for(lambda: router.ask("status")["engine"]["decided_race"] > 0, 5, "races again")
    total = traffic.now()
    assert total["streams"] == streams
    assert total["slowest_stream"] > restarts
    counters = router.counters()
    assert {name: counters[name] for name in LOSSES} == dict.fromkeys(LOSSES, 0)
