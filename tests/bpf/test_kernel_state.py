# SPDX-License-Identifier: Apache-2.0
"""What the daemon writes into the maps, read back as XDP finds it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS, service
from tests.support.small_router import SETTINGS, SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.names import Names
from xdp_router.adapters.netlink import Path
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.event_budget import deep_ring, price
from xdp_router.core.model import NO_BACKEND, Endpoint
from xdp_router.core.selection import EMPTY_TABLE, build_table
from xdp_router.daemon.kernel_state import KernelState, icmp_budget

S = 1_000_000_000
WEB = Endpoint(0xC6126401, 80)
PATH = Path(7, b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", 0xC6120101)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def backend(router: SmallRouter, number: int = 1) -> abi.BackendValue:
    value = router.maps.backends.read(number)
    assert value is not None
    return value


def test_everything_is_there_but_the_services(router: SmallRouter) -> None:
    """Backends are written, down and without a path; no SYN is held before services open."""
    assert list(router.maps.services.items()) == []
    for made in router.backends:
        value = backend(router, made.id)
        assert (value.addr, value.port) == (made.endpoint.addr, made.endpoint.port)
        assert (value.flags, value.ifindex) == (0, 0)
    index = dict(router.maps.backend_index.items())
    assert index == {made.endpoint: (made.id, 0) for made in router.backends}
    assert Names(router.plane.maps["names"]).read() == ({0: "web"}, {1: "b1", 2: "b2"})


def test_control_has_limits_and_secrets(router: SmallRouter) -> None:
    """Version, times, ports and budget are those of the configuration; the mark is not zero."""
    control, settings = router.maps.control.read(), router.config.settings
    assert control.abi_version == abi.ABI_VERSION
    assert control.heartbeat_stale_ns == settings.heartbeat_stale_ns
    assert control.pending_idle_ns == settings.pending_idle_ns
    assert control.flow_idle_ns == control.orphan_window_ns == settings.flow_idle_ns
    assert (control.probe_port_min, control.probe_port_max) == (61_000, 61_999)
    assert (control.event_interval_ns, control.event_burst_ns) == price(50_000, 2_000)
    assert (control.prefix_interval_ns, control.prefix_burst_ns) == price(5_000, 2_000)
    assert control.ring_deep == deep_ring([50_000_000])
    assert control.probe_key == router.state.probe_key
    assert control.reinject_mark == router.state.reinject_mark > 0


def test_an_open_service_names_its_candidates(router: SmallRouter) -> None:
    """The service's value spans its backends and carries deadline and budget."""
    router.state.open_services()
    value = router.maps.services.read(WEB)
    assert value is not None
    assert (value.id, value.first_backend, value.backend_count) == (0, 1, 2)
    assert (value.fallback, value.deadline_ns) == (NO_BACKEND, 50_000_000)
    assert (value.event_interval_ns, value.event_burst_ns) == price(50_000, 2_000)


def test_up_and_path_do_not_disturb_each_other(router: SmallRouter) -> None:
    """A path keeps the flag, a flag keeps the path; without a path nothing of it is left."""
    router.state.set_path(1, PATH)
    router.state.set_up(1, True)
    value = backend(router)
    assert (value.flags, value.ifindex, value.dmac) == (abi.BACKEND_UP, 7, PATH.dmac)
    router.state.set_path(1, None)
    value = backend(router)
    assert (value.flags, value.ifindex, value.probe_addr) == (abi.BACKEND_UP, 0, 0)
    assert (value.dmac, value.smac) == (bytes(6), bytes(6))
    router.state.set_up(1, False)
    assert backend(router) == router.state.backend_value(1)
    assert backend(router).flags == 0


def test_a_hash_table_is_written_aside_then_switched_to(router: SmallRouter) -> None:
    """Readers have the old or the new table, whole, and nothing else of the service changes."""
    router.state.publish_hash_table(0, EMPTY_TABLE)
    router.state.open_services()
    before = router.maps.services.read(WEB)
    assert before is not None
    assert before.hash_active == 1
    slots = build_table(router.backends)
    router.state.publish_hash_table(0, slots)
    assert router.maps.hash_tables.read(0, 1) == EMPTY_TABLE
    assert router.maps.hash_tables.read(0, 0) == slots
    after = router.maps.services.read(WEB)
    assert after == replace(before, hash_active=0)


def test_pressure_goes_on_unless_the_service_is_another_one(router: SmallRouter) -> None:
    """What XDP noted of a service survives a successor; a new service begins with nothing."""
    router.state.open_services()
    table = bpf.BpfMap(router.plane.maps["pressure"])
    table.write((1).to_bytes(4, "little"), abi.pack_pressure(0, 123))
    KernelState(router.plane, router.config, adopted=True).write_all()
    assert router.maps.pressure.stateless_until_ns(0) == 123
    (web,) = router.config.services
    moved = replace(web, endpoint=replace(WEB, port=81))
    config = RouterConfig((moved,), router.config.settings)
    KernelState(router.plane, config, adopted=True).write_all()
    assert router.maps.pressure.stateless_until_ns(0) == 0


@pytest.mark.parametrize(("kind", "flags"), [("veth", abi.IF_BOUNCE_REDIRECT), ("", 0)])
def test_how_an_interface_answers(router: SmallRouter, kind: str, flags: int) -> None:
    """veth answers by redirect, since XDP_TX may not wake its other end; others by XDP_TX."""
    link = LinkInfo(7, "eth0", b"\2\0\0\0\0\7", 1500, True, 0, "none", kind, True, addr=0xC6120001)
    router.state.set_interface(link)
    assert dict(router.maps.interfaces.items()) == {
        7: abi.InterfaceValue(link.mac, bytes(6), flags, 0xC6120001, 1500)
    }


def test_the_smallest_mtu_is_kept(router: SmallRouter) -> None:
    """That of the attached interfaces; a heartbeat keeps it, and it rises when one is let go."""
    small, large = (
        LinkInfo(number, f"eth{number}", bytes(6), mtu, True, 0, "none", "", True)
        for number, mtu in ((7, 1280), (8, 9000))
    )
    assert router.maps.control.read().min_mtu == 65_535
    router.state.set_interface(large)
    router.state.set_interface(small)
    assert router.maps.control.read().min_mtu == 1280
    now_ns = time.monotonic_ns()
    router.state.beat(now_ns, 0)
    control = router.maps.control.read()
    assert (control.min_mtu, control.heartbeat_ns) == (1280, now_ns)
    router.state.forget_interfaces({8})
    assert (router.maps.control.read().min_mtu, len(dict(router.maps.interfaces.items()))) == (
        9000,
        1,
    )


def test_icmp_errors_have_a_budget() -> None:
    """The configured rate, shared by the CPUs; a rate of 0 lets none through."""
    with small_router() as router:
        value = router.maps.control.read()
        assert (value.icmp_interval_ns, value.icmp_burst_ns) == icmp_budget(1_000)
    with small_router(settings=replace(SETTINGS, icmp_rate=0)) as router:
        value = router.maps.control.read()
        assert value.icmp_interval_ns > value.icmp_burst_ns


def test_handoff_is_kept_beside_the_rest(router: SmallRouter) -> None:
    """Told before or after the interface, and whatever else about it or the backend changes."""
    link = LinkInfo(7, "be", b"\2\0\0\0\0\7", 1500, True, 0, "none", "veth", True)
    state = router.state
    state.set_handoff({7: abi.IF_NO_XMIT})
    state.set_interface(link)
    both = abi.IF_BOUNCE_REDIRECT | abi.IF_NO_XMIT
    assert dict(router.maps.interfaces.items())[7].flags == both
    assert router.maps.control.read().flags == abi.CONTROL_NO_XMIT
    state.beat(5, 0)
    assert router.maps.control.read().flags == abi.CONTROL_NO_XMIT
    state.set_handoff({7: abi.IF_HANDOFF_FORWARD})
    assert dict(router.maps.interfaces.items())[7].flags == 5
    assert router.maps.control.read().flags == 0
    state.set_path(1, PATH, by_kernel=True)
    state.set_up(1, True)
    assert backend(router).flags == abi.BACKEND_UP | abi.BACKEND_KERNEL
    state.set_path(1, PATH)
    assert backend(router).flags == abi.BACKEND_UP


def test_two_services_may_share_a_backend() -> None:
    """Its address answers for the first of them; both have it as a backend of their own."""
    with small_router() as router:
        other = replace(BACKENDS[0], id=3, name="b1@api", service=1)
        api = replace(
            service(1), id=1, name="api", endpoint=replace(WEB, port=81), backends=(other,)
        )
        config = RouterConfig((*router.config.services, api), router.config.settings)
        KernelState(router.plane, config).write_all()
        assert dict(router.maps.backend_index.items())[other.endpoint] == (1, 0)
        assert backend(router, 3).service == 1


def test_buckets_begin_with_a_second_of_credit_in_time(router: SmallRouter) -> None:
    """Each CPU's bucket was last looked at a second ago: the first SYNs find their burst."""
    raw = bpf.BpfMap(router.plane.maps["tokens"]).read(abi.TOKENS_SERVICE.to_bytes(4, "little"))
    assert raw is not None
    size = abi.TOKEN_BUCKET_SIZE
    buckets = {abi.unpack_token_bucket(raw[at : at + size]) for at in range(0, len(raw), size)}
    assert len(buckets) == 1
    ((credit_ns, last_ns, _),) = buckets
    assert credit_ns == 0
    heartbeat_ns = router.maps.control.read().heartbeat_ns
    assert 0 <= last_ns - (heartbeat_ns - S) < S


def test_what_is_gathered_is_written_at_the_end(router: SmallRouter) -> None:
    """All changes of a backend together, none before; later ones at once again."""
    with router.state.gathered():
        for number in (1, 2):
            router.state.set_path(number, PATH)
            router.state.set_up(number, True)
        assert backend(router).flags == 0
        assert router.state.backend_value(1).flags == abi.BACKEND_UP
    for number in (1, 2):
        assert (backend(router, number).flags, backend(router, number).ifindex) == (1, 7)
    router.state.set_up(2, False)
    assert backend(router, 2).flags == 0


def test_hash_tables_are_carried_over_only_if_they_name_the_same_backends(
    router: SmallRouter,
) -> None:
    """One backend more or fewer, or another address, and the table is made before it is used."""
    router.state.open_services()

    def carried(config: RouterConfig) -> frozenset[int]:
        state = KernelState(router.plane, config, adopted=True)
        state.write_all()
        return state.carried

    web = router.config.services[0]
    assert router.state.carried == frozenset()
    assert carried(router.config) == {0}
    elsewhere = replace(web, endpoint=Endpoint(0xC6126402, 80))
    assert carried(replace(router.config, services=(elsewhere,))) == frozenset()
    fewer = replace(router.config, services=(replace(web, backends=web.backends[:1]),))
    assert carried(fewer) == frozenset()
    assert carried(router.config) == frozenset()  # one more again


def test_a_retired_backend_is_forgotten(router: SmallRouter) -> None:
    """Its slot, its name and its place in the index are free; another's stay."""
    gone, stays = router.backends
    router.state.forget_backend(gone)
    assert dict(router.maps.backends.items()).keys() == {stays.id}
    assert dict(router.maps.backend_index.items()).keys() == {stays.endpoint}
    assert Names(router.plane.maps["names"]).read() == ({0: "web"}, {stays.id: stays.name})


def test_a_successors_maps_are_left_alone(router: SmallRouter) -> None:
    """Whatever a daemon hears that was stopped meanwhile: paths, interfaces, tables, hand-off."""
    state = router.state
    link = LinkInfo(7, "be", b"\2\0\0\0\0\7", 1500, True, 0, "none", "veth", True)
    state.set_interface(link)
    state.open_services()

    def contents() -> list[object]:
        maps = router.maps
        return [
            *map(dict, (maps.backends.items(), maps.services.items(), maps.interfaces.items())),
            maps.control.read(),
            Names(router.plane.maps["names"]).read(),
        ]

    successor = replace(router.maps.control.read(), heartbeat_ns=S, probe_key=(1, 2))
    bpf.BpfMap(router.plane.maps["control"]).write(bytes(4), abi.pack_control(successor))
    before = contents()
    state.is_lost = lambda: True
    state.set_path(1, PATH)
    state.set_up(1, True)
    state.set_interface(replace(link, mtu=1280, ifindex=8))
    state.set_handoff({7: abi.IF_NO_XMIT})
    state.forget_interface(7)
    state.publish_hash_table(0, EMPTY_TABLE)
    state.forget_backend(router.backends[1])
    assert contents() == before
