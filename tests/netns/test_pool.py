# SPDX-License-Identifier: Apache-2.0
"""Connections to backends that are kept between requests."""

from __future__ import annotations

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import chat, request
from tests.support.gateway_place import Place, gateway
from tests.support.netns import wait_for
from xdp_router.daemon.gateway.wire import KEEPALIVE

HTTP = 'type = "http"\nmode = "inline"'


def connections(place: Place) -> int:
    """That the engine has had."""
    return place.call(lambda: place.engines["a"].counts.connections)


@in_fresh_netns
def test_they_are_shared_by_clients() -> None:
    """One after the other needs one; at the same time they need one each."""
    with gateway(HTTP, {"a": ""}) as place:
        for _ in range(5):
            with place.connect() as client:
                assert client.ask(request("GET", "/health")).status == 200
        assert connections(place) == 1
        clients = [place.connect() for _ in range(4)]
        slow = request("GET", "/sse", headers=[("x-mock", "tokens=3,gap-ms=30")])
        for each in clients:
            each.send(slow)
        for each in clients:
            assert each.answer().status == 200
            each.close()
        assert connections(place) == 4
        place.settled()
        assert place.call(lambda: place.world.pool.idle) == 4


@in_fresh_netns
def test_a_request_that_cannot_be_repeated_gets_a_recent_one() -> None:
    """A server may close one that has waited long just when the request is on its way."""
    with gateway(HTTP, {"a": ""}) as place, place.connect() as client:
        assert client.ask(request("POST", "/echo", b"x")).status == 200
        assert client.ask(request("POST", "/echo", b"x")).status == 200
        assert connections(place) == 1
        real = place.world.pool._clock
        place.world.pool._clock = lambda: real() + 1_000_000_000
        assert client.ask(request("POST", "/echo", b"x")).status == 200
        assert connections(place) == 2


@in_fresh_netns
def test_a_backend_that_does_not_answer_is_given_up() -> None:
    """After connect_timeout, for another one, or with a 504."""
    with IPRoute() as ipr:  # a link behind which nobody is
        ipr.link("add", ifname="void", kind="veth", peer="nobody")
        for name in ("void", "nobody"):
            ipr.link("set", index=ipr.link_lookup(ifname=name)[0], state="up")
        index = ipr.link_lookup(ifname="void")[0]
        ipr.addr("add", address="198.18.9.1", prefixlen=24, index=index)
    gone = '[[listener.backend]]\nname = "gone"\naddress = "198.18.9.9:80"\n'
    keys = 'type = "llm"\nmode = "inline"\nconnect_timeout = "60ms"'
    with gateway(keys, {}, more=gone) as place:
        with place.connect() as client:
            assert client.ask(chat()).status == 504
        place.settled()


@in_fresh_netns
def test_a_host_that_is_gone_is_noticed() -> None:
    """By the kernel: a tunnel has no deadline of its own."""
    with gateway(HTTP, {"a": ""}) as place, place.connect() as client:
        assert client.ask(request("GET", "/health")).status == 200
        (accepted,) = place.fronts["front"].connections
        wait_for(lambda: place.call(lambda: place.world.pool.idle) == 1, 5, "it is kept")
        (kept,) = place.world.pool._idle.values()
        for transport in (accepted._transport, kept[0].transport):
            assert transport is not None
            sock = transport.get_extra_info("socket")
            for level, option, value in KEEPALIVE:
                assert sock.getsockopt(level, option) == value


@in_fresh_netns
def test_those_that_a_backend_closes_are_forgotten() -> None:
    """Whatever it closes them for."""
    with gateway(HTTP, {"a": "close=1"}) as place, place.connect() as client:
        for _ in range(3):
            assert client.ask(request("GET", "/sse")).status == 200
        wait_for(lambda: place.call(lambda: place.world.pool.idle) == 0, 5, "none is kept")
        place.settled()
