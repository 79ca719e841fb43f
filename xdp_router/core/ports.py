# SPDX-License-Identifier: Apache-2.0
"""Which probe port, and which nonce, the next probe to a backend uses.

A port that has an outstanding probe is never handed out again, so (backend, probe port)
names one probe. Free ports are used in rotation: a port rests for as long as possible, and
its nonce changes with every reuse, so a late answer to an old probe does not fit the new one.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

NONCES = 256
"""Nonces are 8 bits wide: they share the 32-bit sequence number with the keyed hash."""


@dataclass(frozen=True, slots=True)
class ProbeSlot:
    """One probe's source port (host order) and nonce (0..255)."""

    port: int
    nonce: int


class ProbePorts:
    """Rotating allocator over ``first..last`` (inclusive) for one backend endpoint.

    It grows with the ports that were used: there may be one for each of 160,000 endpoints.
    """

    __slots__ = ("_first", "_free", "_held", "_last", "_nonces")

    def __init__(self, first: int, last: int) -> None:
        """Raise ValueError unless 1 <= first <= last <= 65535."""
        if not 1 <= first <= last <= 65_535:
            raise ValueError(
                f"probe port range {first}-{last}: expected 1 <= first <= last <= 65535;"
                " correct probe_port_min and probe_port_max"
            )
        self._first = first
        self._last = last
        self._free = array("H")  # given back, the one that has rested longest first
        self._held: set[int] = set()
        self._nonces = bytearray()  # of each port that was ever used

    @property
    def outstanding(self) -> int:
        """How many ports are held by a probe."""
        return len(self._held)

    @property
    def held(self) -> tuple[int, ...]:
        """The ports that are held by a probe."""
        return tuple(self._held)

    def acquire(self) -> ProbeSlot | None:
        """The port that has rested longest, with its next nonce; None if all are held."""
        fresh = self._first + len(self._nonces)
        if fresh <= self._last:  # never used: it has rested longer than any other
            self._nonces.append(0)
            self._held.add(fresh)
            return ProbeSlot(fresh, 0)
        if not self._free:
            return None
        port = self._free.pop(0)
        self._held.add(port)
        index = port - self._first
        nonce = (self._nonces[index] + 1) % NONCES
        self._nonces[index] = nonce
        return ProbeSlot(port, nonce)

    def release(self, port: int) -> None:
        """Give a port back. Raise ValueError if no probe holds it."""
        if port not in self._held:
            raise ValueError(f"probe port {port} is not held: released twice or never acquired")
        self._held.remove(port)
        self._free.append(port)
