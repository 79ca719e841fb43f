# SPDX-License-Identifier: Apache-2.0
"""What chooses the engine in each arm, and how that is configured and started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.gateway.peers import (
    Address,
    Proxy,
    Started,
    haproxy,
    no_gateway,
    no_program,
    start_gateway,
)
from bench.gateway.venvs import VENVS, by_hand

ROUND_ROBIN = "round robin"
LEAST = "least in flight"
CACHE_AWARE = "cache-aware (smg)"
INLINE, SNAPSHOT, HCL, RACE = "ours: inline", "ours: score", "ours: hcl", "ours: race"
OURS = (INLINE, SNAPSHOT, HCL, RACE)
_MODES = {
    INLINE: ("inline", "score"),
    SNAPSHOT: ("snapshot", "score"),
    HCL: ("snapshot", "hcl"),
    RACE: ("race", "score"),
}
ABOUT = {
    ROUND_ROBIN: "HAProxy, `balance roundrobin`",
    LEAST: "HAProxy, `balance leastconn`",
    CACHE_AWARE: "smg, `--policy cache_aware`",
    INLINE: 'mode = "inline"',
    SNAPSHOT: 'mode = "snapshot"',
    HCL: 'mode = "snapshot", policy = "hcl"',
    RACE: 'mode = "race": two candidates, the second by the hedge delay',
}


def gateway_toml(at: Address, engines: Sequence[Address], mode: str, policy: str) -> str:
    """Our own configuration: everything else is as it is by default."""
    lines = ["[gateway]", "access_log = false", "[[listener]]", 'name = "engines"', 'type = "llm"']
    lines += [f'address = "{at[0]}:{at[1]}"', f'mode = "{mode}"', f'policy = "{policy}"']
    for number, (host, port) in enumerate(engines, 1):
        lines += ["[[listener.backend]]", f'name = "e{number}"', f'address = "{host}:{port}"']
    return "\n".join(lines) + "\n"


def _ours(
    mode: str, policy: str, directory: Path, at: Address, engines: Sequence[Address]
) -> Started:
    return start_gateway(directory, gateway_toml(at, engines, mode, policy))


def smg(directory: Path, at: Address, engines: Sequence[Address]) -> Started:
    """Its defaults for that policy; it asks nobody for a tokenizer, for the mock has none."""
    del directory
    urls = [f"http://{host}:{port}" for host, port in engines]
    return Started(
        (
            str(_SMG),
            "launch",
            *("--host", at[0], "--port", str(at[1])),
            *("--policy", "cache_aware", "--backend", "vllm", "--worker-urls", *urls),
            *("--disable-tokenizer-autoload", "--disable-load-monitoring"),
            *("--prometheus-host", at[0], "--prometheus-port", str(at[1] + _METRICS)),
            *("--log-level", "error"),
        )
    )


_SMG = VENVS / "smg" / "bin" / "smg"
_METRICS = 1_000


def _no_smg() -> str:
    if os.access(_SMG, os.X_OK):
        return ""
    return f"{_SMG} is not there: make bench ttft, or: {by_hand('smg')}"


def proxies() -> tuple[Proxy, ...]:
    """All arms, in the order of the table."""
    no_haproxy: Callable[[], str] = no_program("haproxy")
    return (
        Proxy(ROUND_ROBIN, partial(haproxy, balance="roundrobin"), no_haproxy),
        Proxy(LEAST, partial(haproxy, balance="leastconn"), no_haproxy),
        Proxy(CACHE_AWARE, smg, _no_smg, ready_s=60.0),
        *(Proxy(name, partial(_ours, *how), no_gateway) for name, how in _MODES.items()),
    )
