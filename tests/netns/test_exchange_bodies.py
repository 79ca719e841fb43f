# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests and answers that take their time, through a gateway between real sockets."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from pathlib import Path

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import RawClient, chat, request
from tests.support.gateway_place import ENGINE_PORT, gateway
from tests.support.netns import wait_for
from tests.support.scripted_backend import Step, scripted
from xdp_router.daemon.gateway.exchange import Exchange

HTTP = 'type = "http"\nmode = "inline"'
ONE = f'[[listener.backend]]\nname = "one"\naddress = "127.0.0.1:{ENGINE_PORT}"\n'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def wait_s(seconds: float) -> Step:
    """A step: nothing for so long."""
    return lambda _: time.sleep(seconds)


@in_fresh_netns
def test_a_backend_that_lacks_some_of_a_body_is_asked_nothing_more() -> None:
    """It answers early, the rest of the body goes nowhere: it would take the next request,
    whoever sends it, for that rest."""
    whole = threading.Event()
    no = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
    early: list[Step] = [no[:-1], lambda _: whole.wait(10), no[-1:]]
    with scripted(ENGINE_PORT, early, [OK]) as script, gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            ask = request("POST", "/up", b"x" * 100)
            client.send(ask[:-40])
            head = client.head()
            client.send(ask[-40:])
            front = place.fronts["front"]
            wait_for(lambda: place.call(front.streams)[0]["bytes_in"] == 100, 5, "the rest is here")
            whole.set()
            assert b"".join(client.pieces()) == b"no"
            place.settled()
            assert place.call(lambda: place.world.pool.idle) == 0
            # What was said of the connection holds.
            assert head.get("connection") == "close"
            assert client.end() is False
        with place.connect() as client:
            assert client.ask(request("GET", "/next")).body == b"ok"
        assert len(script.heads) == 2


@in_fresh_netns
def test_an_answer_may_begin_before_the_body_is_whole() -> None:
    """Whoever answers as it reads gets all of the body, and its connection is kept."""
    came: list[bytes] = []

    def read(sock: socket.socket) -> None:
        while sum(map(len, came)) < 40:
            came.append(sock.recv(65536))

    play: list[Step] = [OK[:-1], read, OK[-1:]]
    with scripted(ENGINE_PORT, play), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            ask = request("POST", "/up", b"x" * 60 + b"y" * 40)
            client.send(ask[:-40]).head()
            client.send(ask[-40:])
            assert b"".join(client.pieces()) == b"ok"
        assert b"".join(came) == b"y" * 40
        place.settled()
        assert place.call(lambda: place.world.pool.idle) == 1


@in_fresh_netns
def test_an_answer_that_comes_is_not_silent() -> None:
    """However long it takes: stream_timeout is for those that do not come on."""
    play: list[Step] = [b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"]
    for _ in range(8):
        play += [wait_s(0.05), b"x"]
    keys = f'{HTTP}\nstream_timeout = "200ms"'
    with scripted(ENGINE_PORT, play), gateway(keys, {}, more=ONE) as place:
        with place.connect() as client:
            client.send(request("GET", "/")).head()
            found = b""
            for piece in client.pieces():
                found += piece
                place.call(place.fronts["front"].sweep)
        assert found == b"x" * 8
        place.settled()


@in_fresh_netns
def test_a_backend_is_waited_for_from_the_end_of_the_body_on() -> None:
    """first_byte_timeout is the backend's, not the client's who sends a large body."""
    keys = f'{HTTP}\nfirst_byte_timeout = "150ms"'
    with gateway(keys, {"a": ""}) as place, place.connect() as client:
        ask = request("POST", "/echo", b"x" * 10)
        client.send(ask[:-10])
        for _ in range(10):
            time.sleep(0.04)
            client.send(b"x")
        assert client.answer().body == b"x" * 10
        assert place.last()["end"] == "complete"
    silent: list[Step] = [wait_s(1)]
    with scripted(ENGINE_PORT, silent), gateway(keys, {}, more=ONE) as place:
        with place.connect() as client:
            assert client.ask(ask).status == 504


@in_fresh_netns
def test_a_slow_reader_gets_the_end_of_a_last_answer() -> None:
    """What waits for it is not thrown away, however long ago its connection's end was decided."""
    Path("/proc/sys/net/ipv4/tcp_wmem").write_text("4096 16384 16384")
    size = 400_000
    play: list[Step] = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * size]

    def all_sent(sock: socket.socket) -> None:
        sock.shutdown(socket.SHUT_WR)

    with scripted(ENGINE_PORT, [*play, all_sent]), gateway(HTTP, {}, more=ONE) as place:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(place.address())
        with RawClient(slow) as client:
            client.send(request("GET", "/")).head()
            left = size
            while place.call(place.fronts["front"].streams):
                left -= len(next(client.pieces()))
            time.sleep(1.3)
            assert len(b"".join(client.pieces())) == left


@in_fresh_netns
def test_a_backend_that_takes_nothing_holds_its_client_back() -> None:
    """From the first bytes of a body on, that waited for the connection: memory is bounded."""
    keys = f'{HTTP}\nconnect_timeout = "10s"'
    with gateway(keys, {}, more=ONE) as place, socket.socket() as listener:
        Path("/proc/sys/net/ipv4/tcp_wmem").write_text("4096 16384 16384")
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", ENGINE_PORT))
        listener.listen(0)
        held = [socket.socket() for _ in range(3)]  # its queue is full: the gateway's SYN waits
        for each in held:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", ENGINE_PORT))
        with RawClient(socket.create_connection(place.address())) as client:
            client.sock.settimeout(1)
            client.send(request("POST", "/up", b"x").replace(b": 1\r", b": 9000000\r"))

            def bytes_in() -> int:
                rows = place.call(place.fronts["front"].streams)
                return int(rows[0]["bytes_in"]) if rows else 0

            def more() -> int:
                sent = 0
                with contextlib.suppress(TimeoutError):
                    while sent < 4_000_000:
                        client.send(b"x" * 50_000)
                        sent += 50_000
                return bytes_in()

            before = more()
            assert before > 64_000  # and nobody to take it
            taken: list[socket.socket] = []
            for each in held:
                each.close()
            listener.settimeout(5)
            while not taken or not _is_asked(taken[-1]):
                taken.append(listener.accept()[0])
            assert more() < before + 500_000
        for each in taken:
            each.close()
        place.settled()


def _is_asked(sock: socket.socket) -> bool:
    sock.settimeout(2)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


@in_fresh_netns
def test_what_comes_before_a_change_of_protocol_is_passed_on_first() -> None:
    """Also if it was so much that nothing more was read meanwhile."""
    ask = request("GET", "/ws", headers=[("Connection", "Upgrade"), ("Upgrade", "x")])
    changed = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    early, late = b"a" * 40_000, b"b" * 5_000
    ready = threading.Event()
    came: list[bytes] = []

    def read(sock: socket.socket) -> None:
        while sum(map(len, came)) < len(early) + len(late):
            came.append(sock.recv(65536))

    play: list[Step] = [lambda _: ready.wait(10), changed, read]
    with scripted(ENGINE_PORT, play), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            client.send(ask)
            wait_for(lambda: place.call(place.fronts["front"].streams), 5, "it is under way")
            client.send(early)
            time.sleep(0.05)
            ready.set()
            assert client.head().status == 101
            client.send(late)
            wait_for(lambda: sum(map(len, came)) >= len(early) + len(late), 5, "all is there")
        assert b"".join(came) == early + late
        place.settled()


@in_fresh_netns
def test_a_request_that_is_over_is_gone() -> None:
    """By its reference count: the collector of cycles looks at the old ones seldom."""
    with gateway('type = "llm"\n[listener.race]\nhedge = "0s"', {"a": "", "b": ""}) as place:
        gc.collect()
        gc.disable()
        try:
            with place.connect() as client:
                for _ in range(3):
                    assert client.ask(chat(stream=False)).status == 200
                place.settled()
                found = place.call(
                    lambda: sum(isinstance(each, Exchange) for each in gc.get_objects())
                )
        finally:
            gc.enable()
        assert found == 0
