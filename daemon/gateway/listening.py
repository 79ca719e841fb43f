# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: one for each worker (SO_REUSEPORT), made once and kept for good.

A worker that ends, a reload and a successor of the whole gateway get sockets that are there: a
connection that waits in one is never reset. They are bound here, and listen from the moment that
a worker accepts: a connection never waits for a worker that is only about to come.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from collections.abc import Collection, Mapping, Sequence

from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig, Listener, SocketAddress

from .wire import KEEPALIVE

BACKLOG = 4_096
_POLL_S = 0.02


class ListenError(XdpRouterError):
    """An address cannot be listened on; the text says why."""


class ListeningSockets:
    """By address: all sockets of it. Sockets whose address is gone are closed by ``keep_only``."""

    def __init__(self, inherited: Mapping[str, Sequence[socket.socket]] | None = None) -> None:
        self._sockets = {name: list(each) for name, each in (inherited or {}).items()}

    def of(self, address: SocketAddress) -> list[socket.socket]:
        """Those of an address."""
        return self._sockets.get(str(address), [])

    def all(self) -> Mapping[str, Sequence[socket.socket]]:
        """Every one, for a successor."""
        return self._sockets

    def prepare(self, config: GatewayConfig, patience_s: float = 0) -> list[socket.socket]:
        """Have as many as workers for each listener; the new ones. Raises ListenError: then nothing
        changes.

        ``patience_s``: how long an address may still be somebody's, which is waited for.
        """
        made: list[tuple[str, socket.socket]] = []
        ours = {sock.getsockname()[1] for each in self._sockets.values() for sock in each}
        try:
            for listener in config.listeners:
                # Beside a wildcard of ours it would find us; the kernel lets both be.
                if listener.address.port not in ours:
                    _require_free(listener, patience_s)
            for listener in config.listeners:
                missing = config.workers - len(self.of(listener.address))
                for _ in range(missing):
                    made.append((str(listener.address), _bound(listener)))
        except ListenError:
            for _, sock in made:
                sock.close()
            raise
        for name, sock in made:
            self._sockets.setdefault(name, []).append(sock)
        return [sock for _, sock in made]

    def discard(self, made: Collection[socket.socket]) -> None:
        """Close what ``prepare`` has made: nobody will accept there."""
        for name, some in list(self._sockets.items()):
            self._sockets[name] = [each for each in some if each not in made]
            if not self._sockets[name]:
                del self._sockets[name]
        for sock in made:
            sock.close()

    def keep_only(self, config: GatewayConfig) -> None:
        """Close those of addresses that are no listener's any more."""
        wanted = {str(each.address) for each in config.listeners}
        for name in self._sockets.keys() - wanted:
            for sock in self._sockets.pop(name):
                sock.close()

    def dealt(self, listener: Listener, workers: int, number: int) -> list[socket.socket]:
        """Those that worker ``number`` of so many has: each socket is somebody's."""
        return self.of(listener.address)[number::workers]

    def close(self) -> None:
        """Close them all."""
        for sockets in self._sockets.values():
            for sock in sockets:
                sock.close()
        self._sockets.clear()


def _require_free(listener: Listener, patience_s: float) -> None:
    """Raise ListenError if somebody else listens there: with SO_REUSEPORT the kernel would let a
    process of the same user share the address, and the connections."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            with _socket(listener, share=False) as sock:
                sock.bind((listener.address.host, listener.address.port))
            return
        except OSError as error:
            # Workers whose supervisor was killed let go of it in a moment.
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until_s:
                raise _error(listener, error) from error
        time.sleep(_POLL_S)


def _bound(listener: Listener) -> socket.socket:
    sock = _socket(listener, share=True)
    try:
        sock.bind((listener.address.host, listener.address.port))
    except OSError as error:
        sock.close()
        raise _error(listener, error) from error
    return sock


def _socket(listener: Listener, *, share: bool) -> socket.socket:
    is_ipv6 = ipaddress.ip_address(listener.address.host).version == 6
    sock = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Accepted sockets have these from here: a small write must not wait for an ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in KEEPALIVE:
        sock.setsockopt(*option)
    if is_ipv6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def _error(listener: Listener, error: OSError) -> ListenError:
    return ListenError(
        f"listener {listener.name!r}: cannot listen on {listener.address}: {error.strerror}: "
        f"{_mend(error)}"
    )


def _mend(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "ports below 1024 need root or CAP_NET_BIND_SERVICE"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no interface of this host has the address"
    return "see who has it: ss -ltnp"
