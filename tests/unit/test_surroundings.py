# SPDX-License-Identifier: Apache-2.0
"""Which backends are unfit for a client, by what is known of their paths."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.cast import BACKENDS, first, service
from xdp_router.core.events import BackendPath, FirstPacket
from xdp_router.core.model import Forwarding, Unfit
from xdp_router.core.surroundings import Surroundings, Unfits

HERE, ELSEWHERE = 2, 3
"""``first`` comes in by interface 2."""
SUBNET = (0xC6120100, 0xFFFFFF00)
WEB = service(3)
ALL = {1, 2, 3}
B1, B2, B3 = BACKENDS


def client(addr: int) -> FirstPacket:
    """The first packet of a client."""
    packet = first(1)
    return dataclasses.replace(packet, key=dataclasses.replace(packet.key, client_addr=addr))


def look(
    addr: int, *paths: BackendPath, up: set[int] | None = None
) -> tuple[Unfits, frozenset[int]]:
    surroundings = Surroundings([WEB])
    for path in paths:
        surroundings.moved(path)
    return surroundings.unfit(WEB, client(addr), ALL if up is None else up)


def everywhere(ifindex: int = HERE) -> list[BackendPath]:
    """All backends in one subnet."""
    return [BackendPath(each.id, ifindex, (SUBNET,)) for each in BACKENDS]


def test_a_stranger() -> None:
    """Nobody is unfit for a client in no backend's subnet, nor while no path is known."""
    assert look(0xC6120001, *everywhere()) == ((), frozenset())
    assert look(0xC6120177) == ((), frozenset())


def test_a_backend_is_the_client() -> None:
    """It alone is passed over, even if nobody else is up."""
    expected = ((2, Unfit.CLIENT_ITSELF),), frozenset({2})
    assert look(B2.endpoint.addr) == expected
    assert look(B2.endpoint.addr, up={2}) == expected


def test_a_client_in_the_subnet() -> None:
    """Backends that answer it directly are passed over while there is another."""
    beside = BackendPath(1, HERE, (SUBNET,))
    assert look(0xC6120177, beside) == (((1, Unfit.BESIDE_CLIENT),), frozenset({1}))
    assert look(0xC6120177, beside, up={1}) == (((1, Unfit.BESIDE_CLIENT),), frozenset())
    unfit, excluded = look(0xC6120177, *everywhere())
    assert [backend for backend, _ in unfit] == [1, 2, 3]
    assert excluded == frozenset()


def test_it_came_in_elsewhere() -> None:
    """An address of the subnet that comes by another interface is not in it."""
    assert look(0xC6120177, *everywhere(ELSEWHERE)) == ((), frozenset())


def test_a_path_that_moves() -> None:
    """Only the newest counts; one of nobody's backend is no matter."""
    old, new = BackendPath(1, HERE, (SUBNET,)), BackendPath(1, ELSEWHERE, (SUBNET,))
    assert look(0xC6120177, old, new) == ((), frozenset())
    assert look(0xC6120177, BackendPath(99, HERE, (SUBNET,))) == ((), frozenset())


def test_both_kinds_at_once() -> None:
    """The client itself is told as such, and is left out even as the last resort."""
    unfit, excluded = look(B1.endpoint.addr, *everywhere())
    assert unfit == (
        (1, Unfit.CLIENT_ITSELF),
        (2, Unfit.BESIDE_CLIENT),
        (3, Unfit.BESIDE_CLIENT),
    )
    assert excluded == frozenset({1})


NETWORK6, MASK6 = 0x20010DB8_00000007 << 64, (1 << 128) - (1 << 64)


def test_a_client_in_an_ipv6_subnet() -> None:
    """All of an address counts; the next subnet is another one."""
    beside = BackendPath(1, HERE, ((NETWORK6, MASK6),))
    unfit = ((1, Unfit.BESIDE_CLIENT),), frozenset({1})
    assert look(NETWORK6 | 0x77, beside) == unfit
    assert look(NETWORK6 + (1 << 64) | 0x77, beside) == ((), frozenset())


def test_families_are_not_mixed_up() -> None:
    """An IPv6 client whose last bits are those of an IPv4 subnet is no neighbour of it."""
    beside = BackendPath(1, HERE, (SUBNET, (NETWORK6, MASK6)))
    assert look(0x20010DB8 << 96 | 0xC6120177, beside) == ((), frozenset())
    assert look(0xC6120277, beside) == ((), frozenset())


def test_with_fullnat_everybody_is_fit() -> None:
    """Answers are addressed to the router, wherever the client stands."""
    web = dataclasses.replace(WEB, forwarding=Forwarding.FULLNAT)
    surroundings = Surroundings([web])
    for path in everywhere():
        surroundings.moved(path)
    for addr in (B2.endpoint.addr, 0xC6120177):
        assert surroundings.unfit(web, client(addr), ALL) == ((), frozenset())


@pytest.mark.parametrize("method", [Forwarding.DSR, Forwarding.IPIP])
def test_backends_that_answer_directly_may_be_beside_the_client(method: Forwarding) -> None:
    """That is the point of these methods; only the client itself is still passed over."""
    surroundings = Surroundings([dataclasses.replace(WEB, forwarding=method)])
    for path in everywhere():
        surroundings.moved(path)
    direct = dataclasses.replace(WEB, forwarding=method)
    assert surroundings.unfit(direct, client(0xC6120177), ALL) == ((), frozenset())
    itself = ((2, Unfit.CLIENT_ITSELF),), frozenset({2})
    assert surroundings.unfit(direct, client(B2.endpoint.addr), ALL) == itself
