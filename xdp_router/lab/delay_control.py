# SPDX-License-Identifier: Apache-2.0
"""Talk to a running delay line."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any, Final

from .errors import LabError
from .stall import Stall


class _Keep:
    """The type of KEEP."""


KEEP: Final = _Keep()
"""Stands for "as it is", where None would mean "no stall"."""


def control(
    path: Path,
    *,
    delay_ns: int | None = None,
    stall: Stall | _Keep | None = KEEP,
    start_ns: int | None = None,
) -> dict[str, int]:
    """Change the line behind a control socket; its counts and setting after that.

    ``start_ns``: when the stall's first period begins, by the wall clock; None: now.
    When this returns, frames that arrive at the line are treated the new way.
    Raises LabError if the line does not answer.
    """
    request: dict[str, Any] = {}
    if delay_ns is not None:
        request["delay_ns"] = delay_ns
    if not isinstance(stall, _Keep):
        request["stall"] = dataclasses.asdict(stall) if stall else None
        request["start_ns"] = start_ns
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(5)
            peer.connect(str(path))
            peer.send(json.dumps(request).encode())
            answer = peer.recv(4096)
    except OSError as error:
        raise LabError(
            f"the delay line at {path} does not answer ({error}): is the lab up?"
        ) from error
    if not answer:
        raise LabError(f"the delay line at {path} refused {request}")
    counts: dict[str, int] = json.loads(answer)
    return counts
