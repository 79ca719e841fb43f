# SPDX-License-Identifier: Apache-2.0
"""Client, router and backends in network namespaces of this machine: no hardware needed.

    from xdp_router.lab import BackendSpec, Lab, LabSpec

    with Lab(LabSpec((BackendSpec("b1"), BackendSpec("b2", delay_ns=5_000_000)))) as lab:
        lab.client.run(lambda: ...)              # runs in the client's namespace
        lab.router.spawn(["xdp-routerd", ...])   # a process in the router's namespace

``Lab`` lives as long as its process. ``up``, ``down`` and ``open_lab`` keep one that outlives it.
Everything needs root and happens inside namespaces that the lab made itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import LabError as LabError
    from .lab import Lab as Lab
    from .namespace import Namespace as Namespace
    from .persist import DEFAULT_DIRECTORY as DEFAULT_DIRECTORY
    from .persist import down as down
    from .persist import open_lab as open_lab
    from .persist import up as up
    from .spec import BackendSpec as BackendSpec
    from .spec import LabSpec as LabSpec
    from .stall import Stall as Stall
    from .state import LabState as LabState

_HOME = {
    "BackendSpec": "spec",
    "DEFAULT_DIRECTORY": "persist",
    "Lab": "lab",
    "LabError": "errors",
    "LabSpec": "spec",
    "LabState": "state",
    "Namespace": "namespace",
    "Stall": "stall",
    "down": "persist",
    "open_lab": "persist",
    "up": "persist",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    # Lazily: the lab's own processes (-m xdp_router.lab.backend) must start without pyroute2.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
