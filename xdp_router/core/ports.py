# SPDX-License-Identifier: Apache-2.0
"""Which probe port, and which nonce, the next probe to a backend uses.

A port that has an outstanding probe is never handed out again, so (backend, probe port)
names one probe. Free ports are used in rotation: a port rests for as long as possible, and
its nonce changes with every reuse, so a late answer to an old probe does not fit the new one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

NONCES = 256
"""Nonces are 8 bits wide: they share the 32-bit sequence number with the keyed hash."""


@dataclass(frozen=True, slots=True)
class ProbeSlot:
    """One probe's source port (host order) and nonce (0..255)."""

    port: int
    nonce: int


class ProbePorts:
    """Rotating allocator over ``first..last`` (inclusive) for one backend endpoint."""

    __slots__ = ("_first", "_free", "_held", "_nonces")

    def __init__(self, first: int, last: int) -> None:
        """Raise ValueError unless 1 <= first <= last <= 65535."""
        if not 1 <= first <= last <= 65_535:
            raise ValueError(
                f"probe port range {first}-{last}: expected 1 <= first <= last <= 65535;"
                " correct probe_port_min and probe_port_max"
            )
        self._first = first
        self._free = deque(range(first, last + 1))
        self._held: set[int] = set()
        # Starts one below 0, so that the first use of a port has nonce 0.
        self._nonces = bytearray([NONCES - 1]) * (last - first + 1)

    @property
    def outstanding(self) -> int:
        """How many ports are held by a probe."""
        return len(self._held)

    def acquire(self) -> ProbeSlot | None:
        """The port that has rested longest, with its next nonce; None if all are held."""
        if not self._free:
            return None
        port = self._free.popleft()
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
