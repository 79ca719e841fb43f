# SPDX-License-Identifier: Apache-2.0
"""Values as the daemon and the flow reader return them, for the tests of the CLI."""

from __future__ import annotations

from typing import Any

WELL: dict[str, Any] = {
    "state": "well",
    "why": "",
    "source": "",
    "since_s": None,
    "held_s": 0.0,
    "times": 0,
    "falls": 0,
    "share": 1.0,
    "ignored": False,
}

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
            "kernel_families": {"ipv4": {"forwards": True, "replies": True}},
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
            "kernel_families": {"ipv4": {"forwards": True, "replies": True}},
        },
    ],
    "loader": "object",
    "generation": 2,
    "kernel_handoff": "check",
    "pins": "/sys/fs/bpf/xdp-router/v1",
    "services": 1,
    "backends_up": 2,
    "backends_draining": 0,
    "backends_ill": 0,
    "backends_dead": 0,
    "flows_ended": 0,
    "backends": 3,
    "open_decisions": 1,
    "flows": 17,
    "flow_entries": {"flow_table": 34, "flow_table6": 0},
    "flows_stateless": 3,
    "connections": 17,
    "services_over_budget": 0,
    "over_budget": [],
    "services_full": 0,
    "full": [],
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
        "open": 12,
        "connections": 17,
        "max_connections": 1000,
        "except_ports": [],
        "affinity": "none",
        "affinity_time_s": None,
        "quic": False,
        "icmp_echo": True,
        "allow": 2,
        "deny": 1,
        "tunnel_source": "",
        "stateless": {"enabled": True, "for_s": 0.0, "why": "budget_service", "forwarded": 4321},
        "flood": {
            "mode": "stateless",
            "obstacle": "",
            "active": False,
            "since_s": None,
            "reason": "",
        },
    }
]

BACKENDS: list[dict[str, Any]] = [
    {
        "name": "b1",
        "service": "web",
        "address": "198.19.1.2:8080",
        "up": True,
        "draining": False,
        "health": WELL,
        "reason": "",
        "path": "xdp",
        "interface": "be1",
        "next_hop_mac": "02:00:00:01:01:02",
        "weight": 1,
        "probe": "syn",
        "rtt_us": 850.0,
        "wins": 1200,
        "answers": 1234,
        "losses": 0,
        "mode": "race",
        "share": None,
        "score": None,
        "terms": None,
        "told": {},
        "scrape": None,
        "open": 17,
        "synack_us": 830.5,
    },
    {
        "name": "b2",
        "service": "web",
        "address": "198.19.2.2:8080",
        "up": False,
        "draining": False,
        "health": WELL,
        "reason": "no ARP answer from 198.19.2.2 on be2",
        "path": "kernel",
        "interface": "be2",
        "next_hop_mac": None,
        "weight": 1,
        "probe": "syn",
        "rtt_us": None,
        "wins": 34,
        "answers": 40,
        "losses": 9,
        "mode": "race",
        "share": None,
        "score": None,
        "terms": None,
        "told": {},
        "scrape": None,
        "open": 0,
        "synack_us": None,
    },
]


def _flow(client: str, backend: str, state: str, decision: dict[str, Any]) -> dict[str, Any]:
    return {
        "client": client,
        "service": "web",
        "protocol": "tcp",
        "backend": backend,
        "backend_address": f"198.19.{backend[1:]}.2:8080",
        "source_address": "",
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
    "source_address": "",
    "snapshot": None,
    "compared": [],
    "timeline": [
        {"t_us": 1075, "what": "re-injected", "detail": ""},
        {"t_us": 0, "what": "seen", "detail": None},
        {"t_us": 39.5, "what": "probe", "detail": "b2"},
        {"t_us": 31, "what": "probe", "detail": "b1"},
        {"t_us": 1060, "what": "decision", "detail": "b1: race won"},
        {"t_us": 1031, "what": "answer", "detail": "b1 synack, RTT 1000 µs"},
    ],
}

_NO_INPUTS = {"ttft_ms": None, "cache_hit": None}

PICKED: dict[str, Any] = {
    **EXPLAIN,
    "backend": "b2",
    "mode": "snapshot",
    "reason": "snapshot",
    "candidates": [
        {"backend": "b1", "rtt_us": 20_100.0, "answer": "snapshot", "tied": False},
        {"backend": "b2", "rtt_us": 99.5, "answer": "snapshot", "tied": False},
    ],
    "snapshot": {
        "age_us": 4_300.5,
        "backends": [
            {
                "backend": "b1",
                "share": 0.0039,
                "score": 0.005,
                "terms": {"rtt": 0.005, "ttft": None, "cache": None, "queue": None, "usage": None},
                "rtt_us": 20_100.0,
                "queue": None,
                **_NO_INPUTS,
            },
            {
                "backend": "b2",
                "share": 0.9961,
                "score": 0.8333,
                "terms": {"rtt": 1.0, "ttft": None, "cache": None, "queue": 0.5, "usage": None},
                "rtt_us": 99.5,
                "queue": 4,
                **_NO_INPUTS,
                "sources": {"queue": "scrape"},
            },
        ],
    },
    "timeline": [
        {"t_us": -4300.5, "what": "snapshot", "detail": "newest measurement of 2 backends"},
        {"t_us": 0, "what": "seen", "detail": "first packet of web"},
    ],
}

COMPARED: dict[str, Any] = {
    **EXPLAIN,
    "backend": "b2",
    "mode": "inline",
    "reason": "inline",
    "candidates": [],
    "compared": [
        {"backend": "b2", "wait_us": 99.5, "open": 3, "weight": 2, "cost_us": 199.0},
        {"backend": "b1", "wait_us": None, "open": 0, "weight": 1, "cost_us": None},
    ],
    "timeline": [{"t_us": 0, "what": "seen", "detail": "first packet of web"}],
}

PUSHED: dict[str, Any] = {
    "backend": "b2",
    "told": {"queue": 4, "cache_hit": 0.85},
    "holds_s": 10.0,
    "mode": "snapshot",
}
