# SPDX-License-Identifier: Apache-2.0
"""What ``services`` says about first packets beyond a budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.cast import service
from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Service
from xdp_router.daemon.app import Router
from xdp_router.daemon.flood_view import flood_view
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.service_watch import Flood, ServiceWatch

S = 1_000_000_000


@pytest.fixture
def small() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def router(small: SmallRouter, web: Service, state: KernelState | None = None) -> Router:
    config = RouterConfig((web,), small.config.settings)
    if state is None:
        state = KernelState(small.plane, config)
        state.write_all()
        state.open_services()
    return cast(
        Router,
        SimpleNamespace(
            config=config,
            state=state,
            service_watch=ServiceWatch(state.maps, config.services, config.settings),
            forwarding=SimpleNamespace(obstacle=lambda _family: ""),
        ),
    )


def over(small: SmallRouter, left_s: float, why: int = abi.Counter.budget_global) -> None:
    until_ns = time.monotonic_ns() + int(left_s * S)
    value = abi.pack_pressure(0, until_ns, why)
    bpf.BpfMap(small.plane.maps["pressure"]).write((1).to_bytes(4, "little"), value)


def test_how_it_stands(small: SmallRouter) -> None:
    """Since when, by which budget, and nothing of it in peace."""
    made = router(small, service())
    calm = {"mode": "flood_flows", "obstacle": "", "active": False, "since_s": None, "reason": ""}
    (web,) = made.config.services
    assert flood_view(made, web) == calm
    over(small, 5)
    found = flood_view(made, web)
    assert (found["active"], found["reason"], found["since_s"]) == (True, "budget_global", 0)
    now_ns = time.monotonic_ns()
    made.service_watch.floods = {0: Flood(now_ns - 7 * S, abi.Counter.budget_global)}
    assert 7 <= flood_view(made, web)["since_s"] < 9


def test_a_window_that_no_budget_opens(small: SmallRouter) -> None:
    """Connections without a place may be silent for flow_idle: the full table is the reason."""
    made = router(small, service())
    over(small, 100)
    assert flood_view(made, made.config.services[0])["reason"] == "table_full"
    over(small, 5, why=0)
    assert flood_view(made, made.config.services[0])["reason"] == "table_full"


def test_why_a_service_is_not_stateless(small: SmallRouter) -> None:
    """The condition that fails is named; one that holds again is not."""
    web = replace(service(), stateless=True)
    made = router(small, web)
    assert (flood_view(made, web)["mode"], flood_view(made, web)["obstacle"]) == ("stateless", "")
    assert list(made.state.set_forwards({6}))
    told = SimpleNamespace(obstacle={4: "net.x is 0: no way"}.get)
    made.forwarding = told  # type: ignore[assignment]  # what Forwarding tells then
    found = flood_view(made, web)
    assert (found["mode"], found["obstacle"]) == ("flood_flows", "net.x is 0: no way")
    assert list(made.state.set_forwards({4, 6}))
    assert flood_view(made, web)["mode"] == "stateless"

    former = replace(web.backends[0], id=5, name="old", service=9)
    small.maps.backends.write(5, made.state.backend_value(web.backends[0].id))
    config = RouterConfig((web,), small.config.settings)
    state = KernelState(small.plane, config, adopted=True, retired=[former])
    state.write_all()
    state.open_services()
    found = flood_view(router(small, web, state), web)
    assert found["mode"] == "flood_flows"
    assert found["obstacle"] == "connections of a former configuration go to b1"
