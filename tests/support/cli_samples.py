# SPDX-License-Identifier: Apache-2.0
"""Values as the daemon and the flow reader return them, for the tests of the CLI."""

from __future__ import annotations

from typing import Any

STATUS: dict[str, Any] = {
    "ready": True,
    "version": "0.1.0",
    "pid": 4242,
    "uptime_s": 3600.5,
    "interfaces": [
        {
            "name": "client0",
            "ifindex": 2,
            "mode": "native",
            "ready": True,
            "reason": "",
            "takes_xdp_frames": False,
            "kernel_forwards": True,
            "kernel_replies": True,
        },
        {
            "name": "be1",
            "ifindex": 3,
            "mode": "generic",
            "ready": False,
            "reason": "",
            "takes_xdp_frames": True,
            "kernel_forwards": True,
            "kernel_replies": True,
        },
    ],
    "loader": "object",
    "pins": "/sys/fs/bpf/xdp-router/v1",
    "services": 1,
    "backends_up": 2,
    "backends": 3,
    "open_decisions": 1,
    "flows": 17,
    "flows_stateless": 3,
    "decisions_total": 1234,
    "engine": {"probe_budget": 3, "never_happened": 0},
    "fppl_us": {"p50": 850.0, "p99": 4200.0, "count": 1234},
    "xdp_program_id": 77,
}

SERVICES: list[dict[str, Any]] = [
    {
        "name": "web",
        "address": "198.18.100.1:80",
        "protocol": "tcp",
        "mode": "race",
        "forwarding": "nat",
        "fallback": "b1",
        "deadline_ms": 50,
        "backends": ["b1", "b2"],
        "decisions": 1234,
    }
]

BACKENDS: list[dict[str, Any]] = [
    {
        "name": "b1",
        "service": "web",
        "address": "198.19.1.2:8080",
        "up": True,
        "reason": "",
        "path": "xdp",
        "interface": "be1",
        "next_hop_mac": "02:00:00:01:01:02",
        "weight": 1,
        "rtt_us": 850.0,
        "wins": 1200,
        "answers": 1234,
        "losses": 0,
    },
    {
        "name": "b2",
        "service": "web",
        "address": "198.19.2.2:8080",
        "up": False,
        "reason": "no ARP answer from 198.19.2.2 on be2",
        "path": "kernel",
        "interface": "be2",
        "next_hop_mac": None,
        "weight": 1,
        "rtt_us": None,
        "wins": 34,
        "answers": 40,
        "losses": 9,
    },
]


def _flow(client: str, backend: str, state: str, decision: dict[str, Any]) -> dict[str, Any]:
    return {
        "client": client,
        "service": "web",
        "protocol": "tcp",
        "backend": backend,
        "backend_address": f"198.19.{backend[1:]}.2:8080",
        "state": state,
        "packets": 12,
        "bytes": 1234,
        "reply_packets": 10,
        "reply_bytes": 34_000,
        "age_s": 75.5,
        "idle_s": 0.4,
        "decision": decision,
    }


FLOWS: list[dict[str, Any]] = [
    _flow(
        "255.255.255.255:65535",
        "b1",
        "established",
        {
            "mode": "race",
            "reason": "race_won",
            "latency_us": 1234.5,
            "candidates": [{"backend": "b1", "rtt_us": 1000.0}],
        },
    ),
    _flow(
        "198.18.0.2:40001",
        "b2",
        "established",
        {"mode": "hash", "reason": "ring_full", "latency_us": 0.5, "candidates": []},
    ),
    _flow(
        "198.18.0.2:40002",
        "b10",
        "closing",
        {"mode": "race", "reason": "race_joined", "latency_us": 900.0, "candidates": []},
    ),
]

EXPLAIN: dict[str, Any] = {
    "client": "198.18.0.2:40000",
    "service": "web",
    "protocol": "tcp",
    "backend": "b1",
    "mode": "race",
    "reason": "race_won",
    "candidates": [
        {"backend": "b1", "rtt_us": 1000.0, "answer": "synack"},
        {"backend": "b2", "rtt_us": None, "answer": "lost"},
    ],
    "timeline": [
        {"t_us": 1075, "what": "re-injected", "detail": ""},
        {"t_us": 0, "what": "seen", "detail": None},
        {"t_us": 39.5, "what": "probe", "detail": "b2"},
        {"t_us": 31, "what": "probe", "detail": "b1"},
        {"t_us": 1060, "what": "decision", "detail": "b1: race won"},
        {"t_us": 1031, "what": "answer", "detail": "b1 synack, RTT 1000 µs"},
    ],
}
