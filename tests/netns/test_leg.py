# SPDX-License-Identifier: Apache-2.0
"""Connections to backends: answers of all forms, cut up anyhow, and those that are none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, request
from tests.support.gateway_place import ENGINE_PORT, Place, gateway
from tests.support.netns import wait_for
from tests.support.scripted_backend import Step, await_request, close, reset, scripted

HTTP = 'type = "http"\nmode = "inline"'
ONE = f'[[listener.backend]]\nname = "one"\naddress = "127.0.0.1:{ENGINE_PORT}"\n'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = request("GET", "/")


def idle(place: Place) -> int:
    """Connections that wait for a request."""
    return place.call(lambda: place.world.pool.idle)


@in_fresh_netns
@pytest.mark.parametrize(
    "bad",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rX: y\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000,
    ],
)
def test_an_answer_that_is_none_is_a_502(bad: bytes) -> None:
    """Nothing of it reaches the client."""
    with scripted(ENGINE_PORT, [bad]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            answer = client.ask(GET)
        assert answer.status == 502
        assert answer.body == b"no answer: an answer that cannot be read\n"
        place.settled()
        assert idle(place) == 0


@in_fresh_netns
def test_every_cut_of_an_answer_is_the_same() -> None:
    """In two pieces, cut anywhere: head, chunk sizes, content."""
    whole = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nT: u\r\n\r\n"
    )

    def wait(_: object) -> None:
        time.sleep(0.002)

    plays: list[list[Step]] = [[whole[:at], wait, whole[at:]] for at in range(1, len(whole))]
    with scripted(ENGINE_PORT, *plays), gateway(HTTP, {}, more=ONE) as place:
        for _ in plays:
            with place.connect() as client:
                answer = client.ask(GET)
                assert (answer.status, answer.body) == (200, b"hello world")
                assert answer.trailers == b"T: u\r\n"
            place.call(place.world.pool.close)  # the next play is of another connection
        place.settled()


@in_fresh_netns
def test_more_than_was_asked_for_ends_the_connection() -> None:
    """What follows an answer unasked is nobody's answer."""
    with scripted(ENGINE_PORT, [OK + OK]) as script, gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            for _ in range(2):
                assert client.ask(GET).body == b"ok"
        assert len(script.heads) == 2
        assert idle(place) == 0


@in_fresh_netns
def test_what_comes_unasked_ends_a_connection_that_waits() -> None:
    """It would be taken for the next request's answer."""

    def later(sock: object) -> None:
        time.sleep(0.05)

    late = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    with scripted(ENGINE_PORT, [OK, later, late], [OK]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            assert client.ask(GET).body == b"ok"
            wait_for(lambda: _closed(place), 5, "the connection is given up")
            assert client.ask(GET).body == b"ok"


def _closed(place: Place) -> bool:
    place.call(place.world.pool.sweep)
    return idle(place) == 0


@in_fresh_netns
@pytest.mark.parametrize("how", [close, reset])
def test_a_kept_connection_that_was_closed_is_nobodys_fault(how: Step) -> None:
    """It was closed just when the next request went out: that goes to a new connection."""
    play: list[Step] = [OK, await_request, how]
    with scripted(ENGINE_PORT, play, [OK]) as script, gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            assert client.ask(GET).body == b"ok"
            assert client.ask(GET).body == b"ok"
        assert len(script.heads) == 2
        told = place.last()
        assert told["legs"] == 2
        place.settled()


@in_fresh_netns
def test_who_says_close_is_not_asked_again() -> None:
    """Nor is one of HTTP/1.0; the client's own connection stays."""
    said = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    old = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with scripted(ENGINE_PORT, [said], [old], [OK]) as script, gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            for _ in range(3):
                assert client.ask(GET).body == b"ok"
        assert len(script.heads) == 3


@in_fresh_netns
def test_a_request_has_one_name() -> None:
    """The backend's own name for it is told beside; the client gets the one that is searched by."""
    own = b"HTTP/1.1 200 OK\r\nX-Request-ID: theirs\r\nX-Request-ID: 2\r\nContent-Length: 0\r\n\r\n"
    with scripted(ENGINE_PORT, [own]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            found = client.ask(request("GET", "/", headers=[("X-Request-ID", "ours")])).head.headers
        assert [value for key, value in found if key == "x-request-id"] == ["ours"]
        told = place.last()
        assert (told["id"], told["backend_id"]) == ("ours", "theirs")


@in_fresh_netns
def test_interim_answers() -> None:
    """100 is the gateway's own business; 103 is the client's."""
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    with scripted(ENGINE_PORT, [early + OK]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            client.send(GET)
            head = client.head(interim=True)
            assert (head.status, head.get("link")) == (103, "</x>")
            assert client.answer().body == b"ok"


@in_fresh_netns
def test_a_body_that_is_wrong_from_the_first_bytes_on_is_no_answer() -> None:
    """Nothing of it has gone to the client: somebody else is asked, or it gets a 502."""
    bad = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\nX\r\n"
    with scripted(ENGINE_PORT, [bad]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            assert client.ask(GET).status == 502
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize(
    "cut",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", close],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", reset],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n", close],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n", b"X\r\n", close],
    ],
)
def test_a_body_that_breaks_off_is_cut(cut: list[Step]) -> None:
    """The client gets what there is, and a RST, so that it is not taken for the whole."""

    def wait(_: object) -> None:
        time.sleep(0.05)

    play: list[Step] = [cut[0], wait, *cut[1:]]
    with scripted(ENGINE_PORT, play), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            client.send(GET)
            with pytest.raises(CutOff) as error:
                client.answer()
        assert error.value.reset
        place.settled()


@in_fresh_netns
def test_an_answer_before_the_body_is_whole() -> None:
    """A refusal of a large upload reaches the client; the connection ends with it."""
    refused = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
    with scripted(ENGINE_PORT, [refused]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            head = request("POST", "/up", b"x" * 100)[:-100].replace(b": 100", b": 9000000")
            client.send(head + b"x" * 1000)
            answer = client.answer()
            assert (answer.status, answer.body) == (413, b"no")
            assert answer.head.get("connection") == "close"
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize(("status", "passes"), [(b"401 Unauthorized", False), (b"200 OK", True)])
def test_an_answer_that_begins_before_the_body_is_whole(status: bytes, passes: bool) -> None:
    """Of a refusal the rest of the body is dropped, and then nobody else gets the connection: its
    backend would take their request for that rest. Another answer may be one to all of the body.
    """
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n"
    come, go_on = bytearray(), threading.Event()

    def rest(sock: socket.socket) -> None:
        go_on.wait(5)
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while len(come) < 20:
                come.extend(sock.recv(20))

    with scripted(ENGINE_PORT, [head, b"n", rest, b"o"]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            whole = request("POST", "/", b"b" * 30)
            client.send(whole[:-20])
            assert client.head().get("connection") == "close"
            client.send(whole[-20:])
            wait_for(lambda: place.call(place.fronts["front"].streams)[0]["bytes_in"] == 30, 5, "")
            go_on.set()
            assert b"".join(client.pieces()) == b"no"
            assert not client.end()
        assert come == (b"b" * 20 if passes else b"")
        place.settled()
        assert idle(place) == passes


@in_fresh_netns
def test_kept_connections_run_out() -> None:
    """Before servers close them on their own."""
    with scripted(ENGINE_PORT, [OK]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            assert client.ask(GET).body == b"ok"
        assert idle(place) == 1
        place.call(place.world.pool.sweep)
        assert idle(place) == 1
        before = place.world.pool._clock
        place.world.pool._clock = lambda: before() + 5_000_000_000
        place.call(place.world.pool.sweep)
        assert idle(place) == 0
