# SPDX-License-Identifier: Apache-2.0
"""A configuration with thousands of services on the lab's backends, and listeners for some.

Service number n is ``s<n>``, port FIRST_PORT + n of the lab's service address; its backends
are ``s<n>-b<m>``, port BACKEND_PORT + n of each of the lab's backends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable, Iterator

from tests.support.clients import dial
from tests.support.router import Router
from xdp_router.lab import LabSpec

FIRST_PORT = 10_000
BACKEND_PORT = 20_000


def many_services(spec: LabSpec, count: int, settings: str = "") -> str:
    """router.toml of ``count`` services, each on every backend of the lab."""
    address = spec.addresses.service[0]
    lines = ["[router]", settings]
    for number in range(count):
        lines += [
            "[[service]]",
            f'name = "s{number}"',
            f'address = "{address}:{FIRST_PORT + number}"',
            'deadline = "1s"',
        ]
        for index, (backend, _) in enumerate(spec.addresses.backends):
            lines += [
                "[[service.backend]]",
                f'name = "s{number}-b{index}"',
                f'address = "{backend}:{BACKEND_PORT + number}"',
            ]
    return "\n".join(lines) + "\n"


class Listeners:
    """Servers of some services, on every backend."""

    def __init__(self, router: Router, services: Iterable[int]) -> None:
        self._router = router
        self._at: dict[socket.socket, int] = {}
        self._listen: dict[int, list[socket.socket]] = {}
        for number in services:
            for index, namespace in enumerate(router.lab.backends):
                listener = namespace.socket()
                listener.bind(("0.0.0.0", BACKEND_PORT + number))
                listener.listen(64)
                self._at[listener] = index
                self._listen.setdefault(number, []).append(listener)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._at:
            listener.close()

    @contextlib.contextmanager
    def connection(self, number: int) -> Iterator[tuple[socket.socket, socket.socket, int]]:
        """A new connection to a service: the client's end, the server's, the backend's index."""
        address = self._router.lab.addresses.service[0]
        with dial(self._router.lab.client, (address, FIRST_PORT + number)) as client:
            peer = client.getsockname()
            deadline = time.monotonic() + 5
            while True:
                ready, _, _ = select.select(self._listen[number], [], [], 0.1)
                for listener in ready:
                    server, found = listener.accept()
                    server.settimeout(5)
                    if found == peer:
                        with server:
                            yield client, server, self._at[listener]
                        return
                    server.close()
                assert time.monotonic() < deadline, "no backend got the connection"


def talk(client: socket.socket, server: socket.socket) -> None:
    """Bytes get through both ways."""
    for source, sink, words in ((client, server, b"question"), (server, client, b"an answer")):
        source.sendall(words)
        assert sink.recv(100) == words
