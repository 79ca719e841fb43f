# SPDX-License-Identifier: Apache-2.0
"""The keys of a service and of a backend, and the words that may be their values: for whoever
completes what is typed. What a key takes beside words (times, numbers, names) is not said here."""

from __future__ import annotations

from collections.abc import Mapping

_FLAG = ("true", "false")
_PROBES = ("syn", "icmp", "stun", "udp", "tcp-connect", "http", "tcp:", "tcp-connect:", "http:")
_OF_PROBES = ("probe_answer", "probe_host", "probe_path", "probe_payload", "probe_status")
BACKEND_NAME = "fallback"
"""The key whose value is the name of a backend."""

SERVICE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("address", "name"), ()),
    "protocol": ("tcp", "udp"),
    "handler": ("backends", "gateway"),
    "listener": (),
    "quic": _FLAG,
    "mode": ("race", "snapshot", "inline"),
    **dict.fromkeys(("candidates", "probe_interval", "snapshot_age"), ()),
    **{f"score.{key}": () for key in ("rtt", "ttft", "cache", "queue", "usage", "age")},
    "scrape.preset": ("vllm", "sglang"),
    **{f"scrape.{key}": () for key in ("queue", "ttft", "cache_hit", "cache_usage")},
    **{f"scrape.{key}": () for key in ("port", "path", "interval", "timeout")},
    "forwarding": ("nat", "fullnat", "dsr", "ipip"),
    "tunnel_source": (),
    BACKEND_NAME: (),
    "deadline": (),
    "orphans": ("reset", "hash"),
    "event_rate": (),
    "stateless": _FLAG,
    "except_ports": (),
    "affinity": ("source", "none"),
    **dict.fromkeys(("affinity_time", "max_connections", "allow", "deny"), ()),
    "icmp_echo": _FLAG,
    "control_arm": (),
    "control_arm_by": ("round_robin", "hash"),
    "health": _FLAG,
    **{f"health_{key}": () for key in ("interval", "rise", "fall", "hold", "hold_max")},
    "slow_start": (),
    "reset_on_death": _FLAG,
    "probe": _PROBES,
    **dict.fromkeys(_OF_PROBES, ()),
}

BACKEND: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("address", "name", "weight"), ()),
    "vlan": ("none",),
    "scrape": (),
    "probe": _PROBES,
    **dict.fromkeys(_OF_PROBES, ()),
}

KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {"service": SERVICE, "backend": BACKEND}
"""By what has them. Empty: values are not words of ours."""


def begun(what: str, word: str, given: tuple[str, ...] = ()) -> list[str]:
    """How a word that begins so may go on: as ``KEY=``, or ``KEY=VALUE``.

    ``what``: "service" or "backend"; ``given``: words that are there already: no key comes twice.
    """
    keys = KEYS[what]
    key, equals, _ = word.partition("=")
    if equals:
        return [
            found for value in keys.get(key, ()) if (found := f"{key}={value}").startswith(word)
        ]
    there = {each.partition("=")[0] for each in given}
    return [f"{each}=" for each in keys if each.startswith(word) and each not in there]
