# SPDX-License-Identifier: Apache-2.0
"""The data plane's maps: kind, key and value sizes, and how many entries each gets.

This table and ``ebpf/lib/maps.h`` say the same thing; loading compares the two. Names are part
of the interface: pins, ``bpftool`` users and tests rely on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from .bpf_syscall import MapType, possible_cpus
from .names import NAME_BYTES
from .notes import NOTE_BYTES, Note


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the tables are made. A running table cannot grow, so counts get headroom.

    ``max_flows``: established flows (two entries each). ``ring_bytes``: a power of two, at
    least one page.
    """

    max_flows: int = 500_000
    services: int = 1
    backends: int = 1
    interfaces: int = 1
    pending: int = 262_144
    prefixes: int = 16_384
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


@dataclass(frozen=True, slots=True)
class MapSpec:
    """One map. Sizes in bytes; ``value_size`` None: the program alone knows (and uses) it.

    ``private``: holds nothing that outlives the program, so each generation has its own.
    """

    name: str
    type: MapType
    key_size: int
    value_size: int | None
    entries: Callable[[Sizes], int]
    flags: int = 0
    private: bool = False


_U32 = 4

MAP_SPECS: tuple[MapSpec, ...] = (
    MapSpec(
        "services",
        MapType.HASH,
        abi.ENDPOINT_KEY_SIZE,
        abi.SERVICE_SIZE,
        lambda s: _headroom(s.services),
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
        lambda s: _headroom(s.backends),
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
        "stages",
        MapType.PROG_ARRAY,
        _U32,
        _U32,
        lambda s: abi.STAGE_MAX,
        private=True,
    ),
    MapSpec(
        "scratch",
        MapType.PERCPU_ARRAY,
        _U32,
        None,
        lambda s: 1,
        private=True,
    ),
)

ENTRY_PROGRAM = "xdp_router"
STAGE_PROGRAMS: tuple[str, ...] = tuple(f"stage_{stage.name.lower()}" for stage in abi.Stage)
"""Program of each slow path, in the order of ``enum xr_stage``."""


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
