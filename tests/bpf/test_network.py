# SPDX-License-Identifier: Apache-2.0
"""What the network reports reaches the maps, the probe sender and the engine, in safe order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Collection
from dataclasses import replace
from typing import cast

from structlog.testing import capture_logs

from tests.support.cast import BACKENDS
from tests.support.descriptors import open_descriptors
from tests.support.fresh_netns import in_fresh_netns
from tests.support.small_router import WiredRouter, wired_router
from xdp_router.adapters.netlink import LinkEvent
from xdp_router.adapters.paths import Tag
from xdp_router.core import abi
from xdp_router.core.commands import SendProbe
from xdp_router.core.config import RouterConfig
from xdp_router.core.events import BackendPath, BackendState, Event, ProbeSent
from xdp_router.core.model import Backend, Endpoint, Forwarding
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.network import AT_ONCE, Network

B1 = BACKENDS[0]
ADDR = B1.endpoint.addr


class Heard:
    """The engine's place: remembers what it was told, and what the maps held then."""

    def __init__(self, wired: WiredRouter) -> None:
        self._wired = wired
        self.states: list[tuple[bool, int]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, BackendPath):
            assert event.ifindex == self.value(event.backend).ifindex
            return
        assert isinstance(event, BackendState)
        self.states.append((event.up, self.value(event.backend).ifindex))

    def value(self, backend: int = 1) -> abi.BackendValue:
        value = self._wired.router.maps.backends.read(backend)
        assert value is not None
        return value


def network_of(wired: WiredRouter) -> tuple[Network, Heard]:
    """A network with both interfaces attached."""
    heard = Heard(wired)
    router = wired.router
    network = Network(router.backends, router.state, wired.executor, heard)
    for link in (wired.client, wired.backend):
        network.attached(link)
    return network, heard


def probe_goes_out(wired: WiredRouter) -> bool:
    answer = wired.executor.execute(SendProbe(1, 61_000, 1))
    assert isinstance(answer, ProbeSent)
    return answer.sent_ns != 0


@in_fresh_netns
def test_a_path_makes_a_backend_usable() -> None:
    """Maps and probes have the path before the engine hears that the backend is up."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        path = wired.path()
        network.path_changed(ADDR, path, "")
        value = heard.value()
        assert (value.ifindex, value.dmac, value.smac) == (path.ifindex, path.dmac, path.smac)
        assert value.probe_addr == path.source_addr
        assert heard.states == [(True, path.ifindex)]
        assert network.paths[1] == (path, "")
        assert probe_goes_out(wired)


@in_fresh_netns
def test_a_lost_path_takes_the_choice_away_first() -> None:
    """The engine hears of it while frames still have their path; then that goes, too."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        network.path_changed(ADDR, wired.path(), "")
        network.path_changed(ADDR, None, "no ARP answer")
        assert heard.states[-1] == (False, wired.backend.ifindex)
        assert heard.value().ifindex == 0
        assert network.paths[1] == (None, "no ARP answer")
        assert not probe_goes_out(wired)


@in_fresh_netns
def test_a_new_next_hop_replaces_the_old_one() -> None:
    """Another MAC is written; the same report again changes and tells nothing."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        moved = replace(wired.path(), dmac=b"\2\0\0\0\0\xaa")
        for path in (wired.path(), moved, moved):
            network.path_changed(ADDR, path, "")
        assert heard.value().dmac == moved.dmac
        assert len(heard.states) == 2


@in_fresh_netns
def test_a_path_by_another_interface_is_none() -> None:
    """Replies would come back by an interface that nobody looks at: down, with the reason."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        network.path_changed(ADDR, replace(wired.path(), ifindex=999), "")
        assert heard.states == [(False, 0)]
        reason = "its route leaves by interface number 999, which is not attached"
        assert network.paths[1] == (None, reason)


@in_fresh_netns
def test_interfaces_are_followed() -> None:
    """A new MAC is ours from then on, a new name is shown; a stranger's is nobody's affair."""
    with wired_router(packets=False) as wired:
        network, _ = network_of(wired)
        changed = replace(wired.client, mac=b"\2\0\0\0\0\x77", name="wan0")
        network.link_changed(LinkEvent("renamed", changed))
        assert network.interface_name(changed.ifindex) == "wan0"
        network.link_changed(LinkEvent("mac", changed))
        network.link_changed(LinkEvent("mac", replace(changed, ifindex=999, name="other")))
        known = dict(wired.router.maps.interfaces.items())
        assert known[changed.ifindex].mac == changed.mac
        assert set(known) == {wired.client.ifindex, wired.backend.ifindex}
        assert network.interface_name(999) == "999"


@in_fresh_netns
def test_address_and_mtu_reach_the_map() -> None:
    """XDP answers from the address that the interface has now, and knows how much it takes."""
    with wired_router(packets=False) as wired:
        network, _ = network_of(wired)
        maps, ifindex = wired.router.maps, wired.client.ifindex
        moved = replace(wired.client, addr=0xC6120001, mtu=1280)
        network.link_changed(LinkEvent("address", replace(moved, mtu=1500)))
        assert dict(maps.interfaces.items())[ifindex].addr == 0xC6120001
        assert maps.control.read().min_mtu == 1500
        network.link_changed(LinkEvent("mtu", moved))
        assert dict(maps.interfaces.items())[ifindex].mtu == 1280
        assert maps.control.read().min_mtu == 1280


@in_fresh_netns
def test_an_interface_that_is_gone_is_let_go() -> None:
    """Its backends are down, its sender is closed, what arrives there is not ours; the reason
    goes on to name it."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        network.path_changed(ADDR, wired.path(), "")
        assert probe_goes_out(wired)
        before = len(open_descriptors())
        network.interface_gone(wired.backend.ifindex, "be")
        assert len(open_descriptors()) == before - 1
        assert heard.states[-1] == (False, wired.backend.ifindex)
        assert network.paths[1] == (None, "interface be is gone")
        assert dict(wired.router.maps.interfaces.items()).keys() == {wired.client.ifindex}
        network.path_changed(ADDR, None, "no route to 198.18.1.1")
        assert network.paths[1] == (None, "no route to 198.18.1.1: interface be is gone")


@in_fresh_netns
def test_a_path_counts_from_the_moment_when_its_interface_is_attached() -> None:
    """Netlink may tell of it before: it is remembered."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        network.interface_gone(wired.backend.ifindex, "be")
        network.path_changed(ADDR, wired.path(), "")
        lost = (None, "its route leaves by interface be, which is not attached")
        assert network.paths[1] == lost
        network.interface_coming(wired.backend)
        assert wired.backend.ifindex in dict(wired.router.maps.interfaces.items())
        network.interface_not_coming(wired.backend)
        assert wired.backend.ifindex not in dict(wired.router.maps.interfaces.items())
        assert network.paths[1] == lost
        network.attached(wired.backend)
        assert network.paths == {1: (wired.path(), "")}
        assert heard.states[-1] == (True, wired.backend.ifindex)


@in_fresh_netns
def test_a_path_that_moved_before_its_interface_went_is_remembered() -> None:
    """It leads by another one by now, which is attached later: nobody reports it again."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        network.path_changed(ADDR, wired.path(), "")
        network.interface_gone(wired.client.ifindex, "cl")
        moved = replace(wired.path(), ifindex=wired.client.ifindex)
        network.path_changed(ADDR, moved, "")
        network.interface_gone(wired.backend.ifindex, "be")
        assert network.paths[1][0] is None
        network.attached(wired.client)
        assert network.paths[1] == (moved, "")
        assert heard.states[-1] == (True, wired.client.ifindex)


@in_fresh_netns
def test_many_backends_of_one_host_change_in_turns() -> None:
    """AT_ONCE a turn of the loop; what is lost comes first, and the newest news count."""
    count = 10 * AT_ONCE
    addrs = (ADDR, ADDR + 1)
    backends = [
        Backend(number, f"b{number}", Endpoint(addrs[number % 2], 1000 + number), 0)
        for number in range(2 * count)
    ]
    with wired_router(packets=False) as wired:
        heard: list[tuple[int, bool]] = []

        async def main() -> None:
            state = cast(KernelState, _Everything())
            network = Network(backends, state, wired.executor, tell)
            network.attached(wired.backend)
            path = wired.path()
            assert len(network.begin([(ADDR, None, "no route"), (ADDR + 1, path, "")])) == count
            network.path_changed(ADDR, path, "")
            network.path_changed(ADDR + 1, None, "gone")
            assert not heard
            steps = [0]
            while len(heard) < 2 * count:
                await asyncio.sleep(0)
                steps.append(len(heard))
            assert max(b - a for a, b in itertools.pairwise(steps)) <= AT_ONCE
            assert [up for _, up in heard] == [False] * count + [True] * count
            heard.clear()
            network.path_changed(ADDR, None, "gone")
            await asyncio.sleep(0.001)
            network.path_changed(ADDR, path, "")  # back before all of them were told
            await asyncio.sleep(0.05)
            assert {network.paths[b.id] for b in backends[::2]} == {(path, "")}
            assert dict(heard) == {backend.id: True for backend in backends[::2]}
            network.path_changed(ADDR, None, "gone")
            network.close()
            await asyncio.sleep(0.01)

        def tell(event: Event) -> None:
            if isinstance(event, BackendState):
                heard.append((event.backend, event.up))

        asyncio.run(main())


@in_fresh_netns
def test_backends_come_and_go_while_it_looks() -> None:
    """Those at an address that is known get its path, in turns if they are many; nobody hears of
    those that have gone, not even of news that were under way."""
    count = 5 * AT_ONCE
    backends = [Backend(n, f"b{n}", Endpoint(ADDR, 1000 + n), 0) for n in range(2 * count)]
    first, second = backends[:count], backends[count:]
    with wired_router(packets=False) as wired:
        heard: list[tuple[int, bool]] = []

        def tell(event: Event) -> None:
            if isinstance(event, BackendState):
                heard.append((event.backend, event.up))

        async def main() -> None:
            network = Network(first, cast(KernelState, _Everything()), wired.executor, tell)
            network.attached(wired.backend)
            path = wired.path()
            network.begin([(ADDR, path, "")])
            network.change([first[0], second[0]], first[1:])
            assert heard == [(second[0].id, True)]
            assert set(network.paths) == {first[0].id, second[0].id}
            heard.clear()
            network.change([first[0], *second], ())
            assert not heard, "they wait for their turn"
            await asyncio.sleep(0.05)
            assert dict(heard) == {each.id: True for each in second[1:]}
            heard.clear()
            network.path_changed(ADDR, None, "gone")
            network.change(second[:3], ())
            await asyncio.sleep(0.05)
            assert heard == [(each.id, False) for each in second[:3]]
            heard.clear()
            heavier = replace(second[0], weight=3)
            network.change([heavier, *second[1:3]], ())
            assert heard == [(heavier.id, False)]
            network.change([], ())
            assert network.paths == {}
            network.path_changed(ADDR, path, "")
            assert heard == [(heavier.id, False)], "nobody is there any more"
            network.close()

        asyncio.run(main())


@in_fresh_netns
def test_many_hosts_change_in_turns() -> None:
    """Each with a backend of its own: their interface goes and comes back, and hand-off stands
    otherwise; no turn of the loop has more than AT_ONCE backends, or lines."""
    count = 10 * AT_ONCE
    addrs = range(ADDR, ADDR + count)
    backends = [Backend(n, f"b{n}", Endpoint(addr, 80), 0) for n, addr in enumerate(addrs)]
    with wired_router(packets=False) as wired, capture_logs() as lines:
        heard: list[bool] = []

        def tell(event: Event) -> None:
            if isinstance(event, BackendState):
                heard.append(event.up)

        async def in_turns(up: bool) -> None:
            steps = [(0, 0), (len(heard), len(lines))]
            async with asyncio.timeout(10):
                while len(heard) < count:
                    await asyncio.sleep(0)
                    steps.append((len(heard), len(lines)))
            assert max(b[0] - a[0] for a, b in itertools.pairwise(steps)) <= AT_ONCE
            assert max(b[1] - a[1] for a, b in itertools.pairwise(steps)) <= AT_ONCE
            assert heard == [up] * count
            heard.clear()
            lines.clear()

        async def main() -> None:
            network = Network(backends, cast(KernelState, _Everything()), wired.executor, tell)
            network.attached(wired.backend)
            path = wired.path()
            network.begin([(addr, path, "") for addr in addrs])
            lines.clear()
            network.interface_gone(wired.backend.ifindex, "be")
            await in_turns(False)
            for addr in addrs:
                network.path_changed(addr, path, "")  # not attached: another reason
            await in_turns(False)
            network.attached(wired.backend)
            await in_turns(True)
            assert {network.paths[b.id] for b in backends} == {(path, "")}
            network.handoff = handoff = _Unusable()
            network.reconsider()
            await in_turns(False)
            handoff.reason = ""
            network.reconsider()
            network.close()
            heard.clear()
            await asyncio.sleep(0.01)
            assert not heard

        asyncio.run(main())


@in_fresh_netns
def test_nothing_is_left_to_do_after_close() -> None:
    """A turn that was to come fails nobody's shutdown."""
    count = 2 * AT_ONCE
    backends = [Backend(n, f"b{n}", Endpoint(ADDR, 1000 + n), 0) for n in range(count)]
    with wired_router(packets=False) as wired:
        faults: list[object] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what))
            state = cast(KernelState, _Everything())
            network = Network(backends, state, wired.executor, lambda _event: None)
            network.attached(wired.backend)
            network.path_changed(ADDR, wired.path(), "")
            network.close()
            await asyncio.sleep(0.01)

        asyncio.run(main())
        assert not faults


@in_fresh_netns
def test_a_retired_backends_interface_is_a_clients_again() -> None:
    """By which interfaces clients come is judged without it, at once and for good."""
    there = replace(B1, endpoint=Endpoint(ADDR + 9, 80), id=9)
    with wired_router(packets=False) as wired:
        router = wired.router
        state = cast(KernelState, _Everything())
        network = Network(router.backends, state, wired.executor, lambda _: None, [there])
        for link in (wired.client, wired.backend):
            network.attached(link)
        seen: list[set[int]] = []
        network.handoff = _Unusable(seen)
        by_client = replace(wired.path(), ifindex=wired.client.ifindex)
        network.begin([(ADDR, wired.path(), ""), (ADDR + 9, by_client, "")])
        assert seen[-1] == {wired.client.ifindex, wired.backend.ifindex}
        network.forget_retired(there)
        assert seen[-1] == {wired.backend.ifindex}
        seen.clear()
        network.path_changed(ADDR + 9, by_client, "")  # the kernel goes on to tell
        assert not seen


@in_fresh_netns
def test_a_way_is_judged_by_the_backends_method() -> None:
    """A gateway that comes between ends what ``dsr`` can do, and nothing of the others."""
    methods = Forwarding.NAT, Forwarding.DSR, Forwarding.IPIP
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        backends = [replace(B1, id=number, forwarding=m) for number, m in enumerate(methods)]
        for each in backends:
            wired.router.state._backends[each.id] = heard.value()
        network = Network(backends, wired.router.state, wired.executor, heard)
        for link in (wired.client, wired.backend):
            network.attached(link)
        network.path_changed(ADDR, wired.path(), "")
        assert [up for up, _ in heard.states] == [True] * 3
        heard.states.clear()
        with capture_logs() as logs:
            network.path_changed(ADDR, replace(wired.path(), gateway=0xC61201FE), "")
        assert [up for up, _ in heard.states] == [True, False, True]
        assert [heard.value(each.id).ifindex > 0 for each in backends] == [True, False, True]
        (down,) = [line for line in logs if line["event"] == "backend_down"]
        assert "gateway 198.18.1.254" in down["reason"]


class _Unusable:
    """Hand-off as a test says; ``seen``: the interfaces of all backends at each question."""

    def __init__(self, seen: list[set[int]] | None = None) -> None:
        self.reason = "" if seen is not None else "no way"
        self._seen = seen

    def takes_frames(self, ifindex: int) -> bool:
        return True

    def unusable(self, egress: int, egresses: Collection[int], family: int) -> str:
        if self._seen is not None:
            self._seen.append(set(egresses))
        return self.reason


class _Everything:
    """Takes any path of any backend."""

    def set_path(self, backend: int, path: object, by_kernel: bool) -> None: ...

    def set_up(self, backend: int, up: bool) -> None: ...

    def set_interface(self, link: object) -> None: ...

    def forget_interface(self, ifindex: int) -> None: ...

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@in_fresh_netns
def test_a_path_by_a_vlan_interface_on_an_attached_one() -> None:
    """Frames and probes leave by the interface below, with the tag; a configured one goes first."""
    with wired_router(packets=False) as wired:
        network, heard = network_of(wired)
        path = replace(wired.path(), ifindex=999, below=Tag(wired.backend.ifindex, 7))
        network.path_changed(ADDR, path, "")
        assert heard.value().ifindex == wired.backend.ifindex
        assert heard.value().vlan == abi.vlan_of(7)
        assert heard.states[-1] == (True, wired.backend.ifindex)
        known, reason = network.paths[1]
        assert (known and known.vlan, reason) == (7, "")
        assert probe_goes_out(wired)
        network.interface_gone(wired.backend.ifindex, "be1")
        assert network.paths[1] == (None, "interface be1 is gone")


@in_fresh_netns
def test_a_vlan_interface_puts_its_own_tag_on() -> None:
    """A tag that is configured beside it is not put on as well; that is told once."""
    with wired_router(packets=False) as wired:
        (web,) = wired.router.config.services
        backends = tuple(replace(each, vlan=9) for each in web.backends)
        config = RouterConfig((replace(web, backends=backends),), wired.router.config.settings)
        state = KernelState(wired.router.plane, config)
        state.write_all()
        heard = Heard(wired)
        network = Network(backends, state, wired.executor, heard)
        network.attached(wired.backend)
        assert heard.value().vlan == abi.vlan_of(9)
        path = replace(wired.path(), below=Tag(999, 7))
        with capture_logs() as logs:
            for number in (1, 2):
                network.path_changed(ADDR, replace(path, dmac=bytes((2, 0, 0, 0, 0, number))), "")
        assert heard.value().vlan == abi.VLAN_NONE
        known, reason = network.paths[1]
        assert (known and known.ifindex, reason) == (wired.backend.ifindex, "")
        (line,) = (line for line in logs if line["event"] == "vlan_ignored")
        assert (line["backend"], line["reason"].split(",")[0]) == (
            B1.name,
            f"{wired.backend.name} is a VLAN interface",
        )
        network.path_changed(ADDR, wired.path(), "")
        assert heard.value().vlan == abi.vlan_of(9)
