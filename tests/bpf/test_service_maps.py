# SPDX-License-Identifier: Apache-2.0
"""The maps that say more of a service, over real ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.support.cast import service
from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.core import abi
from xdp_router.core.model import Endpoint, SourcePrefix

HOST, HOST6 = 0xC6120102, 0x20010DB8 << 96 | 2
NET = SourcePrefix(0xC6120000, 16, False)
HOLE = SourcePrefix(0xC6120300, 24, True)
ALL6 = SourcePrefix(0, 0, True)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def test_ranges_are_replaced_as_a_whole(router: SmallRouter) -> None:
    """What is not among the new ones goes; the order of ranges is kept."""
    table = router.maps.service_ranges
    table.replace({(HOST, 6): [(80, 90), (1, 1000)], (HOST6, 17): [(0, 65535)]})
    assert table.items() == {(HOST, 6): ((80, 90), (1, 1000)), (HOST6, 17): ((0, 65535),)}
    table.replace({(HOST, 6): [(5, 6)]})
    assert table.items() == {(HOST, 6): ((5, 6),)}


def test_source_rules_of_both_families(router: SmallRouter) -> None:
    """Prefixes, and what is said of everybody else; others go when they are not wanted."""
    table = router.maps.source_rules
    web = dataclasses.replace(service(), sources=(NET, HOLE), allowed_only=True)
    six = dataclasses.replace(service(), id=1, endpoint=Endpoint(HOST6, 80), sources=(ALL6,))
    keys = table.add([web, six])
    allow, deny = abi.SourceRule.ALLOW, abi.SourceRule.DENY
    assert table.items() == {
        abi.pack_source_key(0, NET.network, 16): allow,
        abi.pack_source_key(0, HOLE.network, 24): deny,
        abi.pack_source_default(0): deny,
        abi.pack_source_key(1, 0, 0, 6): deny,
    }
    assert {abi.source_service(key) for key in keys} == {0, 1}
    table.keep_only(table.add([dataclasses.replace(web, sources=(NET,), allowed_only=False)]))
    assert table.items() == {abi.pack_source_key(0, NET.network, 16): allow}


def test_an_affinity_that_is_not_known_is_forgotten(router: SmallRouter) -> None:
    """By service and backend; the others stay."""
    table = router.maps.affinity
    table.write(HOST, 0, 5, 1)
    table.write(HOST6, 0, 6, 2)
    table.write(HOST, 1, 7, 1)
    assert table.forget(lambda service, backend: (service, backend) == (0, 2)) == 2
    assert table.read(HOST6, 0) == (6, 2)
    assert table.read(HOST, 0) is None


def test_a_connection_that_is_not_known_is_forgotten(router: SmallRouter) -> None:
    """By service and backend; the others stay."""
    table = BpfMap(router.plane.maps["quic_ids"])
    for number, backend in ((0, 1), (0, 2), (1, 2)):
        name = bytes([number, backend]) * 4
        table.write(abi.pack_quic_key(number, name), abi.pack_sticky(5, backend))
    known = router.maps.connection_ids
    assert known.forget(lambda service, backend: (service, backend) == (0, 2)) == 2
    assert list(table.each_key()) == [abi.pack_quic_key(0, b"\0\2" * 4)]


def test_usage_is_what_came_less_what_went(router: SmallRouter) -> None:
    """Of each service alone; a correction may be negative, and what is open never is."""
    usage = router.maps.usage
    assert usage.totals() == {}
    usage.age(0, 2)
    assert usage.open(0) == 0
    assert usage.totals() == {0: (0, 2)}
    usage.age(0, -5)
    assert usage.open(0) == 3
    assert usage.totals() == {0: (0, -3)}
    usage.age(1)
    usage.reset(0)
    assert usage.totals() == {1: (0, 1)}
    usage.age(1_000_000)  # a number that there is no room for
