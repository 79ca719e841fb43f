# SPDX-License-Identifier: Apache-2.0
"""The keys of ``backend_index`` that are there for probes, beside the backends' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_syscall import map_info
from xdp_router.core import abi
from xdp_router.core.model import Endpoint

HOST, HOST6 = 0xC6120102, 0x20010DB8 << 96 | 2
SSH = (Endpoint(HOST, 22, 6), abi.EndpointKind.PROBE)
ECHO6 = (Endpoint(HOST6, 0, 58), abi.EndpointKind.PROBE)
STUN = (Endpoint(HOST, 3478, 17), abi.EndpointKind.STUN)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def test_they_are_replaced_as_a_whole(router: SmallRouter) -> None:
    """What is not among the new ones goes; of both families, and of both kinds."""
    index = router.maps.probe_index
    assert index.items() == {}
    index.replace({SSH: (1, 0), ECHO6: (2, 0), STUN: (1, 0)})
    assert index.items() == {SSH: (1, 0), ECHO6: (2, 0), STUN: (1, 0)}
    index.replace({SSH: (2, 0)})
    assert index.items() == {SSH: (2, 0)}


def test_they_and_the_backends_own_do_not_see_each_other(router: SmallRouter) -> None:
    """An endpoint may be in the index as a backend, as a STUN server, and as probed."""
    own = dict(router.maps.backend_index.items())
    endpoint = router.backends[0].endpoint
    assert endpoint in own
    router.maps.probe_index.replace(
        {(endpoint, kind): (2, 0) for kind in (abi.EndpointKind.PROBE, abi.EndpointKind.STUN)}
    )
    assert dict(router.maps.backend_index.items()) == own
    router.maps.backend_index.delete(endpoint)
    assert len(router.maps.probe_index.items()) == 2


def test_there_is_room_for_one_for_each_backend(router: SmallRouter) -> None:
    """However many there may be; beyond that the kernel refuses."""
    room = map_info(router.plane.maps["backends"]).max_entries
    many = {
        (Endpoint(HOST, port, 6), abi.EndpointKind.PROBE): (1, 0) for port in range(1, room + 1)
    }
    router.maps.probe_index.replace(many)
    assert len(router.maps.probe_index.items()) == room
    too_many = {
        (Endpoint(HOST, port, 17), abi.EndpointKind.PROBE): (1, 0) for port in range(1, 3 * room)
    }
    with pytest.raises(BpfError, match="backend_index|E2BIG|Argument list too long"):
        router.maps.probe_index.replace(too_many)
