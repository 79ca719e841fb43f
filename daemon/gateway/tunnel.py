# SPDX-License-Identifier: Apache-2.0
"""Connections whose bytes pass as they are: each direction ends by itself.

Who has said all may wait for what the other side still says (RFC 9293, 3.6), so FIN passes as FIN,
and the connection is over when both have said all. Meanwhile nothing is read of the one that has:
that it is gone altogether is only seen when something is written to it. So what is half closed must
not be silent for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Client
    from .leg import Leg

HALF_CLOSED = "half closed"
HALF_LATE = "half closed, and silent for too long"


class Ends:
    """``client``, ``backend``: whether it has said all. ``newest_ns``: when the other one has said
    something last; 0: none of them has said all."""

    __slots__ = ("client", "backend", "newest_ns")

    def __init__(self) -> None:
        self.client = self.backend = False
        self.newest_ns = 0

    @property
    def is_over(self) -> bool:
        """Both have said all."""
        return self.client and self.backend

    def is_late(self, before_ns: int) -> bool:
        """Whether it is half closed, and silent since ``before_ns``."""
        return 0 < self.newest_ns < before_ns and not self.is_over


class Tunnel:
    """Of an exchange, from its 101 on: ``client`` on one side, ``leg`` on the other."""

    __slots__ = ("ends", "_client", "_leg", "_clock")

    def __init__(self, client: Client, leg: Leg, clock: Callable[[], int]) -> None:
        self.ends = Ends()
        self._client = client
        self._leg = leg
        self._clock = clock

    def take(self, data: bytes) -> None:
        """Bytes of the client's."""
        if self.ends.newest_ns:
            self.ends.newest_ns = self._clock()
        self._leg.write(data)

    def client_ends(self) -> bool:
        """The client has said all. Whether that is the end; saying it again does nothing."""
        ends = self.ends
        if not ends.client:
            ends.client, ends.newest_ns = True, self._clock()
            self._leg.write_eof()
        return ends.backend or self._client.is_tls

    def backend_ends(self) -> bool:
        """The same of the backend."""
        ends = self.ends
        if not ends.backend:
            ends.backend, ends.newest_ns = True, self._clock()
            self._client.write_eof()
        return ends.client or self._client.is_tls

    def is_late(self, before_ns: int) -> bool:
        """Whether it is half closed, and silent since ``before_ns``."""
        return self.ends.is_late(before_ns)
