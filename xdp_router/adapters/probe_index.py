# SPDX-License-Identifier: Apache-2.0
"""The keys of ``backend_index`` that are there for probes: whose answers XDP takes as such."""

from __future__ import annotations

from collections.abc import Mapping

from xdp_router.core import abi
from xdp_router.core.model import Endpoint

from .bpf_syscall import BpfMap

Probed = tuple[Endpoint, abi.EndpointKind]
_KINDS = (abi.EndpointKind.PROBE, abi.EndpointKind.STUN)
_BATCH = 4_096


class ProbeIndex:
    """Probed endpoints that are not a backend's own, and those of STUN servers."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        """``fd``: that of ``backend_index``."""
        self._map = BpfMap(fd)

    def items(self) -> dict[Probed, tuple[int, int]]:
        """All of them: backend id and service id."""
        found = {}
        for batch in self._map.batches(_BATCH):
            for key, raw in batch:
                probed = abi.unpack_endpoint_key(key)
                if probed[1] in _KINDS:
                    found[probed] = abi.unpack_backend_ref(raw)
        return found

    def replace(self, refs: Mapping[Probed, tuple[int, int]]) -> None:
        """Have these and no others. Raises BpfError: E2BIG when the table is full."""
        for probed in self.items().keys() - refs.keys():
            self._map.delete(abi.pack_endpoint_key(*probed))
        self._map.write_all(
            (abi.pack_endpoint_key(*probed), abi.pack_backend_ref(*ref))
            for probed, ref in refs.items()
        )
