# SPDX-License-Identifier: Apache-2.0
"""TLS by name: what a ClientHello decides, and bytes that pass as they are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, RawClient
from tests.support.gateway_place import ENGINE_PORT, FIRST_PORT, Place, serving
from tests.support.netns import wait_for
from tests.support.scripted_backend import close, half_close, reset, scripted
from xdp_router.daemon.gateway.tunnel import HALF_LATE

ROUTES = """
[[listener.route]]
names = ["a.example", "*.a.example"]
backends = ["a"]
[[listener.route]]
names = ["b.example"]
backends = ["b"]
"""


def text(keys: str = "", tables: str = ROUTES) -> str:
    """A listener of two backends."""
    return (
        f'[[listener]]\nname = "front"\ntype = "tls"\naddress = "127.0.0.1:{FIRST_PORT}"\n{keys}\n'
        f'[[listener.backend]]\nname = "a"\naddress = "127.0.0.1:{ENGINE_PORT}"\n'
        f'[[listener.backend]]\nname = "b"\naddress = "127.0.0.1:{ENGINE_PORT + 1}"\n{tables}'
    )


@contextlib.contextmanager
def echo_server(folder: Path, number: int, *names: str) -> Iterator[None]:
    """Sends back what it gets, over TLS, until the client has closed its side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(folder, *names))
    with socket.create_server(("127.0.0.1", ENGINE_PORT + number)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(sock,)).start()

        def talk(sock: socket.socket) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as peer:
                while data := peer.recv(65536):
                    peer.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def connected(place: Place, name: str | None, ca: Path) -> ssl.SSLSocket:
    """A client of that name, which checks that the backend has it."""
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = name is not None
    if name is None:
        context.verify_mode = ssl.CERT_NONE
    raw = socket.create_connection(place.address(), 10)
    return context.wrap_socket(raw, server_hostname=name)


def echoed(client: ssl.SSLSocket, body: bytes) -> bytes:
    """What comes back of a body, read while it is sent. In one thread: a TLS connection's state
    must not be written and read at the same time."""
    client.setblocking(False)
    rest, found = memoryview(body), bytearray()
    until_s = time.monotonic() + 20
    while len(found) < len(body):
        assert time.monotonic() < until_s, f"{len(found)} bytes came back"
        readable, writable = [client], [client] if rest else []
        if not client.pending():
            select.select(readable, writable, [], 1)
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            data = client.recv(65536)
            assert data
            found += data
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            rest = rest[client.send(rest) :] if rest else rest
    return bytes(found)


@in_fresh_netns
def test_the_name_decides_and_nothing_is_decrypted(tmp_path: Path) -> None:
    """Each name reaches its own certificate; a megabyte comes back as it went."""
    body = os.urandom(1 << 20)
    with (
        echo_server(tmp_path, 0, "a.example", "x.a.example"),
        echo_server(tmp_path, 1, "b.example"),
        serving(text(), {}) as place,
    ):
        for name, ca in (("a.example", "a"), ("x.a.example", "a"), ("b.example", "b")):
            with connected(place, name, tmp_path / f"{ca}.example.pem") as client:
                found = hashlib.sha256(echoed(client, body))
                assert found.digest() == hashlib.sha256(body).digest()
            told = place.last()
            assert (told["host"], told["backend"], told["end"]) == (name, ca, "complete")
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("name", [None, "c.example"])
def test_a_name_that_nobody_has_is_refused(tmp_path: Path, name: str | None) -> None:
    """By the alert that says so (RFC 6066)."""
    write_certificate(tmp_path, "a.example")
    with serving(text(), {}) as place:
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            connected(place, name, tmp_path / "a.example.pem")
        place.settled()


@in_fresh_netns
def test_what_is_no_hello_is_refused() -> None:
    """Plain HTTP, and noise: an alert at most, and the end."""
    with serving(text(), {}) as place:
        for bad in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 50):
            with RawClient.connect(place.address()) as client:
                client.send(bad)
                with pytest.raises(CutOff):
                    client.take(1 << 16)
        place.settled()


@in_fresh_netns
def test_a_hello_that_does_not_come_is_closed(tmp_path: Path) -> None:
    """From its first byte on; who has said nothing may wait."""
    with serving(text('head_timeout = "100ms"'), {}) as place:
        with RawClient.connect(place.address()) as silent:
            with RawClient.connect(place.address()) as slow:
                slow.send(b"\x16\x03\x01")
                assert slow.end() is False
            silent.sock.settimeout(0.15)
            with pytest.raises(TimeoutError):
                silent.end()


@in_fresh_netns
def test_in_a_race_the_first_connection_wins(tmp_path: Path) -> None:
    """One that takes no connections is no hindrance, and is left alone for a while."""
    with (
        echo_server(tmp_path, 1, "any.example"),
        serving(text(tables="[listener.race]\ncandidates = 2\n"), {}) as place,
    ):
        for _ in range(4):
            with connected(place, "any.example", tmp_path / "any.example.pem") as client:
                client.sendall(b"x")
                assert client.recv(1) == b"x"
            assert place.last()["backend"] == "b"
        place.settled()


@in_fresh_netns
def test_if_nobody_can_be_reached_the_client_is_told(tmp_path: Path) -> None:
    """By an alert, not by silence."""
    write_certificate(tmp_path, "a.example")
    with serving(text(tables=""), {}) as place:
        with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
            connected(place, "a.example", tmp_path / "a.example.pem")
        place.settled()


@in_fresh_netns
def test_a_race_asks_as_many_as_it_is_told(tmp_path: Path) -> None:
    """``candidates`` at once, also without retries."""
    write_certificate(tmp_path, "a.example")
    third = f'[[listener.backend]]\naddress = "127.0.0.1:{ENGINE_PORT + 2}"\n'
    race = "[listener.race]\ncandidates = 3\nretries = 0\n"
    with serving(text(tables=third + race), {}) as place:
        with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
            connected(place, "a.example", tmp_path / "a.example.pem")
        assert place.last()["legs"] == 3
        place.settled()


HELLO_AS_IT_CAME = b"\x16\x03\x01"


@in_fresh_netns
@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_ends_pass_through(tmp_path: Path, how: str) -> None:
    """FIN as FIN, and RST as RST, of the backend's and of the client's."""
    write_certificate(tmp_path, "a.example")
    hello = _hello("a.example")
    seen: list[bytes] = []

    def take(sock: socket.socket) -> None:
        """Until the client's end; what it was."""
        try:
            while sock.recv(65536):
                pass
            seen.append(b"FIN")
        except ConnectionResetError:
            seen.append(b"RST")

    def end(sock: socket.socket) -> None:
        (close if how == "FIN" else reset)(sock)

    marked = hello + b"\r\n\r\n"  # what the script waits for
    with serving(text(), {}) as place:
        with scripted(ENGINE_PORT, [b"answer", end]):
            with RawClient.connect(place.address()) as client:
                client.send(marked)
                assert client.take(6) == b"answer"
                assert client.end() is (how == "RST")
        place.settled()
        with scripted(ENGINE_PORT, [b"answer", take]) as script:
            client = RawClient.connect(place.address())
            client.send(marked)
            assert client.take(6) == b"answer"
            if how == "FIN":
                client.close()
            else:
                client.reset()
            wait_for(lambda: bool(seen), 5, "the backend sees the end")
            assert script.heads[-1] == marked
        place.settled()
    assert seen == [how.encode()]


@in_fresh_netns
def test_half_a_close_passes_and_the_rest_still_comes() -> None:
    """A client that has nothing more to say gets all that the backend has."""
    late = b"late " * 20_000

    def read_to_end(sock: socket.socket) -> None:
        while sock.recv(65536):
            pass

    with serving(text(), {}) as place, scripted(ENGINE_PORT, [read_to_end, late, close]):
        with RawClient.connect(place.address()) as client:
            client.send(_hello("a.example") + b"\r\n\r\n")
            client.half_close()
            assert client.take(len(late)) == late
            assert client.end() is False
        place.settled()


@in_fresh_netns
def test_a_backend_that_has_said_all_still_hears_the_rest() -> None:
    """The same from its side: bytes of the client's pass behind the backend's FIN, and then its
    own; the reset of one that hears nothing takes away nothing that it has said."""
    heard: list[bytes] = []
    go = threading.Event()
    late = b"late " * 20_000

    def hear(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            heard.append(data)

    with serving(text(), {}) as place:
        with scripted(ENGINE_PORT, [b"all", half_close, hear, close]):
            with RawClient.connect(place.address()) as client:
                client.send(_hello("a.example") + b"\r\n\r\n")
                assert client.take(3) == b"all"
                assert client.end() is False
                client.send(late)
                client.half_close()
                wait_for(lambda: b"".join(heard) == late, 5, "the backend has heard it")
            assert place.last()["end"] == "complete"
        with scripted(ENGINE_PORT, [b"all", half_close, lambda _: go.wait(10), reset]):
            with RawClient.connect(place.address()) as client:
                client.send(_hello("a.example") + b"\r\n\r\n")
                wait_for(lambda: _is_half(place), 5, "its FIN has come")
                go.set()
                with contextlib.suppress(OSError):
                    for _ in range(10):
                        client.send(b"x")
                        time.sleep(0.01)
                assert client.take(3) == b"all"
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("first", ["client", "backend"])
def test_half_a_connection_that_is_silent_ends(first: str) -> None:
    """The one that has gone altogether is not told from one that listens: nobody is read any
    more to notice it. A whole one may be silent."""
    gone = threading.Event()

    def stay(sock: socket.socket) -> None:
        if first == "backend":
            half_close(sock)
        gone.wait(10)

    with serving(text('stream_timeout = "50ms"'), {}) as place:
        front = place.fronts["front"]
        with scripted(ENGINE_PORT, [b"all", stay]), RawClient.connect(place.address()) as client:
            client.send(_hello("a.example") + b"\r\n\r\n")
            assert client.take(3) == b"all"
            if first == "client":
                time.sleep(0.06)
                place.call(front.sweep)
                assert place.call(front.streams)
                client.half_close()
            else:
                assert client.end() is False
            wait_for(lambda: _is_half(place), 5, "FIN has come")
            place.call(front.sweep)
            assert place.call(front.streams)
            time.sleep(0.06)
            place.call(front.sweep)
            assert place.last()["end"] == HALF_LATE
            gone.set()
        place.settled()
        rows = place.call(front.plain)["deadline_closes_total"]
        assert rows == [[["front", "half closed"], 1]]


def _is_half(place: Place) -> bool:
    """Whether one side of the connection has said all."""

    def look() -> bool:
        (relay,) = place.fronts["front"].connections
        return bool(relay.ends.newest_ns)

    return place.call(look)


def _hello(name: str) -> bytes:
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@in_fresh_netns
def test_what_is_no_hello_is_counted_by_its_alert() -> None:
    """Not by its bytes: each client could have metrics of its own."""
    with serving(text(), {}) as place:
        for number in range(4):
            with place.connect() as client:
                client.send(bytes([1 + number]) * 64)
                client.take(7)
        place.last()
        figures = place.call(place.fronts["front"].plain)
        assert figures["decisions_total"] == [[["front", "", "refused by alert 70"], 4]]
        ends = {each["end"] for each in place.call(lambda: place.fronts["front"].decisions(9))}
        assert len(ends) == 4


@in_fresh_netns
@pytest.mark.parametrize(
    ("keys", "legs"), [("extra_legs = 0", 1), ("candidates = 3\nretries = 0", 3)]
)
def test_rivals_are_paid_for(keys: str, legs: int, tmp_path: Path) -> None:
    """As they are where requests are raced; and they are no retries."""
    third = f'[[listener.backend]]\nname = "c"\naddress = "127.0.0.1:{ENGINE_PORT + 2}"\n'
    with (
        echo_server(tmp_path, 0, "a.example"),
        echo_server(tmp_path, 1, "a.example"),
        echo_server(tmp_path, 2, "a.example"),
        serving(text(tables=f"{third}[listener.race]\n{keys}\n"), {}) as place,
    ):
        with connected(place, None, tmp_path / "a.example.pem"):
            pass
        assert place.last()["legs"] == legs
