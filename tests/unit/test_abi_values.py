# SPDX-License-Identifier: Apache-2.0
"""Enumerations of the value layer against those of ebpf/abi.h."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import pytest

from xdp_router.core import model
from xdp_router.core.abi_values import (
    Counter,
    Direction,
    EndpointKind,
    EventType,
    Kind,
    SourceRule,
    Stage,
    TcpState,
)

EBPF = Path(__file__).parents[2] / "ebpf"
HEADER = "".join(path.read_text() for path in sorted(EBPF.glob("abi*.h")))

ENUMS: list[tuple[str, str, type[enum.IntEnum]]] = [
    ("xr_kind", "KIND", Kind),
    ("xr_mode", "MODE", model.Mode),
    ("xr_forwarding", "FORWARD", model.Forwarding),
    ("xr_reason", "REASON", model.Reason),
    ("xr_orphans", "ORPHANS", model.Orphans),
    ("xr_tcp_state", "TCP", TcpState),
    ("xr_direction", "DIR", Direction),
    ("xr_event_type", "EVENT", EventType),
    ("xr_probe_answer", "PROBE", model.ProbeAnswer),
    ("xr_stage", "STAGE", Stage),
    ("xr_endpoint", "ENDPOINT", EndpointKind),
    ("xr_source", "SOURCE", SourceRule),
]

ONLY_PYTHON = {
    f"ProbeAnswer.{name}" for name in ("LOST", "STUN", "UNEXPECTED", "CONNECTED", "HTTP")
}


@pytest.mark.parametrize(("name", "prefix", "mirror"), ENUMS, ids=[e[0] for e in ENUMS])
def test_enums_mirror_the_header(name: str, prefix: str, mirror: type[enum.IntEnum]) -> None:
    """Each enumeration has the header's names and numbers, but for what XDP never says."""
    body = re.search(rf"enum {name} \{{(.*?)\}};", HEADER, re.DOTALL)
    assert body
    header = {n: int(v) for n, v in re.findall(rf"XR_{prefix}_(\w+) = (\d+)", body[1])}
    header.pop("MAX", None)
    ours = {
        each.name: each.value
        for each in mirror
        if f"{mirror.__name__}.{each.name}" not in ONLY_PYTHON
    }
    assert ours == header


def test_counters_mirror_the_header() -> None:
    """Counters have the header's names in its order."""
    table = HEADER[HEADER.index("#define XR_COUNTERS(") :]
    listed = re.findall(r"^\tX\((\w+)\)", table, re.MULTILINE)
    assert [counter.name for counter in Counter] == listed
    assert [counter.value for counter in Counter] == list(range(len(listed)))
    assert len(listed) > 40
