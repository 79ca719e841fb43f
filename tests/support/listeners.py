# SPDX-License-Identifier: Apache-2.0
"""Listeners of three backends, from a few lines of configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdp_router.core.config import parse_config
from xdp_router.core.listeners import Listener


def listener(
    keys: str = "",
    *,
    kind: str = "http",
    models: Mapping[str, Sequence[str]] | None = None,
    weights: Mapping[str, int] | None = None,
) -> Listener:
    """Backends a, b and c. ``keys``: of the listener, tables behind a line that begins with [."""
    backends = "".join(
        f'[[listener.backend]]\nname = "{name}"\naddress = "198.18.1.{number}:80"\n'
        + (f"models = {list((models or {})[name])}\n" if name in (models or {}) else "")
        + (f"weight = {(weights or {})[name]}\n" if name in (weights or {}) else "")
        for number, name in enumerate("abc", 1)
    )
    own, bracket, tables = f"\n{keys}".partition("\n[")
    text = f'[[listener]]\ntype = "{kind}"\naddress = "198.18.0.1:80"\n{own}\n{backends}'
    (found,) = parse_config(text + bracket + tables, "test").gateway.listeners
    return found
