# SPDX-License-Identifier: Apache-2.0
"""What ``dsr`` and ``ipip`` make of a way to a backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS
from xdp_router.adapters.netlink import BackendRouteError, Path, Resolution
from xdp_router.core.address import parse_addr
from xdp_router.core.model import Backend, Forwarding
from xdp_router.daemon.direct_paths import Known, require_on_link, usable

NAT = BACKENDS[0]
DSR, IPIP = (replace(NAT, forwarding=each) for each in (Forwarding.DSR, Forwarding.IPIP))
GATEWAY = parse_addr("198.18.1.254")
ON_LINK = Path(7, b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", 0xC6120101)
BEHIND = replace(ON_LINK, gateway=GATEWAY)


def seen(backend: Backend, known: Known) -> Known:
    return usable(backend, known, lambda ifindex: f"eth{ifindex}")


@pytest.mark.parametrize("known", [((BEHIND, ""), True), ((None, "no route"), True)])
def test_what_is_rewritten_goes_any_way(known: Known) -> None:
    """By a gateway, and by the kernel: nothing is changed, or made anew."""
    assert seen(NAT, known) is known


def test_dsr_needs_its_backend_on_the_link() -> None:
    """Behind a gateway it has no path at all, and the reason names the gateway."""
    assert seen(DSR, ((ON_LINK, ""), False)) == ((ON_LINK, ""), False)
    (path, reason), kernel = seen(DSR, ((BEHIND, ""), False))
    assert (path, kernel) == (None, False)
    assert "gateway 198.18.1.254, which would send packets of forwarding 'dsr' back" in reason


def test_a_tunnel_may_lead_by_a_gateway() -> None:
    """Its packets bear the backend's address."""
    assert seen(IPIP, ((BEHIND, ""), False)) == ((BEHIND, ""), False)


@pytest.mark.parametrize("backend", [DSR, IPIP], ids=["dsr", "ipip"])
def test_nothing_is_left_to_the_kernel(backend: Backend) -> None:
    """It would route by the service's address: where XDP cannot send, nobody can."""
    (path, reason), kernel = seen(backend, ((ON_LINK, ""), True))
    assert (path, kernel) == (None, False)
    assert "eth7 takes no XDP frames" in reason
    assert seen(backend, ((None, "no ARP answer"), True)) == ((None, "no ARP answer"), False)


def resolution(next_hop: int) -> Resolution:
    return Resolution(NAT.endpoint.addr, None, "", 7, "eth7", next_hop)


def test_attach_refuses_dsr_behind_a_gateway() -> None:
    """All such backends are named; others, and those without a route, are not looked at."""
    addr = NAT.endpoint.addr
    require_on_link([DSR, IPIP, NAT], {addr: resolution(addr)})
    require_on_link([IPIP, NAT], {addr: resolution(GATEWAY)})
    require_on_link([DSR], {addr: resolution(0)})
    require_on_link([DSR], {})
    with pytest.raises(BackendRouteError) as caught:
        require_on_link([DSR, IPIP, replace(DSR, name="other")], {addr: resolution(GATEWAY)})
    assert str(caught.value).count("its route goes by gateway 198.18.1.254") == 2
    assert f"backend {DSR.name} (198.18.1.1)" in str(caught.value)
    assert "backend other" in str(caught.value)
    assert str(caught.value).endswith("use forwarding 'ipip', or put it on a link of this host")
