# SPDX-License-Identifier: Apache-2.0
"""Other configurations brought into maps that are in use: what is written, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS, service
from tests.support.small_router import SETTINGS, SmallRouter, small_router
from xdp_router.adapters.names import Names
from xdp_router.adapters.netlink import Path
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Backend, Endpoint, Forwarding, Service

B1, B2, _ = BACKENDS
PATH = Path(7, b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", 0xC6120101)
API = replace(
    service(1),
    id=5,
    name="api",
    endpoint=Endpoint(0xC6126401, 81),
    backends=(Backend(9, "a1", Endpoint(0xC6120109, 8080), 5),),
)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    """One that runs, both of its backends up."""
    with small_router() as made:
        for backend in made.backends:
            made.state.set_path(backend.id, PATH)
            made.state.set_up(backend.id, True)
        made.state.open_services()
        yield made


def change(router: SmallRouter, *services: Service, retired: tuple[Backend, ...] = ()) -> None:
    """Have these from now on."""
    router.state.change(RouterConfig(services, SETTINGS), retired)()


def flags(router: SmallRouter, number: int) -> int:
    """Those of a backend."""
    value = router.maps.backends.read(number)
    assert value is not None
    return value.flags


def test_a_backend_that_comes_back_is_indexed_again(router: SmallRouter) -> None:
    """By the number that it had, after it was forgotten: what is remembered is what is there."""
    web = router.config.services[0]
    change(router, replace(web, backends=(B1,)), retired=(B2,))
    assert flags(router, B2.id) == 0
    assert router.maps.backend_index.read(B2.endpoint) == (B2.id, 0)
    router.state.forget_backend(B2)
    assert router.maps.backend_index.read(B2.endpoint) is None
    change(router, web)
    assert router.maps.backend_index.read(B2.endpoint) == (B2.id, 0)
    assert flags(router, B2.id) == 0, "nobody knows its path yet"
    assert flags(router, B1.id) == abi.BACKEND_UP
    assert Names(router.plane.maps["names"]).read()[1] == {1: "b1", 2: "b2"}


def test_a_service_is_forgotten_with_its_last_backend(router: SmallRouter) -> None:
    """Its number and its name; its packets are other traffic's at once."""
    web = router.config.services[0]
    change(router, web, API)
    assert {at.port for at, _ in router.maps.services.items()} == {80, 81}
    change(router, web, retired=API.backends)
    assert {at.port for at, _ in router.maps.services.items()} == {80}
    assert Names(router.plane.maps["names"]).read()[0] == {0: "web", 5: "api"}
    router.state.forget_backend(API.backends[0])
    assert Names(router.plane.maps["names"]).read() == ({0: "web"}, {1: "b1", 2: "b2"})


def test_a_number_that_is_given_anew_counts_from_the_start(router: SmallRouter) -> None:
    """Neither what was counted of another service, nor its pressure, is the new one's."""
    router.maps.usage.age(5, -7)
    assert router.maps.usage.open(5) == 7
    change(router, *router.config.services, API)
    assert router.maps.usage.open(5) == 0
    router.maps.usage.age(5, -3)
    change(router, replace(router.config.services[0], name="www"), API)
    assert router.maps.usage.open(5) == 3


def test_an_endpoint_goes_by_the_path_of_who_names_it(router: SmallRouter) -> None:
    """A tunnel's backend names it before others while it has a path, over changes, too."""
    web = router.config.services[0]
    tunnel = replace(
        API,
        forwarding=Forwarding.IPIP,
        backends=(Backend(9, "a1", B1.endpoint, 5, forwarding=Forwarding.IPIP),),
    )
    change(router, web, tunnel)
    assert router.maps.backend_index.read(B1.endpoint) == (B1.id, 0)
    router.state.set_path(9, PATH)
    assert router.maps.backend_index.read(B1.endpoint) == (9, 5)
    change(router, replace(web, name="www"), tunnel)
    assert router.maps.backend_index.read(B1.endpoint) == (9, 5)
    router.state.set_path(9, None)
    assert router.maps.backend_index.read(B1.endpoint) == (B1.id, 0)
    router.state.set_path(9, PATH)
    change(router, web, retired=tunnel.backends)
    assert router.maps.backend_index.read(B1.endpoint) == (B1.id, 0)
    change(router, tunnel, web)
    router.state.set_path(9, None)
    assert router.maps.backend_index.read(B1.endpoint) == (B1.id, 0)
    change(router, tunnel, retired=web.backends)
    assert router.maps.backend_index.read(B1.endpoint) == (9, 5)


def test_what_is_the_same_is_not_written(router: SmallRouter) -> None:
    """Another hand's value stays where nothing differs: with many services that is most of it."""
    web = router.config.services[0]
    change(router, web, API)
    mark = abi.BackendValue(1, 2, 3, 6, 0, 0, 0, bytes(6), bytes(6), 1)
    router.maps.backends.write(9, mark)
    change(router, replace(web, backends=(replace(B1, weight=7), B2)), API)
    assert router.maps.backends.read(9) == mark
    value = router.maps.backends.read(B1.id)
    assert value is not None
    assert value.weight == 7
    change(router, web, replace(API, backends=(replace(API.backends[0], weight=2),)))
    assert router.maps.backends.read(9) != mark
