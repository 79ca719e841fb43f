# SPDX-License-Identifier: Apache-2.0
"""What is refused, and warned of, before anything is changed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from pyroute2 import IPRoute
from structlog.testing import capture_logs

from tests.support.bpf_programs import trivial_program
from tests.support.cast import service
from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters import xdp_link
from xdp_router.adapters.host import link_info
from xdp_router.adapters.netlink import Resolution
from xdp_router.core.address import parse_endpoint
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.flow_room import rooms_of
from xdp_router.core.model import Mode
from xdp_router.daemon.preflight import (
    check_interfaces,
    new_limit_faults,
    report_host,
    report_limits,
    unreached,
)


@in_fresh_netns
def test_another_program_is_refused_unless_it_is_to_go() -> None:
    """By its id; what is taken over is no other program."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "eth0", "198.18.0.1", None)
        program = trivial_program("other")
        link = xdp_link.attach(program, "eth0", wire.near, None)
        try:
            with pytest.raises(xdp_link.AlreadyAttached, match="eth0"):
                check_interfaces(["eth0"], {}, replace=False)
            (found,) = check_interfaces(["eth0"], {}, replace=True)
            assert found.ifindex == wire.near
            assert check_interfaces(["eth0"], {"eth0": link}, replace=False) == [found]
        finally:
            link.close()
            os.close(program)


@in_fresh_netns
def test_what_is_no_ethernet_is_refused() -> None:
    """With its name, and what to attach instead."""
    with IPRoute() as ipr:
        ipr.link("add", ifname="tun0", kind="tuntap", mode="tun")
    with pytest.raises(XdpRouterError, match=r"tun0 is not an Ethernet interface.*attach the"):
        check_interfaces(["tun0"], {}, replace=False)


@in_fresh_netns
def test_warnings_name_the_interface_and_the_mend() -> None:
    """A service's address that nobody answers for is one."""
    with IPRoute() as ipr:
        make_wire(ipr, "eth0", "198.18.0.1", None)
        web = replace(service(), endpoint=parse_endpoint("198.18.0.9:80"))
        with capture_logs() as lines:
            report_host(RouterConfig((web,), Settings()), [link_info("eth0")], native=True)
    (line,) = (each for each in lines if each["event"] == "service_not_answered_for")
    assert line["log_level"] == "warning"
    assert line["mend"]


def test_limits_are_held_against_the_table_that_there_is() -> None:
    """One that is taken over keeps its size, whatever the file says."""
    limited = [replace(service(), id=n, name=f"s{n}", max_connections=600) for n in range(2)]
    config = RouterConfig(tuple(limited), Settings(max_flows=500_000))
    with capture_logs() as lines:
        report_limits(config, rooms_of(500_000))
        assert not lines
        report_limits(config, {4: 1_000, 6: 500_000})
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("max_connections_out_of_reach", "warning")
    assert "max_flows = 1200" in line["mend"]


def test_an_interval_that_cannot_be_kept_is_told() -> None:
    """With the mend; races ask for nothing in the background."""
    raced = replace(service(), probe_interval_ns=1_000_000)
    config = RouterConfig((raced,), Settings(probe_rate=100))
    with capture_logs() as lines:
        report_limits(config, rooms_of(500_000))
        assert not lines
        report_limits(
            replace(config, services=(replace(raced, mode=Mode.SNAPSHOT),)), rooms_of(500_000)
        )
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("probe_interval_out_of_reach", "warning")
    assert line["mend"] == "probe_rate = 2000, or a longer probe_interval"


def test_only_new_limits_are_told_of_a_change() -> None:
    """Those that could not be reached before are known."""
    small = replace(service(), max_connections=600)
    before = RouterConfig((small,), Settings())
    after = RouterConfig((replace(small, max_connections=700),), Settings())
    (told,) = new_limit_faults(before, after, {4: 650, 6: 650})
    assert told.startswith("max_connections of web (700) add up to more connections")
    assert ": max_flows = 700 (or attach" in told
    assert new_limit_faults(after, after, {4: 650, 6: 650}) == []
    assert new_limit_faults(after, before, {4: 650, 6: 650}) == []


def test_backends_without_a_way_are_told() -> None:
    """With the reason; whose way is not known yet is not."""
    web = service(3)
    first, second, _ = web.backends
    lost = Resolution(0, None, "no route to 198.19.77.9")
    told = unreached(web.backends, {first.endpoint.addr: lost}, (web,))
    assert told == [f"backend {first.name} of web is down: no route to 198.19.77.9"]
    assert unreached((second,), {}, (web,)) == []
