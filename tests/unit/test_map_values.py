# SPDX-License-Identifier: Apache-2.0
"""Values of the maps that follow from a configuration, without a map."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS, service
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.model import Forwarding, SourcePrefix
from xdp_router.daemon.map_values import (
    ICMP_BURST,
    NOBODY,
    backend_value,
    control_value,
    icmp_budget,
    left_out,
    one_sided_interval,
    service_value,
)

S = 1_000_000_000
NOW = 77 * S
BEFORE = replace(
    NOBODY,
    ifindex=7,
    flags=abi.BACKEND_UP | abi.BACKEND_DRAINING,
    dmac=b"\2\0\0\0\0\1",
    vlan=abi.vlan_of(5),
)


def control(former: abi.ControlValue | None = None) -> abi.ControlValue:
    config = RouterConfig((service(),), Settings(one_sided_rate_per_prefix=0))
    return control_value(config, former, NOW, generation=3, probe_key=(1, 2), reinject_mark=9)


def test_the_price_of_a_one_sided_flow() -> None:
    """So many a second; 0 is no limit."""
    assert [one_sided_interval(rate) for rate in (0, 1, 1_000, 10_000_000)] == [0, S, 10**6, 100]


def test_icmp_errors_are_shared_by_the_cpus() -> None:
    """All CPUs together send the rate, and the burst; a rate of 0 sends none."""
    interval_ns, burst_ns = icmp_budget(1_000)
    cpus = os.cpu_count() or 1
    assert interval_ns == S * cpus // 1_000
    assert burst_ns * cpus // interval_ns >= ICMP_BURST
    never_ns, none = icmp_budget(0)
    assert never_ns > none


def test_a_new_data_plane_and_one_that_is_taken_over() -> None:
    """The former's heartbeat, MTU and flags hold until the daemon is ready."""
    new = control()
    assert (new.heartbeat_ns, new.min_mtu, new.flags) == (NOW, 65_535, 0)
    assert (new.generation, new.probe_key, new.reinject_mark) == (3, (1, 2), 9)
    assert new.one_sided_interval_ns == 0
    former = replace(new, heartbeat_ns=5, min_mtu=1280, flags=abi.CONTROL_ECHO, generation=2)
    after = control(former)
    assert (after.heartbeat_ns, after.min_mtu, after.flags) == (5, 1280, abi.CONTROL_ECHO)
    assert (after.generation, after.resumed_ns) == (3, NOW)


@pytest.mark.parametrize("stateless", [False, True])
def test_a_service_says_who_is_admitted(stateless: bool) -> None:
    """Its limit, its rules and its budget; no table of it is in use yet."""
    web = replace(service(2), max_connections=17, sources=(SourcePrefix(0, 0, True),), event_rate=S)
    value = service_value(web, 10, stateless=stateless)
    assert (value.flow_limit, value.backend_count, value.hash_active) == (17, 2, 0)
    assert bool(value.flags & abi.SERVICE_STATELESS) is stateless
    assert value.flags & abi.SERVICE_SOURCES
    assert (value.event_interval_ns, value.event_burst_ns) == (1, 10)


def test_a_backend_goes_on_as_it_was() -> None:
    """Path and state stay until they are known anew; its method and tag are the configured ones."""
    b1 = BACKENDS[0]
    value = backend_value(b1, BEFORE, shared=False)
    assert (value.ifindex, value.dmac, value.vlan) == (7, BEFORE.dmac, BEFORE.vlan)
    assert value.flags == abi.BACKEND_UP | abi.BACKEND_DRAINING | abi.BACKEND_STAGE
    tunnel = replace(b1, forwarding=Forwarding.IPIP, vlan=9)
    value = backend_value(tunnel, NOBODY, shared=True)
    assert value.vlan == abi.vlan_of(9)
    assert value.flags & abi.BACKEND_SHARED
    assert value.flags & abi.BACKEND_METHOD[Forwarding.IPIP]


def test_who_was_left_out() -> None:
    """There was a way to it, and XDP was not to choose it; a place that is free says nothing."""
    down = replace(BEFORE, flags=BEFORE.flags & ~abi.BACKEND_UP)
    found = {1: BEFORE, 2: down, 3: NOBODY, 4: replace(down, ifindex=0), 5: replace(down, flags=0)}
    assert left_out(found) == {2, 5}
