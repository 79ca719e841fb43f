# SPDX-License-Identifier: Apache-2.0
"""Whether services may be stateless on this host, and what ``services`` says about them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.fresh_netns import enter_netns, open_netns
from tests.support.privileges import require_root
from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.address import parse_endpoint
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Backend, Forwarding, Service
from xdp_router.core.selection import EMPTY_TABLE
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.stateless import (
    ForwardingKeeper,
    StatelessReport,
    stateless_view,
)
from xdp_router.lab import libc


@pytest.fixture
def own_netns() -> Iterator[None]:
    """A network namespace of the test's own, forwarding off."""
    require_root()
    here = open_netns()
    libc.unshare(libc.CLONE_NEWNET)
    try:
        set_forwarding("ipv4", "0")
        yield
    finally:
        enter_netns(here)


def set_forwarding(family: str, value: str) -> None:
    """Of the namespace's ``lo``."""
    with open(f"/proc/sys/net/{family}/conf/lo/forwarding", "w", encoding="ascii") as file:
        file.write(value)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def stateless(router: SmallRouter) -> tuple[Service, RouterConfig]:
    """The service, and a configuration that wants it stateless."""
    (web,) = router.config.services
    web = replace(web, stateless=True)
    return web, RouterConfig((web,), router.config.settings)


def told(config: RouterConfig, interface: str) -> set[int]:
    """Families that nothing is in the way of, by one look."""
    families: set[int] = set()

    def tell(found: Collection[int]) -> Iterable[None]:
        families.update(found)
        return ()

    ForwardingKeeper(config, lambda: [interface], tell).look()
    return families


@pytest.mark.usefixtures("own_netns")
def test_forwarding_is_needed(router: SmallRouter) -> None:
    """Where it is off, the service and the sysctl are named; it counts only if one wants it."""
    _, config = stateless(router)
    with capture_logs() as logs:
        assert told(config, "lo") == {6}
    (line,) = logs
    assert line["event"] == "stateless_impossible"
    assert line["services"] == ["web"]
    assert "sysctl -w net.ipv4.conf.lo.forwarding=1" in line["mend"]
    assert told(config, "gone") == {6}
    with capture_logs() as logs:
        assert told(router.config, "lo") == {4, 6}
        set_forwarding("ipv4", "1")
        assert told(config, "lo") == {4, 6}
    assert not logs


@pytest.mark.usefixtures("own_netns")
def test_families_are_switched_each_for_itself(router: SmallRouter) -> None:
    """A service is not held back, nor named, for a family that is not its own."""
    web, _ = stateless(router)
    web6 = replace(
        web,
        id=1,
        name="web6",
        endpoint=parse_endpoint("[2001:db8::1]:80"),
        backends=(Backend(9, "six", parse_endpoint("[2001:db8::9]:80"), 1),),
    )
    config = RouterConfig((web, web6), router.config.settings)
    state = KernelState(router.plane, config)
    keeper = ForwardingKeeper(config, lambda: ["lo"], state.set_forwards)
    set_forwarding("ipv4", "1")
    set_forwarding("ipv6", "0")
    with capture_logs() as logs:
        keeper.look()
    assert [(line["event"], line["services"]) for line in logs] == [
        ("stateless_impossible", ["web6"])
    ]
    state.write_all()
    state.open_services()
    assert (state.is_stateless(0), state.is_stateless(1)) == (True, False)
    assert keeper.obstacle(4) == ""
    assert keeper.obstacle(6).startswith("net.ipv6.conf.lo.forwarding is 0")


def test_many_services_do_not_hold_the_loop(router: SmallRouter) -> None:
    """Few of them begin, or cease, between two turns; what else changes meanwhile stays."""
    (web, *_) = router.config.services
    many = tuple(
        replace(
            web,
            id=number,
            name=f"s{number}",
            stateless=True,
            endpoint=replace(web.endpoint, port=1000 + number),
            backends=(
                replace(web.backends[0], id=number, service=number,
                        endpoint=replace(web.endpoint, addr=0xC6130000 + number)),
            ),
        )
        for number in range(60)
    )  # fmt: skip
    state = KernelState(router.plane, RouterConfig(many, router.config.settings))
    state.write_all()
    state.open_services()

    def flagged() -> int:
        return sum(state.is_stateless(each.id) for each in many)

    assert flagged() == len(many)
    turns = state.set_forwards({6})
    next(turns)
    assert 0 < flagged() < len(many)
    state.publish_hash_table(59, EMPTY_TABLE)
    for _ in turns:
        pass
    assert flagged() == 0
    value = router.maps.services.read(many[59].endpoint)
    assert value is not None
    assert (value.hash_active, value.flags & abi.SERVICE_STATELESS) == (1, 0)


def test_flag_and_address_are_written_where_it_is_sound(router: SmallRouter) -> None:
    """Service and backends say it together; not with forwarding off, nor for a shared backend."""
    web, config = stateless(router)

    def written(config: RouterConfig, forwards: bool = True) -> tuple[int, set[tuple[int, int]]]:
        state = KernelState(router.plane, config)
        state.forwards = frozenset((4, 6) if forwards else (6,))
        state.write_all()
        state.open_services()
        value = state.maps.services.read(web.endpoint)
        assert value is not None
        backends = [state.backend_value(each.id) for each in web.backends]
        return value.flags, {(each.stateless_addr, each.stateless_port) for each in backends}

    whose = {(web.endpoint.addr, web.endpoint.port)}
    assert written(config) == (abi.SERVICE_STATELESS, whose)
    assert written(router.config) == (0, {(0, 0)})
    assert written(config, forwards=False) == (0, {(0, 0)})
    twin = replace(
        web,
        id=1,
        name="twin",
        endpoint=replace(web.endpoint, port=81),
        stateless=False,
        backends=tuple(
            replace(each, id=each.id + 20, name=f"{each.name}t", service=1) for each in web.backends
        ),
    )
    assert written(RouterConfig((web, twin), config.settings)) == (0, {(0, 0)})


@pytest.mark.parametrize("method", [Forwarding.NAT, Forwarding.DSR])
def test_what_waits_for_a_former_backend_begins_when_that_is_gone(
    router: SmallRouter, method: Forwarding
) -> None:
    """Its flows may have the same reply tuples; those whose replies do not come by us have not."""
    web, config = stateless(router)
    former = replace(web.backends[0], id=5, name="old", service=9, forwarding=method)
    router.maps.backends.write(5, router.state.backend_value(web.backends[0].id))
    state = KernelState(router.plane, config, adopted=True, retired=[former])
    state.write_all()
    state.open_services()
    report = StatelessReport()

    def tell() -> list[str]:
        with capture_logs() as logs:
            report.tell(state.stateless_waiting())
        return [line["event"] for line in logs]

    def written() -> tuple[bool, list[int], list[bool]]:
        value = state.maps.services.read(web.endpoint)
        backends = [state.maps.backends.read(each.id) for each in web.backends]
        assert value is not None
        return (
            bool(value.flags & abi.SERVICE_STATELESS),
            [each.stateless_port for each in backends if each],
            [bool(each.flags & abi.BACKEND_SHARED) for each in backends if each],
        )

    begun = (True, [80, 80], [False, False])
    waits = method is Forwarding.NAT
    assert written() == ((False, [0, 0], [True, False]) if waits else begun)
    assert tell() == (["stateless_waits"] if waits else [])
    assert tell() == []
    state.forget_backend(former)
    state.settle_shared()
    assert written() == begun
    assert tell() == (["stateless_allowed"] if waits else [])


def test_the_view_tells_how_it_stands(router: SmallRouter) -> None:
    """Enabled or not, for how long, which budget was spent, how many packets went."""
    web, config = stateless(router)
    state = KernelState(router.plane, config)
    state.write_all()
    state.open_services()
    nothing = {"enabled": True, "for_s": 0.0, "why": "", "forwarded": 0}
    assert stateless_view(state.maps, web) == nothing
    until_ns = time.monotonic_ns() + 5_000_000_000
    value = abi.pack_pressure(0, until_ns, abi.Counter.budget_prefix)
    bpf.BpfMap(router.plane.maps["pressure"]).write((1).to_bytes(4, "little"), value)
    bucket = abi.pack_token_bucket(0, 0, 7) * bpf.possible_cpus()
    slot = abi.TOKENS_SERVICE.to_bytes(4, "little")
    bpf.BpfMap(router.plane.maps["tokens"]).write(slot, bucket)
    found = stateless_view(state.maps, web)
    assert 4 < found.pop("for_s") <= 5
    assert found == {
        "enabled": True,
        "why": "budget_prefix",
        "forwarded": 7 * bpf.possible_cpus(),
    }


@pytest.mark.usefixtures("own_netns")
def test_forwarding_may_change_while_it_runs(router: SmallRouter) -> None:
    """A service is stateless as long as the kernel forwards, and both changes are told once."""
    web, config = stateless(router)
    state = KernelState(router.plane, config)
    keeper = ForwardingKeeper(config, lambda: ["lo"], state.set_forwards)

    def look() -> list[str]:
        with capture_logs() as logs:
            keeper.look()
        value = state.maps.services.read(web.endpoint)
        assert value is not None
        assert bool(value.flags & abi.SERVICE_STATELESS) is state.is_stateless(web.id)
        return [line["event"] for line in logs]

    with capture_logs():
        keeper.look()
    state.write_all()
    state.open_services()
    assert look() == []
    assert not state.is_stateless(web.id)
    assert keeper.obstacle(4).startswith("net.ipv4.conf.lo.forwarding is 0")
    set_forwarding("ipv4", "1")
    assert look() == ["stateless_possible"]
    assert state.is_stateless(web.id)
    assert state.backend_value(web.backends[0].id).stateless_addr == web.endpoint.addr
    assert look() == []
    set_forwarding("ipv4", "0")
    assert look() == ["stateless_impossible"]
    assert not state.is_stateless(web.id)
