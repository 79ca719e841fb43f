# SPDX-License-Identifier: Apache-2.0
"""A backend that says exactly what it is told to, whatever it is asked; for answers that no good
server gives."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

_RESET = struct.pack("ii", 1, 0)
PATIENCE_S = 10.0
Step = bytes | Callable[[socket.socket], object]


def reset(sock: socket.socket) -> None:
    """A step: RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


def close(sock: socket.socket) -> None:
    """A step: FIN."""
    sock.close()


def half_close(sock: socket.socket) -> None:
    """A step: FIN; what comes is still read."""
    sock.shutdown(socket.SHUT_WR)


def await_request(sock: socket.socket) -> None:
    """A step: another head, without a body, is read first."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = sock.recv(65536)
        if not more:
            return
        data += more


class Script:
    """``heads``: what it was asked, connection by connection."""

    def __init__(self, listener: socket.socket, plays: Sequence[Sequence[Step]]) -> None:
        self.heads: list[bytes] = []
        self._listener = listener
        self._plays = list(plays)

    def run(self) -> None:
        """Each connection gets the next play; the last one is every later connection's."""
        number = 0
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            play = self._plays[min(number, len(self._plays) - 1)]
            number += 1
            threading.Thread(target=self._play, args=(sock, play)).start()

    def _play(self, sock: socket.socket, play: Sequence[Step]) -> None:
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError), sock:
            data = b""
            while b"\r\n\r\n" not in data:
                more = sock.recv(65536)
                if not more:
                    return
                data += more
            self.heads.append(data)
            for step in play:
                if isinstance(step, bytes):
                    sock.sendall(step)
                else:
                    step(sock)
            while sock.fileno() >= 0 and sock.recv(65536):
                pass


@contextlib.contextmanager
def scripted(port: int, *plays: Sequence[Step]) -> Iterator[Script]:
    """Listen on 127.0.0.1 in the calling thread's namespace; ``plays``: by connection."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        script = Script(listener, plays)
        thread = threading.Thread(target=script.run)
        thread.start()
        try:
            yield script
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
