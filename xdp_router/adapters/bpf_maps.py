# SPDX-License-Identifier: Apache-2.0
"""The data plane's maps by what they hold. Bytes come from and go to ``core/abi.py``."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from xdp_router.core import abi
from xdp_router.core.address import icmp_protocol
from xdp_router.core.model import Endpoint

from .bpf_ctypes import BpfError
from .bpf_syscall import BpfMap, possible_cpus
from .flow_tables import FlowTable as FlowTable
from .flow_tables import FlowTables as FlowTables
from .flow_tables import PendingFlows as PendingFlows
from .pick_maps import BackendLoads, PickTables
from .probe_index import ProbeIndex
from .service_maps import AT_ONCE, Affinity, ConnectionIds, ServiceRanges, SourceRules, Usage
from .signs import BackendSigns
from .traffic import Traffic

_BATCH = 4096
_COUNTER_PLACES = tuple((counter.name, int(counter)) for counter in abi.Counter)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


class Services:
    """``services``: by virtual address."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, endpoint: Endpoint, value: abi.ServiceValue) -> None:
        """Set one service. Raises BpfError: E2BIG when the table is full."""
        self._map.write(abi.pack_endpoint_key(endpoint), abi.pack_service(value))

    def read(self, endpoint: Endpoint) -> abi.ServiceValue | None:
        """One service, or None."""
        raw = self._map.read(abi.pack_endpoint_key(endpoint))
        return abi.unpack_service(raw) if raw is not None else None

    def delete(self, endpoint: Endpoint) -> None:
        """Remove one service; its address becomes other traffic at once."""
        _deleted(self._map, abi.pack_endpoint_key(endpoint))

    def delete_all(self, endpoints: Iterable[Endpoint]) -> None:
        """The same with many."""
        for endpoint in endpoints:
            self.delete(endpoint)

    def items(self) -> Iterator[tuple[Endpoint, abi.ServiceValue]]:
        """All services, and what they leave out (without backends)."""
        for key, raw in _items(self._map):
            endpoint, kind = abi.unpack_endpoint_key(key)
            if kind not in (abi.EndpointKind.ECHO, abi.EndpointKind.TAKEN_UP):
                yield endpoint, abi.unpack_service(raw)

    def running(self) -> dict[Endpoint, abi.ServiceValue]:
        """The same without what services leave out."""
        return {at: value for at, value in self.items() if not value.is_left_out}

    def have_room(self, values: Iterable[Endpoint], echo: Iterable[int]) -> bool:
        """Whether these endpoints, and addresses with ICMP echo, fit beside what is there."""
        here = {key for key, _ in _items(self._map)}
        new = {abi.pack_endpoint_key(each) for each in values} | {_echo_key(each) for each in echo}
        return len(here | new) <= self._map.info.max_entries

    def answer_echo(self, values: Mapping[int, abi.ServiceValue]) -> None:
        """Have ICMP echo to these addresses, and to no others, answered for their services.

        Raises BpfError as ``write``.
        """
        wanted = {_echo_key(addr): value for addr, value in values.items()}
        for key, _ in list(_items(self._map)):
            if abi.unpack_endpoint_key(key)[1] is abi.EndpointKind.ECHO and key not in wanted:
                _deleted(self._map, key)
        for key, value in wanted.items():
            self._map.write(key, abi.pack_service(value))

    def take_up(self, addr: int, taken: bool) -> None:
        """Say whether an address is this host's for the gateway's sake alone, so that no other
        port of it is answered. Raises BpfError as ``write``.
        """
        key = abi.pack_endpoint_key(Endpoint(addr, 0, 0), abi.EndpointKind.TAKEN_UP)
        if taken:
            self._map.write(key, bytes(abi.SERVICE_SIZE))
        else:
            _deleted(self._map, key)

    def taken_up(self) -> set[int]:
        """Addresses of which that was said."""
        keys = (abi.unpack_endpoint_key(key) for key, _ in _items(self._map))
        return {endpoint.addr for endpoint, kind in keys if kind is abi.EndpointKind.TAKEN_UP}

    def echo_addresses(self) -> set[int]:
        """Addresses whose ICMP echo is answered."""
        keys = (abi.unpack_endpoint_key(key) for key, _ in _items(self._map))
        return {endpoint.addr for endpoint, kind in keys if kind is abi.EndpointKind.ECHO}


def _echo_key(addr: int) -> bytes:
    return abi.pack_endpoint_key(Endpoint(addr, 0, icmp_protocol(addr)), abi.EndpointKind.ECHO)


class Backends:
    """``backends``: by backend id. A slot that was never written is all zero."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, backend: int, value: abi.BackendValue) -> None:
        """Set one backend. Raises BpfError: E2BIG when ``backend`` is past the table's end."""
        self._map.write(_u32(backend), abi.pack_backend(value))

    def write_all(self, values: Mapping[int, abi.BackendValue]) -> None:
        """Set many backends, by id. Raises BpfError as ``write``."""
        self._map.write_all((_u32(each), abi.pack_backend(value)) for each, value in values.items())

    def items(self) -> Iterator[tuple[int, abi.BackendValue]]:
        """All backends, by id."""
        nobody = bytes(abi.BACKEND_SIZE)
        for key, raw in _items(self._map):
            if raw != nobody:
                yield int.from_bytes(key, sys.byteorder), abi.unpack_backend(raw)

    def read(self, backend: int) -> abi.BackendValue | None:
        """One backend; None past the table's end."""
        raw = self._map.read(_u32(backend))
        return abi.unpack_backend(raw) if raw is not None else None


class BackendIndex:
    """``backend_index``: backend's address to its id and service."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, endpoint: Endpoint, backend: int, service: int) -> None:
        """Set one. Raises BpfError: E2BIG when the table is full."""
        self._map.write(abi.pack_endpoint_key(endpoint), abi.pack_backend_ref(backend, service))

    def write_all(self, refs: Mapping[Endpoint, tuple[int, int]]) -> None:
        """Set many: (backend id, service id) by address. Raises BpfError as ``write``."""
        self._map.write_all(
            (abi.pack_endpoint_key(endpoint), abi.pack_backend_ref(*ref))
            for endpoint, ref in refs.items()
        )

    def read(self, endpoint: Endpoint) -> tuple[int, int] | None:
        """Backend id and service id of an address, or None."""
        raw = self._map.read(abi.pack_endpoint_key(endpoint))
        return abi.unpack_backend_ref(raw) if raw is not None else None

    def delete(self, endpoint: Endpoint) -> None:
        """Remove one; its packets become other traffic unless they belong to a flow."""
        _deleted(self._map, abi.pack_endpoint_key(endpoint))

    def items(self) -> Iterator[tuple[Endpoint, tuple[int, int]]]:
        """All of them: address, (backend id, service id)."""
        for key, raw in _items(self._map):
            endpoint, kind = abi.unpack_endpoint_key(key)
            if kind is abi.EndpointKind.ONE:  # see adapters/probe_index.py for the others
                yield endpoint, abi.unpack_backend_ref(raw)


class HashTables:
    """``hash_tables``: two consistent-hash tables a service."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, service: int, half: int, slots: Sequence[int]) -> None:
        """Write table ``half`` (0 or 1): the one that ``service.hash_active`` does not name."""
        self._map.write(_u32(2 * service + half), abi.pack_hash_table(slots))

    def read(self, service: int, half: int) -> tuple[int, ...] | None:
        """Backend id of each slot; None past the table's end."""
        raw = self._map.read(_u32(2 * service + half))
        return abi.unpack_hash_table(raw) if raw is not None else None


class Interfaces:
    """``interfaces``: by interface index."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, ifindex: int, value: abi.InterfaceValue) -> None:
        """Set one. Raises BpfError: E2BIG when the table is full."""
        self._map.write(_u32(ifindex), abi.pack_interface(value))

    def delete(self, ifindex: int) -> None:
        """Remove one: nothing that arrives there is for us any more."""
        _deleted(self._map, _u32(ifindex))

    def items(self) -> Iterator[tuple[int, abi.InterfaceValue]]:
        """All of them."""
        for key, raw in _items(self._map):
            yield int.from_bytes(key, sys.byteorder), abi.unpack_interface(raw)


class Control:
    """``control``: limits, keys, and the daemon's heartbeat."""

    _KEY = _u32(0)

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)
        self._written: abi.ControlValue | None = None

    def write(self, value: abi.ControlValue) -> None:
        """Set all of it."""
        self._map.write(self._KEY, abi.pack_control(value))
        self._written = value

    def read(self) -> abi.ControlValue:
        """All of it; zeros before the first write."""
        raw = self._map.read(self._KEY)
        return abi.unpack_control(raw if raw is not None else bytes(abi.CONTROL_SIZE))

    def change_min_mtu(self, mtu: int) -> None:
        """Write the smallest MTU. Needs a ``write`` before."""
        self.write(replace(self._last(), min_mtu=mtu))

    def set_flags(self, flags: int) -> None:
        """Set ``flags`` (``CONTROL_*``). Needs a ``write`` before."""
        self.write(replace(self._last(), flags=flags))

    def beat(self, now_ns: int, resumed_ns: int) -> None:
        """Write the heartbeat, and when it came back after its newest pause.

        Needs a ``write`` before: nothing in there changes but by us.
        """
        value = self._last()
        if resumed_ns != value.resumed_ns:
            # First: nobody may see a heartbeat that goes on, and not that it had stopped.
            value = replace(value, resumed_ns=resumed_ns)
            self.write(value)
        self.write(replace(value, heartbeat_ns=now_ns))

    def _last(self) -> abi.ControlValue:
        if self._written is None:
            raise RuntimeError("a part of control was to change before Control.write")
        return self._written


class Counters:
    """``counters``: every reason why a packet was not simply forwarded."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def read(self) -> dict[str, int]:
        """All counters by name, summed over the CPUs, by one system call."""
        cpus = possible_cpus()
        raw = b"".join(batch.values for batch in self._map.batches(self._map.info.max_entries))
        values = memoryview(raw).cast("Q").tolist()
        return {name: sum(values[at * cpus : at * cpus + cpus]) for name, at in _COUNTER_PLACES}


class Tokens:
    """``tokens``: budgets; slots are ``abi.TOKENS_*``."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def fill(self, slot: int, credit_ns: int, now_ns: int) -> None:
        """Give every CPU's bucket this credit."""
        self._map.write(_u32(slot), abi.pack_token_bucket(credit_ns, now_ns) * possible_cpus())

    def asked(self, slot: int) -> list[int]:
        """How often each CPU wanted a token, granted or not, since ``fill``."""
        raw = self._map.read(_u32(slot)) or b""
        size = abi.TOKEN_BUCKET_SIZE
        return [abi.unpack_token_bucket(raw[at : at + size])[2] for at in range(0, len(raw), size)]


class EventShares:
    """``event_shares``: what an event costs on each CPU, in parts of ``abi.SHARE_ONE``."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write(self, scales: Sequence[int]) -> None:
        """Set each CPU's. Raises BpfError: E2BIG when there are more than possible CPUs."""
        for cpu, scale in enumerate(scales):
            self._map.write(_u32(cpu), abi.pack_event_share(scale))

    def read(self) -> list[int]:
        """Each possible CPU's; 0: never set, the whole budget is its own."""
        raws = (self._map.read(_u32(cpu)) for cpu in range(self._map.info.max_entries))
        return [abi.unpack_event_share(raw) for raw in raws if raw is not None]


class Pressure:
    """``pressure``: what XDP noticed about the tables. Times are CLOCK_MONOTONIC; 0: never."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def table_full_ns(self, family: int) -> int:
        """When a proven flow last found no room in the family's ``flow_table``."""
        full_ns, _, _, full6_ns = self._read(0)
        return full6_ns if family == 6 else full_ns

    def flood_until_ns(self) -> int:
        """Until when ``flood_flows`` may have an entry that somebody needs."""
        return self._read(0)[1]

    def stateless_until_ns(self, service: int) -> int:
        """Until when segments of a service without a binding are hashed."""
        return self._read(1 + service)[1]

    def why(self, service: int) -> abi.Counter | None:
        """Which budget was spent when that was last extended; None: none ever was."""
        return _budget(self._read(1 + service)[2])

    def batches(self) -> Iterator[list[tuple[int, int, abi.Counter | None]]]:
        """Of each service that anything was noticed about: its id, until when its segments
        without a binding are hashed, and which budget was spent last; some at a time."""
        nothing = abi.pack_pressure(0)
        for batch in self._map.batches(AT_ONCE):
            found = []
            for key, raw in batch:
                slot = int.from_bytes(key, sys.byteorder)
                if slot and raw != nothing:
                    _, until_ns, number, _ = abi.unpack_pressure(raw)
                    found.append((slot - 1, until_ns, _budget(number)))
            yield found

    def reset(self, service: int) -> None:
        """Forget what was noticed about a service; its number is another one's now."""
        self._map.write(_u32(1 + service), abi.pack_pressure(0))

    def _read(self, slot: int) -> tuple[int, int, int, int]:
        raw = self._map.read(_u32(slot))
        return abi.unpack_pressure(raw) if raw is not None else (0, 0, 0, 0)


def _budget(number: int) -> abi.Counter | None:
    return abi.Counter(number) if number and number in _COUNTERS else None


_COUNTERS = frozenset(abi.Counter)


class Maps:
    """All of them, over a data plane's map fds. The fds stay the caller's."""

    def __init__(self, fds: Mapping[str, int]) -> None:
        """Raises KeyError, with the map's name, when one is missing."""
        self.services = Services(fds["services"])
        self.backends = Backends(fds["backends"])
        self.backend_index = BackendIndex(fds["backend_index"])
        self.probe_index = ProbeIndex(fds["backend_index"])
        self.hash_tables = HashTables(fds["hash_tables"])
        self.pending_flows = PendingFlows(fds["pending_flows"])
        self.flow_table = FlowTable(fds["flow_table"], fds.get("flow_table_previous"))
        flood_flows = PendingFlows(fds["flood_flows"])
        self.by_family = {
            4: FlowTables(4, self.pending_flows, self.flow_table, flood_flows),
            6: FlowTables(
                6,
                PendingFlows(fds["pending_flows6"]),
                FlowTable(fds["flow_table6"], fds.get("flow_table_previous6")),
                PendingFlows(fds["flood_flows6"]),
            ),
        }
        """Tables of flows by address family."""
        self.service_ranges = ServiceRanges(fds["service_ranges"])
        self.source_rules = SourceRules(fds["source_rules"])
        self.affinity = Affinity(fds["affinity"])
        self.companions = Affinity(fds["companions"])
        self.connection_ids = ConnectionIds(fds["quic_ids"])
        self.usage = Usage(fds["usage"], fds["usage_aged"])
        self.pick_tables = PickTables(fds["pick_tables"], fds["picks"])
        self.backend_loads = BackendLoads(fds["backend_load"], fds["backend_aged"])
        self.backend_signs = BackendSigns(fds["backend_signs"])
        self.traffic = Traffic(fds["traffic_ended"], fds["traffic_aged"])
        self.interfaces = Interfaces(fds["interfaces"])
        self.control = Control(fds["control"])
        self.counters = Counters(fds["counters"])
        self.tokens = Tokens(fds["tokens"])
        self.pressure = Pressure(fds["pressure"])
        self.event_shares = EventShares(fds["event_shares"])

    def flows_of(self, addr: int) -> FlowTables:
        """The tables of flows of an address's family."""
        return self.by_family[abi.family_of(addr)]


def _items(table: BpfMap) -> Iterator[tuple[bytes, bytes]]:
    for batch in table.batches(_BATCH):
        yield from batch


def _deleted(table: BpfMap, key: bytes) -> None:
    """Delete; that it is not there is what was wanted."""
    code = table.delete(key)
    if code not in (0, errno.ENOENT):
        raise BpfError(code, f"delete from map {table.info.name}")
