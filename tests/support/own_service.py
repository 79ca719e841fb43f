# SPDX-License-Identifier: Apache-2.0
"""A second service whose backends are the test's own sockets: it sees every connection end."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator

from tests.support.clients import dial
from tests.support.router import Router, calm_config
from xdp_router.lab import LabSpec

ADDRESS = ("198.18.100.2", 81)
PORT = 9000


def config(spec: LabSpec, settings: str = "", **web: str) -> str:
    """``calm_config`` with the own service, backends ``o1`` ..., beside the lab's."""
    lines = [calm_config(spec, settings, **web)]
    lines += ["[[service]]", 'name = "own"', f'address = "{ADDRESS[0]}:{ADDRESS[1]}"']
    lines += ['deadline = "1s"']
    for number, (address, _) in enumerate(spec.addresses.backends, 1):
        lines += ["[[service.backend]]", f'name = "o{number}"', f'address = "{address}:{PORT}"']
    return "\n".join(lines) + "\n"


class OwnService:
    """Listeners in all backends' namespaces, and connections to them with both their ends."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.listeners = [self._listen(index) for index in range(len(router.lab.backends))]

    def _listen(self, index: int) -> socket.socket:
        listener = self._router.lab.backends[index].socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", PORT))
        listener.listen(256)
        listener.setblocking(False)
        return listener

    def close(self) -> None:
        """Stop listening."""
        for listener in self.listeners:
            listener.close()

    def accepted(self) -> list[tuple[int, socket.socket]]:
        """Connections that wait to be accepted, each with the index of its backend."""
        found = []
        for index, listener in enumerate(self.listeners):
            with contextlib.suppress(BlockingIOError):
                while True:
                    peer, _ = listener.accept()
                    peer.settimeout(5)
                    found.append((index, peer))
        return found

    @contextlib.contextmanager
    def connection(
        self, source: tuple[str, int] | None = None
    ) -> Iterator[tuple[socket.socket, socket.socket]]:
        """The client's and the backend's end of a new connection."""
        with dial(self._router.lab.client, ADDRESS, source=source) as client:
            deadline = time.monotonic() + 5
            while not (waiting := self.accepted()):
                assert time.monotonic() < deadline, "no backend got the connection"
                select.select(self.listeners, [], [], 0.1)
            ((_, server),) = waiting
            with server:
                yield client, server


@contextlib.contextmanager
def own_service(router: Router) -> Iterator[OwnService]:
    """The own service of a router whose configuration has it."""
    service = OwnService(router)
    try:
        yield service
    finally:
        service.close()
