# SPDX-License-Identifier: Apache-2.0
"""What KernelState writes of services of many ports, and what an adopting one leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.support.cast import service
from tests.support.small_router import SETTINGS, SmallRouter, small_router
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Endpoint, Service, SourcePrefix
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.service_rules import admission_of

WIDE = dataclasses.replace(
    service(),
    endpoint=Endpoint(0xC6126401, 0, 6, True, 65535),
    except_ports=((22, 22), (8000, 8100)),
    affinity_ns=5,
    max_connections=9,
    sources=(SourcePrefix(0xC6120000, 16, True),),
)
SSH, HOLE = Endpoint(0xC6126401, 22), Endpoint(0xC6126401, 8000, 6, True, 8100)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def opened(router: SmallRouter, made: Service, adopted: bool) -> KernelState:
    """A daemon's state after it has opened its service."""
    state = KernelState(router.plane, RouterConfig((made,), SETTINGS), adopted=adopted)
    state.write_all()
    state.open_services()
    return state


def test_fields_of_a_service() -> None:
    """Flags only where there is something to look at."""
    assert admission_of(service()) == {"flags": 0, "flow_limit": 0, "affinity_ns": 0}
    assert admission_of(WIDE) == {
        "flags": abi.SERVICE_SOURCES | abi.SERVICE_AFFINITY, "flow_limit": 9, "affinity_ns": 5,
    }  # fmt: skip


def test_a_wide_service_and_what_it_leaves_out(router: SmallRouter) -> None:
    """It is there with its ranges and rules; what is left out has no backends."""
    state = opened(router, WIDE, False)
    found = dict(router.maps.services.items())
    assert {at: value.backend_count for at, value in found.items()} == {
        WIDE.endpoint: 2, SSH: 0, HOLE: 0,
    }  # fmt: skip
    assert router.maps.service_ranges.items() == {(0xC6126401, 6): ((8000, 8100), (0, 65535))}
    assert len(router.maps.source_rules.items()) == 1
    assert router.maps.control.read().flags == abi.CONTROL_RANGES
    state.set_handoff({1: abi.IF_NO_XMIT})
    assert router.maps.control.read().flags == abi.CONTROL_RANGES | abi.CONTROL_NO_XMIT


def test_a_successor_without_them_takes_all_away(router: SmallRouter) -> None:
    """Nothing of ranges, rules and what was left out stays."""
    opened(router, WIDE, False)
    opened(router, service(), True)
    assert [at for at, _ in router.maps.services.items()] == [service().endpoint]
    assert router.maps.service_ranges.items() == {}
    assert router.maps.source_rules.items() == {}
    assert router.maps.control.read().flags == 0


def test_what_was_open_stays_open_until_others_are(router: SmallRouter) -> None:
    """A successor that has neither ranges nor echo looks for both until its services are open."""
    opened(router, dataclasses.replace(WIDE, icmp_echo=True), False)
    state = KernelState(router.plane, RouterConfig((service(),), SETTINGS), adopted=True)
    state.write_all()
    state.set_handoff({})
    assert router.maps.control.read().flags == abi.CONTROL_RANGES | abi.CONTROL_ECHO
    state.open_services()
    assert router.maps.control.read().flags == 0


def test_ports_that_change_hands_are_never_nobodys(
    router: SmallRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former's service goes when its successor's is there, and the ports lead to that one."""
    first = dataclasses.replace(service(), endpoint=Endpoint(0xC6126401, 8000, 6, True, 8100))
    opened(router, first, False)
    wider = dataclasses.replace(service(), endpoint=Endpoint(0xC6126401, 7000, 6, True, 9000))
    state = KernelState(router.plane, RouterConfig((wider,), SETTINGS), adopted=True)
    state.write_all()
    seen = []
    monkeypatch.setattr(
        type(state.maps.services),
        "delete",
        lambda services, endpoint: seen.append(
            (endpoint, services.read(wider.endpoint), router.maps.service_ranges.items())
        ),
    )
    state.open_services()
    ((gone, value, ranges),) = seen
    assert gone == first.endpoint
    assert value is not None
    assert ranges == {(0xC6126401, 6): ((7000, 9000),)}


def test_affinities_outlive_a_daemon_as_their_backends_do(router: SmallRouter) -> None:
    """One whose backend's number is another's by now is forgotten."""
    opened(router, WIDE, False)
    for table in (router.maps.affinity, router.maps.companions):
        table.write(1 << 31, 0, 5, 1)
        table.write(1 << 30, 0, 5, 2)
    first, second = WIDE.backends
    moved = dataclasses.replace(second, endpoint=Endpoint(0xC6120199, 80))
    opened(router, dataclasses.replace(WIDE, backends=(first, moved)), True)
    for table in (router.maps.affinity, router.maps.companions):
        assert table.read(1 << 31, 0) == (5, 1)
        assert table.read(1 << 30, 0) is None


def test_quic_connections_outlive_a_daemon_as_their_backends_do(router: SmallRouter) -> None:
    """Those of a backend or a service whose number is another one's by now are forgotten."""
    quic = dataclasses.replace(service(), quic=True)
    opened(router, quic, False)
    table = BpfMap(router.plane.maps["quic_ids"])
    kept, moved_away, others = (
        abi.pack_quic_key(number, name)
        for number, name in ((0, b"at first"), (0, b"at second"), (1, b"elsewhere"))
    )
    table.write(kept, abi.pack_sticky(5, 1))
    table.write(moved_away, abi.pack_sticky(5, 2))
    table.write(others, abi.pack_sticky(5, 1))
    first, second = quic.backends
    moved = dataclasses.replace(second, endpoint=Endpoint(0xC6120199, 80))
    opened(router, dataclasses.replace(quic, backends=(first, moved)), True)
    assert list(table.each_key()) == [kept]
    opened(router, dataclasses.replace(quic, quic=False), True)
    assert not list(table.each_key())


def test_a_service_that_goes_on_keeps_its_count_and_a_new_one_has_none(
    router: SmallRouter,
) -> None:
    """A number that another service had begins at nothing."""
    opened(router, WIDE, False)
    router.maps.usage.age(0, -4)
    opened(router, WIDE, True)
    assert router.maps.usage.open(0) == 4
    opened(router, service(), True)
    assert router.maps.usage.open(0) == 0
