# SPDX-License-Identifier: Apache-2.0
"""The same world in IPv6: what the cases write and read in IPv4's words is IPv6's in the maps.

Frames are translated by ``tests/support/ipv6_frames.py``. Tables are seen through windows that
translate addresses, the sums that depend on them, and lengths that count the IP header.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.icmp_frames import OwnError
from tests.support.ipv6_frames import LONGER, Probes, ipv4_addr, ipv6_addr, ipv6_frame
from tests.support.program import LoadedProgram, Wires
from xdp_router.adapters.bpf_maps import FlowTable, FlowTables, PendingFlows
from xdp_router.core import abi
from xdp_router.core.abi_keys import KEY, KEY6
from xdp_router.core.model import Endpoint, FlowKey

from .world import PROBE_KEY, PROBE_PORTS, World, deltas_of

PROBES = Probes(PROBE_KEY, PROBE_PORTS)


def native_key(key: bytes) -> bytes:
    """A flow's key, IPv6's."""
    if len(key) != KEY.size:
        return key
    saddr, daddr, *rest = KEY.unpack(key)
    ends = (ipv6_addr(addr).to_bytes(16, "big") for addr in (saddr, daddr))
    return KEY6.pack(*ends, *rest)


def told_key(key: bytes) -> bytes:
    """The same in the tables' words; another one as it is."""
    source, target, *rest = KEY6.unpack(key)
    saddr, daddr = (ipv4_addr(int.from_bytes(each, "big")) for each in (source, target))
    return KEY.pack(saddr, daddr, *rest) if saddr >> 32 == 0 == daddr >> 32 else key


def _native_flow(key: bytes, value: Any) -> Any:
    """A value whose key is told, IPv6's."""
    new = ipv6_addr(value.new_saddr), ipv6_addr(value.new_daddr)
    change: dict[str, Any] = {
        "new_saddr": new[0],
        "new_daddr": new[1],
        "octets": value.octets + LONGER * value.packets,
    }
    if hasattr(value, "l3_delta"):
        saddr, daddr, sport, dport, *_ = KEY.unpack(key)
        told = (value.new_saddr, value.new_daddr)
        ports = (sport, dport, value.new_sport, value.new_dport)
        if (value.l3_delta, value.l4_delta) == deltas_of((saddr, daddr), told, ports):
            old = ipv6_addr(saddr), ipv6_addr(daddr)
            change["l3_delta"], change["l4_delta"] = deltas_of(old, new, ports)
    return dataclasses.replace(value, **change)


def _told_flow(key: bytes, value: Any) -> Any:
    """A value whose key is IPv6's, in the tables' words."""
    told = ipv4_addr(value.new_saddr), ipv4_addr(value.new_daddr)
    change: dict[str, Any] = {
        "new_saddr": told[0],
        "new_daddr": told[1],
        "octets": value.octets - LONGER * value.packets,
    }
    if hasattr(value, "l3_delta"):
        source, target, sport, dport, *_ = KEY6.unpack(key)
        old = int.from_bytes(source, "big"), int.from_bytes(target, "big")
        new = value.new_saddr, value.new_daddr
        ports = (sport, dport, value.new_sport, value.new_dport)
        if (value.l3_delta, value.l4_delta) == deltas_of(old, new, ports):
            old = ipv4_addr(old[0]), ipv4_addr(old[1])
            change["l3_delta"], change["l4_delta"] = deltas_of(old, told, ports)
    return dataclasses.replace(value, **change)


class _Flows:
    """A table of flows. What comes in IPv6's own keys and values passes as it is."""

    def __init__(self, table: PendingFlows | FlowTable) -> None:
        self._table = table
        bound = isinstance(table, FlowTable)
        self._pack: Any = abi.pack_flow_entry if bound else abi.pack_pending
        self._unpack: Any = abi.unpack_flow_entry if bound else abi.unpack_pending

    def read(self, key: bytes) -> bytes | None:
        native = native_key(key)
        raw = self._table.read(native)
        if raw is None or native == key:
            return raw
        told: bytes = self._pack(_told_flow(native, self._unpack(raw)))
        return told

    def insert_noexist(self, key: bytes, value: bytes) -> int:
        native = native_key(key)
        if native != key:
            value = self._pack(_native_flow(key, self._unpack(value)), 6)
        return self._table.insert_noexist(native, value)

    def delete(self, key: bytes) -> int:
        return self._table.delete(native_key(key))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class _ByEndpoint:
    """``services`` and ``backend_index``."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def write(self, endpoint: Endpoint, *value: Any) -> None:
        self._table.write(native_endpoint(endpoint), *value)

    def read(self, endpoint: Endpoint) -> Any:
        return self._table.read(native_endpoint(endpoint))

    def delete(self, endpoint: Endpoint) -> None:
        self._table.delete(native_endpoint(endpoint))

    def items(self) -> Any:
        return self._table.items()


def native_endpoint(endpoint: Endpoint) -> Endpoint:
    """An endpoint, IPv6's."""
    if endpoint.addr >> 32:
        return endpoint
    return dataclasses.replace(endpoint, addr=ipv6_addr(endpoint.addr))


class _Services(_ByEndpoint):
    """``services``."""

    def answer_echo(self, values: Mapping[int, abi.ServiceValue]) -> None:
        self._table.answer_echo({ipv6_addr(addr): value for addr, value in values.items()})


def _with_addrs(value: abi.BackendValue, change: Callable[[int], int]) -> abi.BackendValue:
    return dataclasses.replace(
        value,
        addr=change(value.addr),
        probe_addr=change(value.probe_addr),
        stateless_addr=change(value.stateless_addr),
    )


class _Backends:
    """``backends``."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def write(self, backend: int, value: abi.BackendValue) -> None:
        self._table.write(backend, _with_addrs(value, ipv6_addr))

    def read(self, backend: int) -> abi.BackendValue | None:
        value: abi.BackendValue | None = self._table.read(backend)
        if value is None:
            return None
        return _with_addrs(value, ipv4_addr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class _Interfaces:
    """``interfaces``. IPv6's header is longer, and so are the MTUs: the same payload fits."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def write(self, ifindex: int, value: abi.InterfaceValue) -> None:
        self._table.write(
            ifindex,
            dataclasses.replace(value, addr=0, addr6=ipv6_addr(value.addr), mtu=value.mtu + LONGER),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class _Control:
    """``control``, likewise."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def write(self, value: abi.ControlValue) -> None:
        mtu = min(value.min_mtu + LONGER, 0xFFFF)
        self._table.write(dataclasses.replace(value, min_mtu=mtu))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class Maps6:
    """The maps, as the cases see them."""

    def __init__(self, maps: Any) -> None:
        self._maps = maps
        self.services = _Services(maps.services)
        self.backend_index = _ByEndpoint(maps.backend_index)
        self.backends = _Backends(maps.backends)
        self.interfaces = _Interfaces(maps.interfaces)
        self.control = _Control(maps.control)
        own = maps.by_family[6]
        pending: Any = _Flows(own.pending)
        flows: Any = _Flows(own.flows)
        flood: Any = _Flows(own.flood)
        self.pending_flows, self.flow_table = pending, flows
        self.by_family = {6: FlowTables(6, pending, flows, flood)}

    def flows_of(self, _addr: int) -> FlowTables:
        return self.by_family[6]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._maps, name)


class World6(World):
    """One loaded program of both families with IPv6 services only."""

    family = 6

    def __init__(self, program: LoadedProgram, wires: Wires) -> None:
        super().__init__(program, wires)
        maps: Any = Maps6(program.maps)
        self.maps = maps
        self._probes = PROBES

    def number_probes(self, key: tuple[int, int]) -> None:
        self._probes = Probes(key, PROBE_PORTS)

    def native(self, frame: bytes) -> bytes:
        if isinstance(frame, OwnError):
            return frame.in_ipv6(self._probes)
        return ipv6_frame(frame, self._probes)

    def native_addr(self, addr: int) -> int:
        return ipv6_addr(addr)

    def native_key(self, key: FlowKey) -> FlowKey:
        return dataclasses.replace(
            key, client_addr=ipv6_addr(key.client_addr), service_addr=ipv6_addr(key.service_addr)
        )

    def native_probe(self, seq: int, key: FlowKey) -> int:
        backend, ours = (key.client_addr, key.client_port), (key.service_addr, key.service_port)
        return self._probes.moved(seq, backend, ours)
