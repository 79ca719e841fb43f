# SPDX-License-Identifier: Apache-2.0
"""What XDP has seen of backends' flows, for whoever decides or shows."""

from __future__ import annotations

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core.strategy.probing import Load, LoadOf


def load_reader(maps: Maps) -> LoadOf:
    """A function that tells a backend's load as it is now, by its id."""

    def load_of(backend: int) -> Load:
        return Load(maps.backend_loads.read(backend).ewma_ns, maps.backend_loads.open(backend))

    return load_of
