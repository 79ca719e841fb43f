# SPDX-License-Identifier: Apache-2.0
"""Reads flows and counters from pinned maps, with or without a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Endpoint, Mode, Reason

from .bpf_maps import Maps
from .dataplane import DataPlane, NoInstance, find_instances
from .map_specs import MAP_SPECS
from .names import Names
from .pins import InstanceRef, PinError

BATCH = 1024
_NS_PER_S = 1e9

_STATES = {
    abi.TcpState.NONE: "opening",
    abi.TcpState.ESTABLISHED: "established",
    abi.TcpState.CLOSING: "closing",
}


def open_instance(pins_root: str | Path) -> Instance:
    """Open every data plane that is pinned under ``pins_root``.

    Raises NoInstance when there is none, PinError when one has lost pins, BpfError when it may
    not be opened.
    """
    found = find_instances(Path(pins_root))
    if not found:
        raise NoInstance(
            f"no router is attached (nothing is pinned under {pins_root}): "
            "sudo xdp-routerd attach IFACE, or name its pins with --pins"
        )
    return Instance([_open(each) for each in found])


def _open(found: InstanceRef) -> DataPlane:
    plane = DataPlane.open(found.path)
    missing = [spec.name for spec in MAP_SPECS if spec.value_size and spec.name not in plane.maps]
    if missing:
        plane.close()
        raise PinError(
            f"{found.path}: pins are missing ({', '.join(missing)}), as after a stop that was cut "
            f"short: sudo {found.detach}"
        )
    return plane


class Instance:
    """All pinned data planes together; usually one."""

    def __init__(self, planes: list[DataPlane]) -> None:
        self._planes = planes

    def counters(self) -> dict[str, int]:
        """Counters by name, summed over CPUs and data planes."""
        totals: dict[str, int] = {}
        for plane in self._planes:
            for name, value in Maps(plane.maps).counters.read().items():
                totals[name] = totals.get(name, 0) + value
        return totals

    def flows(self, limit: int) -> Iterator[dict[str, Any]]:
        """At most ``limit`` flows: those in ``flow_table`` first, then the rest."""
        left = limit
        for plane in self._planes:
            for flow in PlaneFlows(plane).rows():
                if left <= 0:
                    return
                left -= 1
                yield flow


class PlaneFlows:
    """The flows of one data plane as dictionaries with the keys of ``flows --json``."""

    def __init__(self, plane: DataPlane) -> None:
        self._maps = Maps(plane.maps)
        services, backends = Names(plane.maps["names"]).read()
        self._services = services
        self._backends = backends
        self._now_ns = time.monotonic_ns()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every flow, read while it is iterated over."""
        for batch in self._maps.flow_table.batches(BATCH):
            for key, value in batch:
                entry = abi.unpack_flow_entry(value)
                if entry.direction is abi.Direction.FORWARD:
                    yield self._established(key, value, entry)
        for batch in self._maps.pending_flows.batches(BATCH):
            for key, value in batch:
                row = self._pending(key, abi.unpack_pending(value))
                if row is not None:
                    yield row

    def _established(self, key: bytes, value: bytes, entry: abi.FlowEntryValue) -> dict[str, Any]:
        raw = self._maps.flow_table.read(abi.peer_key(key, value))
        reply = abi.unpack_flow_entry(raw) if raw is not None else None
        # The data plane notes traffic by the coarse clock, which may lag behind the precise one.
        last_seen_ns = max(entry.seen_ns, entry.last_seen_ns, reply.last_seen_ns if reply else 0)
        row = self._row(key, entry.service, entry.backend)
        row.update(
            backend_address=f"{abi.format_addr(entry.new_daddr)}:{entry.new_dport}",
            state=_STATES[entry.state],
            packets=entry.packets,
            bytes=entry.octets,
            reply_packets=reply.packets if reply else 0,
            reply_bytes=reply.octets if reply else 0,
            age_s=self._since(entry.seen_ns),
            idle_s=self._since(last_seen_ns),
            decision=_decision(entry.mode, entry.reason, entry.latency_ns),
        )
        return row

    def _pending(self, key: bytes, entry: abi.PendingValue) -> dict[str, Any] | None:
        """A flow that is not in ``flow_table``: its FORWARD entry, or SEEN while undecided."""
        kind = abi.key_kind(key)
        flow_key = abi.flow_key_from_bytes(key)
        if kind is abi.Kind.REPLY:
            return None
        if self._maps.flow_table.read(abi.pack_flow_key(flow_key)) is not None:
            return None
        refused = bool(entry.flags & abi.PENDING_REFUSED)
        state = "refused" if refused else "opening"
        reply = None
        if kind is abi.Kind.SEEN:
            if self._maps.pending_flows.read(abi.pack_flow_key(flow_key, abi.Kind.FORWARD)):
                return None
            state = "probing"
        elif not refused:
            raw = self._maps.pending_flows.read(_reply_key(key, entry))
            reply = abi.unpack_pending(raw) if raw is not None else None
        if entry.flags & abi.PENDING_CLOSED or (reply and reply.flags & abi.PENDING_CLOSED):
            state = "closed"
        elif entry.flags & abi.PENDING_PROVEN:
            state = "stateless"
        bound = entry.backend != NO_BACKEND
        row = self._row(key, entry.service, entry.backend)
        row.update(
            backend_address=(
                f"{abi.format_addr(entry.new_daddr)}:{entry.new_dport}" if bound else ""
            ),
            state=state,
            packets=entry.packets,
            bytes=entry.octets,
            reply_packets=reply.packets if reply else 0,
            reply_bytes=reply.octets if reply else 0,
            age_s=self._since(entry.seen_ns),
            idle_s=self._since(max(entry.last_seen_ns, reply.last_seen_ns if reply else 0)),
            decision=_decision(entry.mode, entry.reason, entry.latency_ns),
        )
        return row

    def _row(self, key: bytes, service: int, backend: int) -> dict[str, Any]:
        flow_key = abi.flow_key_from_bytes(key)
        return {
            "client": f"{abi.format_addr(flow_key.client_addr)}:{flow_key.client_port}",
            "service": self._services.get(service, str(service)),
            "protocol": abi.protocol_name(flow_key.proto),
            "backend": "" if backend == NO_BACKEND else self._backends.get(backend, str(backend)),
        }

    def _since(self, then_ns: int) -> float:
        return round(max(0, self._now_ns - then_ns) / _NS_PER_S, 6)


def _reply_key(key: bytes, forward: abi.PendingValue) -> bytes:
    flow_key = abi.flow_key_from_bytes(key)
    backend = Endpoint(forward.new_daddr, forward.new_dport, flow_key.proto)
    return abi.pack_reply_key(backend, flow_key, abi.Kind.REPLY)


def _decision(mode: Mode, reason: Reason, latency_ns: int) -> dict[str, Any]:
    return {
        "mode": mode.name.lower(),
        "reason": reason.name.lower(),
        "latency_us": round(latency_ns / 1000, 1),
        "candidates": [],  # the daemon's knowledge, for those that it still keeps
    }
