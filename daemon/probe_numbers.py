# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers of probes, computed before a held packet waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from xdp_router.core.model import Backend
from xdp_router.core.probe_kinds import probed_endpoint
from xdp_router.core.probe_sequence import ProbeHashes, probe_seq

WARM_LIMIT = 65_536
"""Hashes computed ahead; further ones are computed when they are first needed."""

_SLICE = 20  # one takes 10 us, 25 with IPv6: the loop is held for half a millisecond at most


class ProbeNumbers:
    """Gives the engine its sequence numbers.

    ``source_addr`` tells the address that a backend's probes are sent from, by backend id.
    """

    def __init__(self, key: tuple[int, int], source_addr: Callable[[int], int]) -> None:
        self._hashes = ProbeHashes(key)
        self._source_addr = source_addr

    def sequence(self, backend: Backend, probe_port: int, nonce: int) -> int:
        """Sequence number of one probe."""
        endpoint = probed_endpoint(backend)
        source = self._source_addr(backend.id)
        return probe_seq(self._hashes.get(endpoint.addr, endpoint.port, probe_port, source), nonce)

    async def warm(self, backends: Iterable[Backend], ports: range) -> None:
        """Compute ahead for every backend and port, a slice at a time."""
        budget = WARM_LIMIT
        for backend in backends:
            for start in range(ports.start, ports.stop, _SLICE):
                if budget <= 0:
                    return
                for port in range(start, min(start + _SLICE, ports.stop)):
                    self.sequence(backend, port, 0)
                    budget -= 1
                await asyncio.sleep(0)
