# SPDX-License-Identifier: Apache-2.0
"""Both ends of a TLS connection with as much in it as goes through.

``python -m bench.gateway.tls_ends serve ADDRESS PORT CHAIN KEY`` sends without end, on ``PORT`` by
TLS and on the next one without: there bytes that nobody has encrypted follow a ClientHello, by
``sendfile``. ``... fetch ADDRESS PORT --connections N --seconds S [--bare]`` takes it, and prints
how much came; with ``--bare`` bytes are counted by the kernel and thrown away (MSG_TRUNC, tcp(7)),
so that these ends cost next to nothing beside what is between them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time

NAME = "a.test"
LEAD_S = 0.5
"""What comes first does not count: TCP's windows grow."""
PIECE = 1 << 20
_RECORD = 5


def hello(name: str = NAME) -> bytes:
    """A ClientHello that asks for ``name``."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = _client_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _listen(address: tuple[str, int]) -> socket.socket:
    return socket.create_server(address, backlog=256)


def _serve_tls(accepted: socket.socket, context: ssl.SSLContext) -> None:
    data = bytes(PIECE)
    with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as tls:
        while True:
            tls.sendall(data)


def _serve_bare(accepted: socket.socket, file: int) -> None:
    with contextlib.suppress(OSError), accepted:
        head = accepted.recv(_RECORD, socket.MSG_WAITALL)
        accepted.recv(int.from_bytes(head[3:5], "big"), socket.MSG_WAITALL)
        while True:
            at = 0
            while at < PIECE:
                at += os.sendfile(accepted.fileno(), file, at, PIECE - at)


def serve(address: str, port: int, chain: str, key: str) -> None:
    """For ever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    file = os.memfd_create("bytes")
    os.truncate(file, PIECE)

    def accept(listening: socket.socket, bare: bool) -> None:
        while True:
            accepted, _ = listening.accept()
            if bare:
                target, args = _serve_bare, (accepted, file)
                threading.Thread(target=target, args=args, daemon=True).start()
            else:
                threading.Thread(target=_serve_tls, args=(accepted, context), daemon=True).start()

    bare = _listen((address, port + 1))
    threading.Thread(target=accept, args=(bare, True), daemon=True).start()
    accept(_listen((address, port)), False)


class Fetch:
    """``connections`` at once."""

    def __init__(self, address: tuple[str, int], connections: int, *, bare: bool) -> None:
        self._address, self._bare = address, bare
        self._got = [0] * connections
        self._errors: list[str] = []
        self._hello = hello() if bare else b""

    def run(self, seconds: float) -> dict[str, object]:
        """Bytes, seconds and complaints; of what comes after ``LEAD_S``."""
        for number in range(len(self._got)):
            threading.Thread(target=self._take, args=(number,), daemon=True).start()
        time.sleep(LEAD_S)
        before, began_s = sum(self._got), time.monotonic()
        time.sleep(seconds)
        got, took_s = sum(self._got) - before, time.monotonic() - began_s
        silent = sum(not each for each in self._got)
        return {"bytes": got, "seconds": took_s, "errors": self._errors, "silent": silent}

    def _take(self, number: int) -> None:
        buffer = bytearray(PIECE)
        try:
            with socket.create_connection(self._address, timeout=10) as plain:
                if self._bare:
                    plain.settimeout(None)
                    plain.sendall(self._hello)
                    while got := plain.recv_into(buffer, PIECE, socket.MSG_TRUNC):
                        self._got[number] += got
                else:
                    with _client_context().wrap_socket(plain, server_hostname=NAME) as tls:
                        tls.settimeout(None)
                        while got := tls.recv_into(buffer):
                            self._got[number] += got
            self._errors.append("closed")
        except OSError as error:
            self._errors.append(str(error))


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when what was asked for was done."""
    parser = argparse.ArgumentParser(prog="bench.gateway.tls_ends", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve")
    client = commands.add_parser("fetch")
    for each in (server, client):
        each.add_argument("address")
        each.add_argument("port", type=int)
    server.add_argument("chain")
    server.add_argument("key")
    client.add_argument("--connections", type=int, default=1)
    client.add_argument("--seconds", type=float, default=2.0)
    client.add_argument("--bare", action="store_true")
    options = parser.parse_args(argv)
    if options.command == "serve":
        serve(options.address, options.port, options.chain, options.key)
        return 0
    fetch = Fetch((options.address, options.port), options.connections, bare=options.bare)
    print(json.dumps(fetch.run(options.seconds)), flush=True)
    os._exit(0)  # threads that wait for more are not waited for


if __name__ == "__main__":
    sys.exit(main())
