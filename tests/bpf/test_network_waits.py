# SPDX-License-Identifier: Apache-2.0
"""Whom the network goes on about when he is gone, and what it does not say too soon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structlog.testing import capture_logs

from tests.bpf.test_network import ADDR, B1, network_of, probe_goes_out
from tests.support.fresh_netns import in_fresh_netns
from tests.support.small_router import wired_router
from xdp_router.adapters.paths import Resolution
from xdp_router.daemon.network import Network


@in_fresh_netns
def test_a_retired_backend_is_probed_on_its_way_until_its_last_flow_is_gone() -> None:
    """The engine, which has known it, hears of its way; of one that it never knew it does not."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        network.path_changed(ADDR, wired.path(), "")
        heard.states.clear()
        network.change((), [B1])
        assert probe_goes_out(wired)
        network.path_changed(ADDR, None, "no ARP answer")
        assert heard.states == [(False, 0)]
        assert not probe_goes_out(wired)
        network.path_changed(ADDR, wired.path(), "")
        assert heard.states[1:] == [(True, wired.backend.ifindex)]
        assert probe_goes_out(wired)
        network.forget_retired(B1)
        assert not probe_goes_out(wired)
        router = wired.router
        network = Network((), router.state, wired.executor, heard, [B1])
        network.attached(wired.backend)
        heard.states.clear()
        network.path_changed(ADDR, wired.path(), "")
        assert heard.states == []
        assert heard.value().ifindex == wired.backend.ifindex


@in_fresh_netns
def test_nobody_is_said_to_be_down_before_he_could_answer() -> None:
    """At the start, or when it comes, a neighbour that is not there yet is told of when the watch
    has waited for it, whatever is looked at again meanwhile; what else is wrong is told at once."""
    with wired_router(packets=False) as wired:
        index, reason = wired.backend.ifindex, "no ARP answer from 198.18.1.1 on be"
        lost = Resolution(ADDR, None, reason, index, "be", ADDR, neighbour_lost=True)

        def begun(at_start: bool, found: Resolution) -> Network:
            network, _ = network_of(wired)
            network.resolution = lambda addr: found if addr == ADDR else None
            if at_start:
                network.begin([(ADDR, None, found.reason)])
            else:
                network.path_changed(ADDR, None, found.reason)
            network.reconsider()
            assert network.paths[1] == (None, found.reason), "who asks is told"
            return network

        def told(logs: list[Any]) -> list[tuple[str, str]]:
            return [(line["event"], line.get("reason", "")) for line in logs]

        for at_start in (True, False):
            with capture_logs() as logs:
                network = begun(at_start, lost)
                assert logs == []
                network.path_changed(ADDR, wired.path(), "")
                network.path_changed(ADDR, None, reason)
            assert told(logs) == [("backend_up", ""), ("backend_down", reason)]
            with capture_logs() as logs:
                network = begun(at_start, lost)
                network.path_changed(ADDR, None, reason)
                network.path_changed(ADDR, None, reason)
                network.path_changed(ADDR, wired.path(), "")
            assert told(logs) == [("backend_down", reason), ("backend_up", "")]
            with capture_logs() as logs:
                begun(at_start, replace(lost, reason="no route", neighbour_lost=False))
            assert told(logs) == [("backend_down", "no route")]
