# SPDX-License-Identifier: Apache-2.0
"""Both directions of a tunnel, behind an upgrade: each ends by itself, and passes its end on."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, RawClient, request
from tests.support.gateway_place import ENGINE_PORT, Place, gateway
from tests.support.netns import wait_for
from tests.support.scripted_backend import Step, close, half_close, reset, scripted
from xdp_router.daemon.gateway.tunnel import HALF_LATE, Ends

HTTP = 'type = "http"\nmode = "inline"\nstream_timeout = "50ms"'
ONE = f'[[listener.backend]]\nname = "one"\naddress = "127.0.0.1:{ENGINE_PORT}"\n'
ASK = request("GET", "/ws", headers=[("Connection", "Upgrade"), ("Upgrade", "x")])
CHANGED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
LATE = b"late " * 40_000


def until_the_end(heard: list[bytes]) -> Callable[[socket.socket], None]:
    """A step: all that comes, and b"RST" if it ends so."""

    def hear(sock: socket.socket) -> None:
        try:
            while data := sock.recv(65536):
                heard.append(data)
            heard.append(b"FIN")
        except ConnectionResetError:
            heard.append(b"RST")

    return hear


def is_half(place: Place) -> bool:
    """Whether one side of the only tunnel has said all."""

    def look() -> bool:
        (client,) = place.fronts["front"].connections
        return client.exchange is not None and client.exchange.tunnel.ends.newest_ns > 0

    return place.call(look)


def test_who_has_said_all() -> None:
    """Only what is half closed can be late."""
    ends = Ends()
    assert not ends.is_late(1 << 62)
    ends.backend, ends.newest_ns = True, 10
    assert (ends.is_late(10), ends.is_late(11), ends.is_over) == (False, True, False)
    ends.client = True
    assert (ends.is_late(11), ends.is_over) == (False, True)


@in_fresh_netns
def test_each_half_ends_by_itself() -> None:
    """The client's first, or the backend's: all that the other one still says passes."""
    heard: list[bytes] = []
    hear, go = until_the_end(heard), threading.Event()
    plays: list[list[Step]] = [
        [CHANGED, hear, LATE, close],
        [CHANGED + b"all", half_close, hear, close],
        [CHANGED + b"all", half_close, lambda _: go.wait(10), reset],
    ]
    with scripted(ENGINE_PORT, *plays), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            assert client.send(ASK + b"early").head().status == 101
            client.half_close()
            assert client.take(len(LATE)) == LATE
            assert client.end() is False
        assert (b"".join(heard), place.last()["end"]) == (b"earlyFIN", "complete")
        heard.clear()
        with place.connect() as client:
            assert client.send(ASK).head().status == 101
            assert client.take(3) == b"all"
            assert client.end() is False
            client.send(LATE)
            client.half_close()
            wait_for(lambda: b"FIN" in heard, 5, "the backend has heard all")
        assert (b"".join(heard), place.last()["end"]) == (LATE + b"FIN", "complete")
        with place.connect() as client:  # and of a backend that hears nothing more
            assert client.send(ASK).head().status == 101
            wait_for(lambda: is_half(place), 5, "its FIN has come")
            go.set()
            with contextlib.suppress(OSError):
                while place.call(place.fronts["front"].streams):
                    client.send(b"x")
                    time.sleep(0.01)
            assert client.take(3) == b"all"
        assert place.last()["end"] == "complete"
        place.settled()
        assert len(place.lines) == 3
        assert not place.call(lambda: place.fronts["front"].figures.plain()).get("broken_off_total")


@in_fresh_netns
def test_rst_is_passed_on_as_such() -> None:
    """Of the client's, and of the backend's."""
    heard: list[bytes] = []
    plays: list[list[Step]] = [[CHANGED, until_the_end(heard)], [CHANGED, reset]]
    with scripted(ENGINE_PORT, *plays), gateway(HTTP, {}, more=ONE) as place:
        client = place.connect()
        assert client.send(ASK).head().status == 101
        client.reset()
        wait_for(lambda: bool(heard), 5, "the backend sees the end")
        assert heard == [b"RST"]
        with place.connect() as client:
            assert client.send(ASK).head().status == 101
            assert client.end() is True
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("first", ["client", "backend"])
def test_half_a_tunnel_that_is_silent_ends(first: str) -> None:
    """By RST to both, after stream_timeout. A whole one may be silent; so may be half of one for
    as long as there is something every now and then."""
    heard: list[bytes] = []
    speak, go = threading.Event(), threading.Event()
    hear = until_the_end(heard)

    def wait(sock: socket.socket) -> None:
        speak.wait(10)
        sock.sendall(b"more")

    play: list[Step] = [CHANGED, half_close, hear]
    if first == "client":
        play = [CHANGED, wait, lambda _: go.wait(10)]
    with scripted(ENGINE_PORT, play), gateway(HTTP, {}, more=ONE) as place:
        front = place.fronts["front"]
        with place.connect() as client:
            assert client.send(ASK).head().status == 101
            if first == "client":
                time.sleep(0.06)
                place.call(front.sweep)
                assert place.call(front.streams)
                client.half_close()
            wait_for(lambda: is_half(place), 5, "FIN has come")
            time.sleep(0.06)
            if first == "client":
                speak.set()
                assert client.take(4) == b"more"
            else:
                assert client.end() is False
                came = place.call(front.streams)[0]["bytes_in"]
                client.send(b"more")
                wait_for(lambda: place.call(front.streams)[0]["bytes_in"] > came, 5, "it has come")
            place.call(lambda: _sweep_before(place, 40))
            assert place.call(front.streams)
            time.sleep(0.06)
            place.call(front.sweep)
            assert place.last()["end"] == HALF_LATE
            if first == "client":
                with pytest.raises(CutOff) as cut:
                    client.take(1)
                assert cut.value.reset
                go.set()
            else:
                wait_for(lambda: heard[-1:] == [b"RST"], 5, "the backend sees the end")
        place.settled()
        rows = place.call(front.plain)["deadline_closes_total"]
        assert rows == [[["front", "half closed"], 1]]
        assert json.loads(place.lines[-1])["status"] == 101


def _sweep_before(place: Place, ms: int) -> None:
    """A sweep as of so long ago: on a busy machine even a moment is longer than the deadline."""
    world, clock = place.world, place.world.clock
    world.clock = lambda: clock() - ms * 1_000_000
    place.fronts["front"].sweep()
    world.clock = clock


@in_fresh_netns
def test_where_tls_ends_here_it_is_the_end_of_both(tmp_path: Path) -> None:
    """Its close_notify is one of the whole connection here: what was said before is passed on."""
    heard: list[bytes] = []
    chain, key = write_certificate(tmp_path, "gateway.test")
    tls = f'\n[listener.tls]\ncertificate = "{chain}"\nkey = "{key}"\n'
    plays: list[list[Step]] = [[CHANGED, until_the_end(heard)], [CHANGED + b"all", half_close]]
    context = ssl.create_default_context(cafile=str(chain))
    with scripted(ENGINE_PORT, *plays), gateway(HTTP + tls, {}, more=ONE) as place:
        for said, wanted in ((b"x" * 300_000, b""), (b"", b"all")):
            raw = socket.create_connection(place.address(), 10)
            with RawClient(context.wrap_socket(raw, server_hostname="gateway.test")) as client:
                assert client.send(ASK + said).head().status == 101
                assert client.take(len(wanted)) == wanted
                if wanted:
                    assert client.end() is False
            assert place.last()["end"] == "complete"
        assert b"".join(heard) == b"x" * 300_000 + b"FIN"
        place.settled()
