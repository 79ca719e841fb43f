# SPDX-License-Identifier: Apache-2.0
"""The data plane's maps: kind, key and value sizes, and how many entries each gets.

This table and ``ebpf/lib/maps.h`` say the same thing; loading compares the two. Names are part
of the interface: pins, ``bpftool`` users and tests rely on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdp_router.core import abi
from xdp_router.core.config_handler import GATEWAY_SERVICES_MAX
from xdp_router.core.errors import XdpRouterError

from .bpf_syscall import MapType, possible_cpus
from .names import NAME_BYTES
from .notes import NOTE_BYTES, Note


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the tables are made. A running table cannot grow, so counts get headroom.

    ``max_flows``: established flows (two entries each). ``ring_bytes``: a power of two, at
    least one page. ``left_out``: endpoints that services leave to
    others. ``ipv6``: some service is of it; else its tables of flows have no room.
    """

    max_flows: int = 500_000
    services: int = 1
    left_out: int = 0
    backends: int = 1
    interfaces: int = 1
    pending: int = 262_144
    prefixes: int = 16_384
    fragments: int = 8_192
    connection_ids: int = 16_384
    affinities: int = 65_536
    source_rules: int = 65_536
    flood: int = 65_536
    ipv6: bool = False
    ring_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        ring = self.ring_bytes
        if ring < 4096 or ring & (ring - 1):
            raise XdpRouterError(
                f"ring buffer of {ring} bytes: expected a power of two of at least 4096"
            )
        if self.max_flows < 1:
            raise XdpRouterError(f"max_flows {self.max_flows}: expected at least 1")


def _headroom(count: int) -> int:
    """Room for a reload that replaces every one, and for growth; 64 costs next to nothing."""
    return max(64, 2 * count)


def _if_ipv6(sizes: Sizes, entries: int) -> int:
    """A table that nobody uses has one entry: none is not to be had."""
    return entries if sizes.ipv6 else 1


@dataclass(frozen=True, slots=True)
class MapSpec:
    """One map. Sizes in bytes; ``value_size`` None: the program alone knows (and uses) it.

    ``private``: holds nothing that outlives the program, so each generation has its own.
    ``inner``: of a map of maps, the one that they are like.
    """

    name: str
    type: MapType
    key_size: int
    value_size: int | None
    entries: Callable[[Sizes], int]
    flags: int = 0
    private: bool = False
    inner: str = ""


_U32 = 4

NO_PREALLOC = 1
"""``BPF_F_NO_PREALLOC``: tries are never preallocated."""

MAP_SPECS: tuple[MapSpec, ...] = (
    MapSpec(
        "services",
        MapType.HASH,
        abi.ENDPOINT_KEY_SIZE,
        abi.SERVICE_SIZE,
        # each may have ICMP echo answered, too
        lambda s: 2 * _headroom(s.services) + 2 * s.left_out,
    ),
    MapSpec(
        "backends",
        MapType.ARRAY,
        _U32,
        abi.BACKEND_SIZE,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "backend_index",
        MapType.HASH,
        abi.ENDPOINT_KEY_SIZE,
        abi.BACKEND_REF_SIZE,
        lambda s: 2 * _headroom(s.backends),  # each may be probed elsewhere
    ),
    MapSpec(
        "hash_tables",  # two a service: one is read while the other is written
        MapType.ARRAY,
        _U32,
        abi.HASH_TABLE_SIZE,
        lambda s: 2 * _headroom(s.services),
    ),
    MapSpec(
        "pending_flows",
        MapType.LRU_HASH,
        abi.FLOW_KEY_SIZE,
        abi.PENDING_FLOW_SIZE,
        lambda s: s.pending,
    ),
    MapSpec(
        "flow_table",  # preallocated: full is then full, not a kernel out of memory
        MapType.HASH,
        abi.FLOW_KEY_SIZE,
        abi.FLOW_ENTRY_SIZE,
        lambda s: 2 * s.max_flows,
    ),
    MapSpec(
        "flood_flows",
        MapType.LRU_HASH,
        abi.FLOW_KEY_SIZE,
        abi.PENDING_FLOW_SIZE,
        lambda s: s.flood,
    ),
    MapSpec(
        "pending_flows6",
        MapType.LRU_HASH,
        abi.FLOW_KEY6_SIZE,
        abi.PENDING_FLOW6_SIZE,
        lambda s: _if_ipv6(s, s.pending),
    ),
    MapSpec(
        "flow_table6",
        MapType.HASH,
        abi.FLOW_KEY6_SIZE,
        abi.FLOW_ENTRY6_SIZE,
        lambda s: _if_ipv6(s, 2 * s.max_flows),
    ),
    MapSpec(
        "flood_flows6",
        MapType.LRU_HASH,
        abi.FLOW_KEY6_SIZE,
        abi.PENDING_FLOW6_SIZE,
        lambda s: _if_ipv6(s, s.flood),
    ),
    MapSpec(
        "service_ranges",
        MapType.HASH,
        abi.RANGE_KEY_SIZE,
        abi.PORT_RANGES_SIZE,
        lambda s: _headroom(s.services),
    ),
    MapSpec(
        "fragments",
        MapType.LRU_HASH,
        abi.FRAGMENT_KEY_SIZE,
        abi.FRAGMENT_SIZE,
        lambda s: s.fragments,
    ),
    MapSpec(
        "path_mtus",  # of the addresses of ipip backends
        MapType.LRU_HASH,
        abi.PREFIX_KEY_SIZE,
        abi.PATH_MTU_SIZE,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "quic_ids",
        MapType.LRU_HASH,
        abi.QUIC_KEY_SIZE,
        abi.STICKY_SIZE,
        lambda s: s.connection_ids,
    ),
    MapSpec(
        "affinity",
        MapType.LRU_HASH,
        abi.AFFINITY_KEY_SIZE,
        abi.STICKY_SIZE,
        lambda s: s.affinities,
    ),
    MapSpec(
        "companions",
        MapType.LRU_HASH,
        abi.AFFINITY_KEY_SIZE,
        abi.STICKY_SIZE,
        lambda s: s.affinities // 4,
    ),
    MapSpec(
        "source_rules",
        MapType.LPM_TRIE,
        abi.SOURCE_KEY_SIZE,
        _U32,
        lambda s: s.source_rules,
        flags=NO_PREALLOC,
    ),
    MapSpec(
        "usage",
        MapType.ARRAY,
        _U32,
        abi.USAGE_SIZE,
        lambda s: _headroom(s.services),
    ),
    MapSpec(
        "usage_aged",  # the daemon's share of what is in usage
        MapType.ARRAY,
        _U32,
        8,
        lambda s: _headroom(s.services),
    ),
    MapSpec(
        "pick_tables",  # two a service, as hash_tables
        MapType.ARRAY,
        _U32,
        abi.PICK_TABLE_SIZE,
        lambda s: 2 * _headroom(s.services),
    ),
    MapSpec(
        "picks",
        MapType.ARRAY,
        _U32,
        abi.PICKS_SIZE,
        lambda s: _headroom(s.services),
    ),
    MapSpec(
        "backend_load",
        MapType.ARRAY,
        _U32,
        abi.BACKEND_LOAD_SIZE,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "backend_aged",  # the daemon's share of what is in backend_load
        MapType.ARRAY,
        _U32,
        8,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "backend_signs",
        MapType.ARRAY,
        _U32,
        abi.BACKEND_SIGNS_SIZE,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "traffic_ended",
        MapType.ARRAY,
        _U32,
        abi.TRAFFIC_SIZE,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "traffic_aged",  # the daemon's share; no program reads it
        MapType.ARRAY,
        _U32,
        abi.TRAFFIC_SIZE,
        lambda s: _headroom(s.backends),
    ),
    MapSpec(
        "first_packet_events",
        MapType.RINGBUF,
        0,
        0,
        lambda s: s.ring_bytes,
    ),
    MapSpec(
        "tokens",  # abi.TOKENS_*
        MapType.PERCPU_ARRAY,
        _U32,
        abi.TOKEN_BUCKET_SIZE,
        lambda s: abi.TOKENS_SERVICE + _headroom(s.services),
    ),
    MapSpec(
        "prefix_tokens",
        MapType.LRU_HASH,
        abi.PREFIX_KEY_SIZE,
        abi.TOKEN_BUCKET_SIZE,
        lambda s: s.prefixes,
    ),
    MapSpec(
        "event_shares",
        MapType.ARRAY,
        _U32,
        abi.EVENT_SHARE_SIZE,
        lambda s: possible_cpus(),
    ),
    MapSpec(
        "pressure",
        MapType.ARRAY,
        _U32,
        abi.PRESSURE_SIZE,
        lambda s: 1 + _headroom(s.services),
    ),
    MapSpec(
        "counters",
        MapType.PERCPU_ARRAY,
        _U32,
        8,
        lambda s: abi.COUNTER_MAX,
    ),
    MapSpec(
        "control",
        MapType.ARRAY,
        _U32,
        abi.CONTROL_SIZE,
        lambda s: 1,
    ),
    MapSpec(
        "interfaces",
        MapType.HASH,
        _U32,
        abi.INTERFACE_SIZE,
        lambda s: _headroom(s.interfaces),
    ),
    MapSpec(
        "names",  # for people; no program reads it
        MapType.HASH,
        _U32,
        NAME_BYTES,
        lambda s: _headroom(s.services) + _headroom(s.backends),
    ),
    MapSpec(
        "notes",  # for detach; no program reads it
        MapType.ARRAY,
        _U32,
        NOTE_BYTES,
        lambda s: len(Note),
    ),
    MapSpec(
        # By service: a listening socket. The kernel takes out what is closed. It has no place for
        # what is not there, so it need not be of another size for more services.
        "gateway_sockets",
        MapType.SOCKHASH,
        _U32,
        8,
        lambda s: GATEWAY_SERVICES_MAX,
    ),
    MapSpec(
        "stages",
        MapType.PROG_ARRAY,
        _U32,
        _U32,
        lambda s: abi.STAGES_ALL,
        private=True,
    ),
    MapSpec(
        "previous",  # the former's flow_table, if it is of another size and not empty yet
        MapType.ARRAY_OF_MAPS,
        _U32,
        _U32,
        lambda s: 1,
        private=True,
        inner="flow_table",
    ),
    MapSpec(
        "previous6",
        MapType.ARRAY_OF_MAPS,
        _U32,
        _U32,
        lambda s: 1,
        private=True,
        inner="flow_table6",
    ),
    MapSpec(
        "leaving",  # since when the daemon is about to send a datagram; 0: it is not
        MapType.ARRAY,
        _U32,
        8,
        lambda s: 1,
        private=True,
    ),
    MapSpec(
        "scratch",  # of packets, and of those that are run again
        MapType.PERCPU_ARRAY,
        _U32,
        None,
        lambda s: 2,
        private=True,
    ),
)


PREVIOUS = {
    "flow_table": ("previous", "flow_table_previous"),
    "flow_table6": ("previous6", "flow_table_previous6"),
}
"""By table of flows: the map that holds the one of before, and the name that this one has itself
and is pinned by as long as there is one."""


def by_count(spec: MapSpec) -> bool:
    """Whether a map's size goes by how many services, backends or interfaces there are."""
    many = Sizes(services=1_000, left_out=1_000, backends=1_000, interfaces=1_000)
    return spec.entries(many) != spec.entries(Sizes())


ENTRY_PROGRAM = "xdp_router"
STAGE_PROGRAMS: tuple[str, ...] = tuple(f"stage_{stage.name.lower()}" for stage in abi.Stage)
"""Program of each slow path, in the order of ``enum xr_stage``."""


def program_name(name: str, family: int) -> str:
    """What the program ``name`` of an address family is called beside that of the other."""
    return name if family == 4 else f"{name}6"


def stage_slots(family: int) -> dict[int, str]:
    """Slot in ``stages`` of each program that a family puts there, by its name beside others."""
    first = 0 if family == 4 else abi.STAGES_IPV6
    slots = {first + index: program_name(name, family) for index, name in enumerate(STAGE_PROGRAMS)}
    if family == 6:
        slots[abi.STAGE_IPV6] = program_name(ENTRY_PROGRAM, family)
    return slots


@dataclass(frozen=True, slots=True)
class DeclaredMap:
    """A map as a compiled program declares it. Sizes in bytes.

    ``max_entries`` None: not told. In ``control`` it is the ABI version.
    """

    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int | None = None


class ProgramMismatch(XdpRouterError):
    """The compiled program and this version's Python disagree about maps or programs."""


def check_declared(declared: dict[str, DeclaredMap]) -> None:
    """Raise ProgramMismatch unless a program is of our ABI and declares maps of our layout.

    A program need not declare all of them.
    """
    control = declared.get("control")
    if control is not None and control.max_entries not in (None, abi.ABI_VERSION):
        raise ProgramMismatch(
            f"the compiled program is of ABI {control.max_entries}, this version wants "
            f"{abi.ABI_VERSION}: build it again (make build)"
        )
    specs = {spec.name: spec for spec in MAP_SPECS}
    for name, found in declared.items():
        spec = specs.get(name)
        if spec is None:
            raise ProgramMismatch(f"the program has a map {name!r} that this version does not know")
        value_size = found.value_size if spec.value_size is None else spec.value_size
        wanted = (int(spec.type), spec.key_size, value_size)
        if (found.type, found.key_size, found.value_size) != wanted and spec.key_size:
            raise ProgramMismatch(
                f"map {name}: the program has type {found.type}, key {found.key_size} and value "
                f"{found.value_size} bytes, expected {wanted[0]}, {wanted[1]}, {wanted[2]}: "
                "build the program again (make build)"
            )
