# SPDX-License-Identifier: Apache-2.0
"""Reads flows and counters from pinned maps, with or without a daemon."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Endpoint, Mode, Reason

from .bpf_maps import FlowTable, FlowTables, Maps
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
    planes: list[DataPlane] = []
    with contextlib.ExitStack() as undo:
        for each in found:
            planes.append(_open(each))
            undo.callback(planes[-1].close)
        undo.pop_all()
    return Instance(planes)


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
    """All pinned data planes together; usually one. They are its own."""

    def __init__(self, planes: list[DataPlane]) -> None:
        self._planes = planes

    def close(self) -> None:
        """Close them. Calling it again does nothing."""
        for plane in self._planes:
            plane.close()

    def counters(self) -> dict[str, int]:
        """Counters by name, summed over CPUs and data planes."""
        totals: dict[str, int] = {}
        for plane in self._planes:
            for name, value in Maps(plane.maps).counters.read().items():
                totals[name] = totals.get(name, 0) + value
        return totals

    def flows(self, limit: int, client_addr: int | None = None) -> Iterator[dict[str, Any]]:
        """At most ``limit`` flows, if asked so of one client: those in ``flow_table`` first."""
        left = limit
        for plane in self._planes:
            for flow in PlaneFlows(plane).rows(client_addr):
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

    def rows(self, client_addr: int | None = None) -> Iterator[dict[str, Any]]:
        """Every flow (of that client), read while it is iterated over.

        A flood fills tables with flows of others: their keys are passed over as they are.
        """
        families, begin = list(self._maps.by_family.values()), b""
        if client_addr is not None:
            family = abi.family_of(client_addr)
            families = [each for each in families if each.family == family]
            begin = client_addr.to_bytes(16 if family == 6 else 4, "big")
        for tables in families:
            flows, told = tables.flows, set[bytes]()
            # First: what is moved meanwhile is then met in both, and told once.
            before = flows.previous.batches(BATCH) if flows.previous is not None else ()
            for batch, is_own in itertools.chain(
                ((each, False) for each in before),
                ((each, True) for each in flows.own_batches(BATCH)),
            ):
                for key, value in batch:
                    if not key.startswith(begin) or key in told:
                        continue
                    if not is_own:
                        told.add(key)
                    entry = abi.unpack_flow_entry(value)
                    if entry.direction is abi.Direction.FORWARD:
                        yield self._established(tables.flows, key, value, entry)
        for tables in families:
            for table in tables.both:
                for batch in table.batches(BATCH):
                    for key, value in batch:
                        if not key.startswith(begin):
                            continue
                        row = self._pending(tables, key, abi.unpack_pending(value))
                        if row is not None:
                            yield row

    def _established(
        self, flows: FlowTable, key: bytes, value: bytes, entry: abi.FlowEntryValue
    ) -> dict[str, Any]:
        raw = flows.read(abi.peer_key(key, value))
        reply = abi.unpack_flow_entry(raw) if raw is not None else None
        # The data plane notes traffic by the coarse clock, which may lag behind the precise one.
        last_seen_ns = max(entry.seen_ns, entry.last_seen_ns, reply.last_seen_ns if reply else 0)
        row = self._row(key, entry.service, entry.backend)
        row.update(
            backend_address=self._backend_address(key, entry),
            source_address=_source(entry) if entry.flags & abi.FLOW_FULLNAT else "",
            state="killed" if entry.flags & abi.FLOW_KILLED else _STATES[entry.state],
            packets=entry.packets,
            bytes=entry.octets,
            reply_packets=reply.packets if reply else 0,
            reply_bytes=reply.octets if reply else 0,
            age_s=self._since(entry.seen_ns),
            idle_s=self._since(last_seen_ns),
            decision=_decision(entry.mode, entry.reason, entry.latency_ns),
        )
        return row

    def _pending(
        self, tables: FlowTables, key: bytes, entry: abi.PendingValue
    ) -> dict[str, Any] | None:
        """A flow that is not in ``flow_table``: its FORWARD entry, or SEEN while undecided."""
        kind = abi.key_kind(key)
        flow_key = abi.flow_key_from_bytes(key)
        if kind is abi.Kind.REPLY:
            return None
        if tables.flows.read(abi.pack_flow_key(flow_key)) is not None:
            return None
        refused = bool(entry.flags & abi.PENDING_REFUSED)
        state = "refused" if refused else "opening"
        reply = None
        if kind is abi.Kind.SEEN:
            if tables.read_pending(abi.pack_flow_key(flow_key, abi.Kind.FORWARD)):
                return None
            state = "probing"
        elif not refused:
            raw = tables.read_pending(abi.pending_reply_key(abi.flow_key_from_bytes(key), entry))
            reply = abi.unpack_pending(raw) if raw is not None else None
        if entry.flags & abi.PENDING_CLOSED or (reply and reply.flags & abi.PENDING_CLOSED):
            state = "closed"
        elif entry.flags & abi.PENDING_PROVEN:
            state = "stateless"
        bound = entry.backend != NO_BACKEND
        row = self._row(key, entry.service, entry.backend)
        row.update(
            backend_address=(self._backend_address(key, entry) if bound else ""),
            source_address=_source(entry) if entry.flags & abi.PENDING_FULLNAT else "",
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
            "client": abi.format_endpoint(Endpoint(flow_key.client_addr, flow_key.client_port)),
            "service": self._services.get(service, str(service)),
            "protocol": abi.protocol_name(flow_key.proto),
            "backend": "" if backend == NO_BACKEND else self._backends.get(backend, str(backend)),
        }

    def _backend_address(self, key: bytes, entry: abi.FlowEntryValue | abi.PendingValue) -> str:
        """Where packets go; with ``dsr`` and ``ipip`` they bear the service's address still."""
        flow_key = abi.flow_key_from_bytes(key)
        to = Endpoint(entry.new_daddr, entry.new_dport)
        if (to.addr, to.port) == (flow_key.service_addr, flow_key.service_port):
            backend = self._maps.backends.read(entry.backend)
            if backend is not None:
                to = Endpoint(backend.addr, backend.port or to.port)
        return abi.format_endpoint(to)

    def _since(self, then_ns: int) -> float:
        return round(max(0, self._now_ns - then_ns) / _NS_PER_S, 6)


def _source(entry: abi.FlowEntryValue | abi.PendingValue) -> str:
    """The address and port that the backend knows the client by."""
    return abi.format_endpoint(Endpoint(entry.new_saddr, entry.new_sport))


def _decision(mode: Mode, reason: Reason, latency_ns: int) -> dict[str, Any]:
    return {
        "mode": mode.name.lower(),
        "reason": reason.name.lower(),
        "latency_us": round(latency_ns / 1000, 1),
        "candidates": [],  # the daemon's knowledge, for those that it still keeps
    }
