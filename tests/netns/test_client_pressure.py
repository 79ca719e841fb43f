# SPDX-License-Identifier: Apache-2.0
"""Clients that take their time, or more than their share: what waits for them is bounded, and is
not thrown away either."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import Answer, RawClient, chat, request
from tests.support.gateway_place import ENGINE_PORT, Place, gateway
from tests.support.netns import wait_for
from tests.support.scripted_backend import Step, await_request, scripted

HTTP = 'type = "http"\nmode = "inline"'
ONE = f'[[listener.backend]]\nname = "one"\naddress = "127.0.0.1:{ENGINE_PORT}"\n'
GET = request("GET", "/")


def waiting(place: Place) -> int:
    """Bytes that wait for clients in the gateway's own memory."""
    found = place.call(
        lambda: [
            each._transport.get_write_buffer_size()
            for one in place.fronts.values()
            for each in one.connections
        ]
    )
    return sum(found)


def small(place: Place) -> RawClient:
    """A client with little room for what comes."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    sock.connect(place.address())
    return RawClient(sock)


def swept(place: Place) -> bool:
    """Look for idle and slow clients, as is done every second; whether none is left."""
    front = place.fronts["front"]
    place.call(front.sweep)
    return bool(place.call(lambda: front.open) == 0)


def few_buffers() -> None:
    """Have the kernel keep little of what is sent, in this namespace."""
    with open("/proc/sys/net/ipv4/tcp_wmem", "w", encoding="ascii") as file:
        file.write("4096 16384 65536")


@in_fresh_netns
def test_who_asks_and_takes_nothing_gets_no_more() -> None:
    """Requests in a row whose answers nobody reads wait; all are answered when they are read."""
    few_buffers()
    body = b"x" * 60_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + body
    play: list[Step] = [answer]
    play += [await_request, answer] * 99
    with scripted(ENGINE_PORT, play), gateway(HTTP, {}, more=ONE) as place, small(place) as client:
        client.send(GET * 100)
        until_s = time.monotonic() + 1
        while time.monotonic() < until_s:
            assert waiting(place) < 1 << 20
            time.sleep(0.02)
        assert waiting(place) > 0
        for _ in range(100):
            assert client.answer().body == body
        place.settled()


@in_fresh_netns
def test_requests_in_a_row_may_be_many() -> None:
    """More of them than are kept are left in the socket, and are answered."""
    count, sent = 2_000, request("GET", "/", headers=[("x-long", "y" * 1_000)])
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    play: list[Step] = [lambda _: time.sleep(0.3), answer]
    play += [await_request, answer] * (count - 1)
    with (
        scripted(ENGINE_PORT, play),
        gateway(HTTP, {}, more=ONE) as place,
        place.connect() as client,
    ):
        writer = threading.Thread(target=client.sock.sendall, args=(sent * count,))
        writer.start()
        for _ in range(count):
            assert client.answer().status == 200
        writer.join()
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_last_answer_is_not_cut_for_a_slow_reader(version: str) -> None:
    """The connection ends behind it; what waits for the client is its own until it is read."""
    few_buffers()
    size = 200_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * size
    asked = f"GET / HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
    with scripted(ENGINE_PORT, [answer]), gateway(HTTP, {}, more=ONE) as place:
        with small(place) as client:
            client.send(asked)
            wait_for(lambda: waiting(place) > 0, 10, "it waits for the client")
            time.sleep(2.5)
            assert len(client.answer().body) == size
            assert not client.end()
        place.settled()


@in_fresh_netns
def test_a_last_answer_that_nobody_reads_is_given_up() -> None:
    """After ``stream_timeout`` without a byte taken, though it is little; also if it is idle."""
    few_buffers()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    keys = 'stream_timeout = "300ms"\nidle_timeout = "200ms"'
    play: list[Step] = [answer, await_request, answer]
    with scripted(ENGINE_PORT, play), gateway(f"{HTTP}\n{keys}", {}, more=ONE) as place:
        for last in ("close", "keep-alive"):
            with small(place) as client:
                client.send(request("GET", "/", headers=[("Connection", last)]))
                wait_for(lambda: waiting(place) > 0, 10, "it waits for the client")
                wait_for(lambda: swept(place), 10, "it is given up")
        place.settled()


@in_fresh_netns
def test_interim_answers_without_end_do_not_pile_up() -> None:
    """A backend that sends 103 for ever to a client that does not read is read no more."""
    few_buffers()
    hint = (b"HTTP/1.1 103 Early Hints\r\nLink: <" + b"x" * 4_000 + b">\r\n\r\n") * 16

    def for_ever(sock: socket.socket) -> None:
        while True:
            sock.sendall(hint)

    with scripted(ENGINE_PORT, [for_ever]), gateway(HTTP, {}, more=ONE) as place:
        with small(place) as client:
            client.send(GET)
            until_s = time.monotonic() + 1
            while time.monotonic() < until_s:
                assert waiting(place) < 2 << 20
                time.sleep(0.02)
        place.settled()


@in_fresh_netns
def test_an_empty_line_is_no_request() -> None:
    """Before the first one, or behind one: the connection is as idle as without it."""
    with gateway(f'{HTTP}\nidle_timeout = "100ms"', {"one": ""}) as place:
        for sent in (b"\r\n", request("GET", "/health") + b"\r\n"):
            with place.connect() as client:
                client.send(sent)
                if len(sent) > 2:
                    assert client.answer().status == 200
                wait_for(lambda: swept(place), 10, "it was idle for too long")
                assert not client.end()


@in_fresh_netns
def test_a_tunnel_whose_client_was_early_goes_on() -> None:
    """What it sends behind the request, more than is kept, waits for the other protocol."""
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    size, got = 1 << 20, bytearray()

    def take(sock: socket.socket) -> None:
        time.sleep(0.3)
        sock.sendall(switch)
        with contextlib.suppress(TimeoutError):
            while len(got) < size:
                got.extend(sock.recv(1 << 16))

    asked = request("GET", "/", headers=[("Connection", "upgrade"), ("Upgrade", "x")])
    with scripted(ENGINE_PORT, [take]), gateway(HTTP, {}, more=ONE) as place:
        with place.connect() as client:
            client.send(asked)
            writer = threading.Thread(target=_say, args=(client, b"y" * size))
            writer.start()
            wait_for(lambda: len(got) == size, 10, "all of it has come")
            writer.join()


@in_fresh_netns
def test_a_prompt_behind_another_request_comes_whole() -> None:
    """What is there of it when its turn comes, more than is kept, does not keep the rest away."""
    first = chat("ttft-ms=200", stream=False)
    second = chat(stream=False, prompt="y" * 400_000)
    with gateway('type = "llm"', {"one": "ttft-ms=1"}) as place, place.connect() as client:
        client.send(first + second[:100_000])
        writer = threading.Thread(target=_say, args=(client, second[100_000:]))
        writer.start()
        assert [client.answer().status for _ in range(2)] == [200, 200]
        writer.join()


def _say(client: RawClient, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sock.sendall(data)


@in_fresh_netns
def test_a_long_answer_that_comes_is_not_silent() -> None:
    """It takes longer than ``stream_timeout`` in all, and is no stream of events."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 30\r\n\r\n"

    def wait(_: object) -> None:
        time.sleep(0.05)

    play: list[Step] = [head]
    for _ in range(30):
        play += [b"x", wait]
    keys = f'{HTTP}\nstream_timeout = "400ms"'
    with scripted(ENGINE_PORT, play), gateway(keys, {}, more=ONE) as place:
        with place.connect() as client:
            client.send(GET)
            found: list[Answer] = []
            reader = threading.Thread(target=lambda: found.append(client.answer()))
            reader.start()
            while reader.is_alive():
                place.call(place.fronts["front"].sweep)
                reader.join(0.05)
        assert [each.body for each in found] == [b"x" * 30]
