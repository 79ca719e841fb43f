# SPDX-License-Identifier: Apache-2.0
"""Clients of a listener where TLS ends, before their handshake is done: bounded like all others."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import Address, CutOff, RawClient, request
from tests.support.gateway_place import PATIENCE_S, Place, gateway
from tests.support.netns import wait_for
from xdp_router.daemon.gateway import handshake


@contextlib.contextmanager
def served(folder: Path, keys: str = "") -> Iterator[Place]:
    """A listener with a certificate for a.test and one backend."""
    chain, key = write_certificate(folder, "a.test")
    text = f'type = "http"\n{keys}\n[listener.tls]\ncertificate = "{chain}"\nkey = "{key}"\n'
    with gateway(text, {"one": ""}) as place:
        yield place


def hello_of(folder: Path) -> bytes:
    """A ClientHello."""
    out = ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=str(folder / "a.test.pem"))
    with pytest.raises(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), out, server_hostname="a.test").do_handshake()
    return out.read()


def tls_client(address: Address, folder: Path) -> RawClient:
    """A client whose handshake is done. Raises OSError."""
    trusting = ssl.create_default_context(cafile=str(folder / "a.test.pem"))
    plain = socket.create_connection(address, PATIENCE_S)
    return RawClient(trusting.wrap_socket(plain, server_hostname="a.test"))


def counted(place: Place, name: str) -> dict[str, int]:
    """A counter by its last label."""
    rows = place.call(lambda: place.fronts["front"].plain()).get(name, [])
    return {labels[-1]: value for labels, value in rows}


def open_now(place: Place) -> int:
    """Connections that are counted."""
    return place.call(lambda: place.fronts["front"].open)


def wait_until_open(place: Place, count: int) -> None:
    """Wait for so many."""
    wait_for(lambda: open_now(place) == count, PATIENCE_S, f"{count} are open")


@in_fresh_netns
def test_a_hello_in_pieces(tmp_path: Path) -> None:
    """However it comes: it is served, counted once, and gone in the end."""
    with served(tmp_path, 'head_timeout = "20s"') as place:
        with tls_client(place.address(), tmp_path) as client:
            assert client.ask(request("GET", "/health")).status == 200
        trusting = ssl.create_default_context(cafile=str(tmp_path / "a.test.pem"))
        came, went = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting.wrap_bio(came, went, server_hostname="a.test")
        with place.connect() as client:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    said = went.read()
                    client.send_slowly(said[:9]).send_slowly(said[9:], size=100, pause_s=0.001)
                    client._more()
                    came.write(bytes(client.buffer))
                    client.buffer.clear()
            # What belongs to the handshake and the request in one piece.
            tls.write(request("GET", "/health"))
            client.send(went.read())
            while True:
                try:
                    assert tls.read(12) == b"HTTP/1.1 200"
                    break
                except ssl.SSLWantReadError:
                    client._more()
                    came.write(bytes(client.buffer))
                    client.buffer.clear()
            assert open_now(place) == 1
        wait_until_open(place, 0)
        assert counted(place, "connections_total") == {"front": 2}
        place.settled()


@in_fresh_netns
def test_they_count_before_they_are_done(tmp_path: Path) -> None:
    """Toward both limits, also while nothing, or half a hello, has come; one that goes makes
    room, whether it has failed or was done."""
    keys = 'max_per_source = 3\nhead_timeout = "20s"\nidle_timeout = "20s"'
    with served(tmp_path, keys) as place:
        hello = hello_of(tmp_path)
        with place.connect() as silent, place.connect() as half, place.connect() as waits:
            half.send(hello[:50])
            waits.send(hello).take(5)  # the server's answer begins: the rest is the client's turn
            wait_until_open(place, 3)
            with place.connect() as refused:
                refused.end()
            assert counted(place, "connections_refused_total") == {"source": 1}
            silent.close()
            wait_until_open(place, 2)
            with tls_client(place.address(), tmp_path) as client:
                assert client.ask(request("GET", "/health")).status == 200
                assert open_now(place) == 3
            wait_until_open(place, 2)
        wait_until_open(place, 0)
        assert place.call(lambda: dict(place.fronts["front"]._sources)) == {}
        place.settled()


@in_fresh_netns
def test_their_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello has that of a head, from its first byte; a connection that was opened ahead has
    longer; and the rest of a handshake has its own."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.3)
    with served(tmp_path, 'head_timeout = "100ms"') as place:
        hello = hello_of(tmp_path)
        with place.connect() as ahead, place.connect() as slow, place.connect() as stops:
            slow.send(hello[:-1])
            stops.send(hello)
            for late in (slow, stops):
                with pytest.raises(CutOff):
                    late.take(1 << 20)
            assert counted(place, "deadline_closes_total") == {"head": 1, "handshake": 1}
            wait_until_open(place, 1)
            ahead.send(hello).take(5)
        wait_until_open(place, 0)
        place.settled()


@in_fresh_netns
def test_what_is_no_hello(tmp_path: Path) -> None:
    """Who speaks plain HTTP is told so in words, others by an alert; both are counted."""
    with served(tmp_path) as place:
        with place.connect() as client:
            answer = client.ask(request("GET", "/health"))
            assert answer.status == 400
            assert b"https://" in answer.body
        with place.connect() as client:
            assert client.send(b"\x16\x03\x01\x00\x00").take(7) == b"\x15\x03\x03\x00\x02\x02\x0a"
        wait_until_open(place, 0)
        assert counted(place, "refused_total") == {"400": 1, "10": 1}
        with pytest.raises(ssl.SSLError):  # its certificate is trusted by nobody
            ssl.create_default_context().wrap_socket(
                socket.create_connection(place.address(), PATIENCE_S), server_hostname="a.test"
            )
        with place.connect() as client:
            client.send(hello_of(tmp_path)).reset()
        wait_until_open(place, 0)
        place.settled()
