# SPDX-License-Identifier: Apache-2.0
"""What the daemon is started with, beside its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdp_router.adapters import xdp_link

from .config_file import ConfigFile


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """What ``attach`` was asked for."""

    interfaces: tuple[str, ...]
    mode: xdp_link.AttachMode | None
    loader: str
    replace: bool
    control: Path
    pins: Path
    persist: bool = False
    control_group: int | None = None
    log_format: str = "console"
    gateway: bool = False
    """Whether to run the gateway as well, as a child."""
    source: ConfigFile | None = None
    """What the configuration was read from; None: it was named by flags, which ``document``
    stands for."""
    document: Mapping[str, Any] | None = None
