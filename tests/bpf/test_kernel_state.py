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
from xdp_router.core.model import NO_BACKEND, Endpoint, Forwarding
from xdp_router.core.selection import EMPTY_TABLE, build_table
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.map_values import icmp_budget

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


def test_source_ports_are_there_only_for_fullnat(router: SmallRouter) -> None:
    """XDP looks at no port of its own where no service needs one."""
    control = router.maps.control.read()
    assert (control.nat_port_min, control.nat_port_max) == (0, 0)
    web = replace(service(2), forwarding=Forwarding.FULLNAT)
    KernelState(router.plane, RouterConfig((web,), SETTINGS)).write_all()
    control = router.maps.control.read()
    assert (control.nat_port_min, control.nat_port_max) == (10_000, 29_999)


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


def test_what_xdp_picks_by_goes_on_unless_it_is_another_ones(router: SmallRouter) -> None:
    """Pick tables and loads survive a successor; a number that is another one's begins anew."""
    router.state.open_services()
    slots = (BACKENDS[0].id,) * abi.PICK_SLOTS
    load = abi.LoadValue(1, 2, 3, 4, 5, 2)
    router.maps.pick_tables.publish(0, slots, 123)
    router.maps.backend_loads.write(BACKENDS[0].id, load)
    successor = KernelState(router.plane, router.config, adopted=True)
    successor.write_all()
    assert successor.maps.pick_tables.read(0) == (123, slots)
    assert successor.maps.backend_loads.read(BACKENDS[0].id) == load
    assert successor.maps.backend_loads.open(BACKENDS[0].id) == 3
    (web,) = router.config.services
    elsewhere = [replace(each, endpoint=replace(each.endpoint, port=1)) for each in web.backends]
    moved = replace(web, endpoint=replace(WEB, port=81), backends=tuple(elsewhere))
    KernelState(router.plane, replace(router.config, services=(moved,)), adopted=True).write_all()
    assert router.maps.pick_tables.read(0) is None
    assert router.maps.backend_loads.read(BACKENDS[0].id) == abi.LoadValue()


def test_a_successor_takes_everybody_for_well(router: SmallRouter) -> None:
    """Of a dead one, and one that has just come back, nothing is left; a change of the
    configuration leaves both as they are."""
    router.state.open_services()
    router.state.set_flag(1, abi.BACKEND_DEAD, True)
    router.state.set_share(2, 25)
    assert backend(router).flags == abi.BACKEND_DEAD
    (web,) = router.config.services
    other = replace(web, deadline_ns=1_000_000)
    router.state.change(replace(router.config, services=(other,)), ())()
    assert backend(router).flags == abi.BACKEND_DEAD
    assert backend(router, 2).share == 25
    KernelState(router.plane, router.config, adopted=True).write_all()
    assert backend(router).flags == 0
    assert backend(router, 2).share == 0


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
    state.set_handoff({7: abi.IF_HANDOFF_FORWARD4})
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


def test_who_is_left_at_an_address_answers_for_it() -> None:
    """Two retired backends of one endpoint: when the first is forgotten, replies of the other's
    flows are still told from other traffic; when that is, too, nothing is left."""
    other = replace(BACKENDS[0], id=3, name="b1@api", service=1)
    api = replace(service(1), id=1, name="api", endpoint=replace(WEB, port=81), backends=(other,))
    with small_router(config=RouterConfig((service(2), api), SETTINGS)) as router:
        web = replace(service(2), backends=BACKENDS[1:2])
        retired = (BACKENDS[0], other)
        state = KernelState(
            router.plane, RouterConfig((web,), SETTINGS), adopted=True, retired=retired
        )
        state.write_all()
        index = router.maps.backend_index
        assert index.read(other.endpoint) == (BACKENDS[0].id, 0)
        state.forget_backend(BACKENDS[0])
        assert index.read(other.endpoint) == (other.id, 1)
        state.forget_backend(other)
        assert dict(index.items()).keys() == {BACKENDS[1].endpoint}


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


DIRECT = {
    Forwarding.NAT: 0,
    Forwarding.DSR: abi.BACKEND_ONE_SIDED,
    Forwarding.IPIP: abi.BACKEND_ONE_SIDED | abi.BACKEND_STAGE | abi.BACKEND_TUNNEL,
}


def test_of_two_services_of_a_backend_that_with_a_tunnel_has_its_address() -> None:
    """Whichever comes first in the configuration: what hops say of the tunnel is found by it. But
    where the tunnel has no way, as by an interface without XDP frames, the other one has it: its
    probes' answers would not be known for such.
    """
    direct = replace(BACKENDS[0], id=3, name="b1@api", service=1, forwarding=Forwarding.IPIP)
    api = replace(
        service(1), id=1, name="api", endpoint=replace(WEB, port=81), backends=(direct,),
        forwarding=Forwarding.IPIP,
    )  # fmt: skip
    for services in ((service(1), api), (replace(api, id=0), replace(service(1), id=1))):
        with small_router(config=RouterConfig(services, SETTINGS)) as router:
            named = [_named(router, direct.endpoint)]
            for path in (None, PATH, None):
                router.state.set_path(direct.id, path)
                named.append(_named(router, direct.endpoint))
            router.state.set_path(BACKENDS[0].id, PATH)
            named.append(_named(router, direct.endpoint))
            nat = BACKENDS[0].id
            assert named == [direct.id, nat, direct.id, nat, nat]


def _named(router: SmallRouter, endpoint: Endpoint) -> int:
    found = router.maps.backend_index.read(endpoint)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("method", DIRECT)
def test_a_backend_says_how_it_is_reached(method: Forwarding) -> None:
    """Path and state leave that as it is; the service has the tunnel's source."""
    backends = tuple(replace(each, forwarding=method) for each in BACKENDS[:2])
    web = replace(
        service(), backends=backends, forwarding=method, tunnel_source=0xC612C800, tunnel_bits=8
    )
    with small_router(config=RouterConfig((web,), SETTINGS)) as router:
        router.state.set_up(1, True)
        router.state.set_path(1, PATH)
        assert backend(router).flags == DIRECT[method] | abi.BACKEND_UP
        router.state.open_services()
        value = router.maps.services.read(WEB)
        assert value is not None
        assert (value.forwarding, value.tunnel_source, value.tunnel_bits) == (
            method, 0xC612C800, 8,
        )  # fmt: skip
        assert router.maps.control.read().one_sided_interval_ns == 1_000_000


@pytest.mark.parametrize(("method", "shared"), [(Forwarding.NAT, 2), (Forwarding.DSR, 0)])
def test_services_that_rewrite_nothing_share_no_reply_tuple(
    method: Forwarding, shared: int
) -> None:
    """Two of them on one host is usual, and their flows' tuples differ by the service."""
    one = replace(service(), forwarding=method)
    two = replace(
        one,
        id=1,
        name="other",
        endpoint=Endpoint(0xC6126402, 80),
        backends=tuple(replace(each, id=each.id + 3, service=1) for each in one.backends),
    )
    with small_router(config=RouterConfig((one, two), SETTINGS)) as router:
        assert len(router.state.shared) == shared


@pytest.mark.parametrize(("vlan", "value"), [(7, abi.vlan_of(7)), (0, abi.VLAN_NONE)])
def test_a_configured_tag_goes_by_the_stage(vlan: int, value: int) -> None:
    """From the start and with each path, whatever the path knows of tags; others keep theirs."""
    web = service()
    backends = (replace(web.backends[0], vlan=vlan), *web.backends[1:])
    with small_router(config=RouterConfig((replace(web, backends=backends),), SETTINGS)) as router:
        for path in (PATH, None, replace(PATH, vlan=9)):
            made = backend(router)
            assert (made.vlan, made.flags & abi.BACKEND_STAGE) == (value, abi.BACKEND_STAGE)
            router.state.set_path(1, path)
        assert router.state.vlan(1) == value
        assert backend(router, 2).vlan == abi.VLAN_KEEP


def test_a_tag_that_the_path_has(router: SmallRouter) -> None:
    """It comes with the path, stays while that is lost, and goes with one that has none."""
    router.state.set_path(1, replace(PATH, vlan=9))
    assert backend(router).vlan == abi.vlan_of(9)
    assert backend(router).flags & abi.BACKEND_STAGE
    router.state.set_path(1, None)
    assert backend(router).vlan == abi.vlan_of(9)
    router.state.set_path(1, PATH)
    assert backend(router).vlan == abi.VLAN_KEEP
    assert not backend(router).flags & abi.BACKEND_STAGE, "the short way again"


def test_a_tunnel_goes_by_the_stage_whatever_its_path() -> None:
    """With a tag and without."""
    web = replace(service(), forwarding=Forwarding.IPIP)
    backends = tuple(replace(each, forwarding=Forwarding.IPIP) for each in web.backends)
    with small_router(config=RouterConfig((replace(web, backends=backends),), SETTINGS)) as router:
        for path in (PATH, replace(PATH, vlan=9), None, PATH):
            router.state.set_path(1, path)
            assert backend(router).flags & abi.BACKEND_STAGE


def test_addresses_that_answer_pings() -> None:
    """They open with their services, are no services themselves, and go when nobody wants it."""
    web = replace(service(), icmp_echo=True)
    with small_router(config=RouterConfig((web,), SETTINGS)) as router:
        assert router.maps.services.echo_addresses() == set()
        router.state.open_services()
        assert router.maps.control.read().flags == abi.CONTROL_ECHO
        assert router.maps.services.echo_addresses() == {web.endpoint.addr}
        assert [endpoint for endpoint, _ in router.maps.services.items()] == [WEB]
        value = router.maps.services.read(WEB)
        assert value is not None
        assert value.flags == abi.SERVICE_ECHO
        router.state.set_handoff({7: abi.IF_NO_XMIT})
        assert router.maps.control.read().flags == abi.CONTROL_ECHO | abi.CONTROL_NO_XMIT
        router.maps.services.answer_echo({})
        assert router.maps.services.echo_addresses() == set()
