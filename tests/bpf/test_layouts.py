# SPDX-License-Identifier: Apache-2.0
"""``core/abi.py`` against ``ebpf/abi.h`` and the built object, by their type information.

A field is found by what it does: a value whose fields are all zero but one is packed, and the
bytes that are not zero must be that member's.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bpf_programs import compile_object
from tests.support.btf import Btf, Member, parse_btf
from xdp_router import ebpf
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.core import abi, model
from xdp_router.core.model import Endpoint, FlowKey, Signs

HEADER = "".join(path.read_text() for path in sorted(ebpf.FOLDER.glob("abi*.h")))
STRUCTS = re.findall(r"^struct (\w+) \{", HEADER, re.MULTILINE)
ENUMS = re.findall(r"^enum (\w+) \{", HEADER, re.MULTILINE)
CONSTANTS = re.findall(r"^#define (XR_\w+)[ \t]+(?:0x)?[0-9]", HEADER, re.MULTILINE)

SIZES = {
    "ip_addr": abi.IP_ADDR_SIZE,
    "flow_key": abi.FLOW_KEY_SIZE,
    "flow_key6": abi.FLOW_KEY6_SIZE,
    "range_key": abi.RANGE_KEY_SIZE,
    "port_ranges": abi.PORT_RANGES_SIZE,
    "usage": abi.USAGE_SIZE,
    "pick_table": abi.PICK_TABLE_SIZE,
    "picks": abi.PICKS_SIZE,
    "backend_load": abi.BACKEND_LOAD_SIZE,
    "backend_signs": abi.BACKEND_SIGNS_SIZE,
    "traffic": abi.TRAFFIC_SIZE,
    "fragment_key": abi.FRAGMENT_KEY_SIZE,
    "fragment": abi.FRAGMENT_SIZE,
    "quic_key": abi.QUIC_KEY_SIZE,
    "affinity_key": abi.AFFINITY_KEY_SIZE,
    "path_mtu": abi.PATH_MTU_SIZE,
    "sticky": abi.STICKY_SIZE,
    "source_key": abi.SOURCE_KEY_SIZE,
    "endpoint_key": abi.ENDPOINT_KEY_SIZE,
    "service": abi.SERVICE_SIZE,
    "backend": abi.BACKEND_SIZE,
    "backend_ref": abi.BACKEND_REF_SIZE,
    "hash_table": abi.HASH_TABLE_SIZE,
    "pending_flow": abi.PENDING_FLOW_SIZE,
    "pending_flow6": abi.PENDING_FLOW6_SIZE,
    "flow_entry": abi.FLOW_ENTRY_SIZE,
    "flow_entry6": abi.FLOW_ENTRY6_SIZE,
    "event": abi.EVENT_SIZE,
    "event_small": abi.RECORD_SMALL,
    "compared": abi.COMPARED_SIZE,
    "event_compared": abi.EVENT_SIZE + abi.COMPARED_SIZE,
    "event_large": abi.RECORD_LARGE,
    "token_bucket": abi.TOKEN_BUCKET_SIZE,
    "prefix_key": abi.PREFIX_KEY_SIZE,
    "event_share": abi.EVENT_SHARE_SIZE,
    "pressure": abi.PRESSURE_SIZE,
    "interface": abi.INTERFACE_SIZE,
    "control": abi.CONTROL_SIZE,
    "reinject_meta": abi.REINJECT_META_SIZE,
}

# Python's enum, and what its members' names have in front of them in C.
ENUM_MIRRORS: dict[str, tuple[type[enum.IntEnum], str]] = {
    "xr_kind": (abi.Kind, "XR_KIND_"),
    "xr_endpoint": (abi.EndpointKind, "XR_ENDPOINT_"),
    "xr_source": (abi.SourceRule, "XR_SOURCE_"),
    "xr_mode": (model.Mode, "XR_MODE_"),
    "xr_forwarding": (model.Forwarding, "XR_FORWARD_"),
    "xr_reason": (model.Reason, "XR_REASON_"),
    "xr_orphans": (model.Orphans, "XR_ORPHANS_"),
    "xr_tcp_state": (abi.TcpState, "XR_TCP_"),
    "xr_direction": (abi.Direction, "XR_DIR_"),
    "xr_event_type": (abi.EventType, "XR_EVENT_"),
    "xr_probe_answer": (model.ProbeAnswer, "XR_PROBE_"),
    "xr_counter": (abi.Counter, "XR_COUNT_"),
    "xr_stage": (abi.Stage, "XR_STAGE_"),
}

# What only one side has: the enums' ends, and "no answer", which no packet tells.
ONLY_C = {"XR_COUNTER_MAX", "XR_STAGE_MAX"}
ONLY_PYTHON = {
    f"ProbeAnswer.{name}" for name in ("LOST", "STUN", "UNEXPECTED", "CONNECTED", "HTTP")
}


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Btf:
    """Everything in ``abi.h``: the built object has only what the program uses."""
    lines = ["#include <stdbool.h>", "#include <linux/types.h>", '#include "abi.h"']
    lines += [f"struct {name} s_{name};" for name in STRUCTS]
    lines += [f"enum {name} e_{name};" for name in ENUMS]
    lines += ["enum constants {", *(f"C_{name} = (int){name}," for name in CONSTANTS), "} c;"]
    return parse_btf(compile_object("\n".join(lines), tmp_path_factory.mktemp("btf")))


@pytest.fixture(scope="module")
def built() -> Btf:
    """The object that this tree was built to."""
    return parse_btf(ebpf.object_bytes())


def _zero(kind: Any, size: int) -> Any:
    if kind is bytes or kind == "bytes":
        return bytes(size)
    return (0, 0) if "tuple" in str(kind) else 0


def _value_packer(value_type: Any, pack: Callable[[Any], bytes]) -> Callable[..., bytes]:
    """``pack`` of a value with the given fields, all others zero."""
    zeros = {f.name: _zero(f.type, 6) for f in dataclasses.fields(value_type)}
    return lambda **fields: pack(value_type(**{**zeros, **fields}))


def _pack_key(**fields: int) -> bytes:
    names = {
        "saddr": "client_addr",
        "sport": "client_port",
        "daddr": "service_addr",
        "dport": "service_port",
        "proto": "proto",
    }
    kind = fields.pop("kind", 0)
    zeros = dict.fromkeys(names.values(), 0)
    return abi.pack_flow_key(FlowKey(**zeros | {names[n]: v for n, v in fields.items()}), kind)


def _pack_key6(**fields: int) -> bytes:
    names = {"saddr": "client_addr", "sport": "client_port", "daddr": "service_addr",
             "dport": "service_port", "proto": "proto"}  # fmt: skip
    kind = fields.pop("kind", 0)
    zeros = dict.fromkeys(names.values(), 0)
    return abi.pack_shared_key(FlowKey(**zeros | {names[n]: v for n, v in fields.items()}), kind)


def _pack_endpoint(**fields: int) -> bytes:
    kind = fields.pop("kind", 0)
    at = {"addr": 0, "port": 0, "proto": 0} | fields
    return abi.pack_endpoint_key(Endpoint(at["addr"], at["port"], at["proto"]), kind)


def _traffic(**fields: int) -> bytes:
    named = {name.replace("octets", "bytes"): name for name in abi.TrafficValue.__slots__}
    zeros = dict.fromkeys(named.values(), 0)
    return abi.pack_traffic(
        abi.TrafficValue(**zeros | {named.get(each, each): fields[each] for each in fields})
    )


PACKERS: dict[str, Callable[..., bytes]] = {
    "flow_key": _pack_key,
    "flow_key6": _pack_key6,
    "usage": lambda opened=0, closed=0: abi.pack_usage(opened, closed),
    "traffic": _traffic,
    "path_mtu": lambda seen_ns=0, mtu=0: abi.pack_path_mtu(seen_ns, mtu),
    "sticky": lambda seen_ns=0, backend=0: abi.pack_sticky(seen_ns, backend),
    "range_key": lambda addr=0, proto=0: abi.pack_range_key(addr, proto),
    "picks": lambda made_ns=0, active=0: abi.pack_picks(made_ns, active),
    "backend_signs": lambda **fields: abi.pack_backend_signs(Signs(**fields)),
    "backend_load": lambda **fields: abi.pack_backend_load(abi.LoadValue(**fields)),
    "affinity_key": lambda addr=0, service=0: abi.pack_affinity_key(addr, service),
    "fragment_key": lambda saddr=0, daddr=0, id=0, proto=0: abi.pack_fragment_key(
        saddr, daddr, id, proto
    ),
    "fragment": lambda seen_ns=0, sport=0, dport=0, proto=0, new_id=0: abi.pack_fragment(
        seen_ns, sport, dport, proto, new_id
    ),
    "endpoint_key": _pack_endpoint,
    "service": _value_packer(abi.ServiceValue, abi.pack_service),
    "backend": _value_packer(abi.BackendValue, abi.pack_backend),
    "backend_ref": lambda backend=0, service=0: abi.pack_backend_ref(backend, service),
    "pending_flow": _value_packer(abi.PendingValue, abi.pack_pending),
    "pending_flow6": _value_packer(abi.PendingValue, lambda value: abi.pack_pending(value, 6)),
    "flow_entry": _value_packer(abi.FlowEntryValue, abi.pack_flow_entry),
    "flow_entry6": _value_packer(abi.FlowEntryValue, lambda value: abi.pack_flow_entry(value, 6)),
    "token_bucket": lambda credit_ns=0, last_ns=0, asked=0: abi.pack_token_bucket(
        credit_ns, last_ns, asked
    ),
    "prefix_key": lambda addr=0: abi.pack_prefix_key(addr),
    "event_share": lambda scale=0: abi.pack_event_share(scale),
    "pressure": lambda table_full_ns=0, **others: abi.pack_pressure(table_full_ns, **others),
    "interface": _value_packer(abi.InterfaceValue, abi.pack_interface),
    "control": _value_packer(abi.ControlValue, abi.pack_control),
    "reinject_meta": lambda mark=0, egress_ifindex=0: abi.pack_reinject_meta(mark, egress_ifindex),
}
C_NAMES = {"octets": "bytes"}


def _expected(size: int, member: Member, content: bytes) -> bytes:
    assert len(content) == member.size
    return bytes(member.offset) + content + bytes(size - member.offset - member.size)


def test_this_file_knows_every_struct_and_enum(header: Btf) -> None:
    """A struct or an enum that is new in the header needs its mirror, and a line here."""
    assert set(STRUCTS) == set(SIZES)
    assert set(ENUMS) == set(ENUM_MIRRORS)
    assert set(STRUCTS) <= set(header.sizes)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str, header: Btf) -> None:
    """Python's size of a struct is the header's."""
    assert SIZES[name] == header.sizes[name]


@pytest.mark.parametrize("name", PACKERS)
def test_fields(name: str, header: Btf) -> None:
    """Each member is written to its place, at its width, in its byte order; padding is zero."""
    pack, size = PACKERS[name], header.sizes[name]
    assert pack() == bytes(size)
    for field, member in header.members[name].items():
        if re.fullmatch(r"pad\d*", field):
            continue
        python = next((p for p, c in C_NAMES.items() if c == field), field)
        if member.type == "" and member.size == 6:  # a MAC address
            assert pack(**{python: b"\1\2\3\4\5\6"}) == _expected(size, member, b"\1\2\3\4\5\6")
        elif member.type == "ip_addr":
            one = bytes(range(1, 17))
            wanted = _expected(size, member, one)
            assert pack(**{python: int.from_bytes(one, "big")}) == wanted
        elif member.type == "":  # control.probe_key
            both = b"".join(n.to_bytes(4, "little") for n in (1, 2))
            assert pack(**{python: (1, 2)}) == _expected(size, member, both)
        else:
            wire = member.type.startswith("__be")
            number = int.from_bytes(bytes(range(1, member.size + 1)), "big")
            content = number.to_bytes(member.size, "big" if wire else "little")
            assert pack(**{python: number}) == _expected(size, member, content), field


@pytest.mark.parametrize(
    ("name", "value_type", "unpack"),
    [
        ("service", abi.ServiceValue, abi.unpack_service),
        ("backend", abi.BackendValue, abi.unpack_backend),
        ("pending_flow", abi.PendingValue, abi.unpack_pending),
        ("flow_entry", abi.FlowEntryValue, abi.unpack_flow_entry),
        ("backend_load", abi.LoadValue, abi.unpack_backend_load),
        ("backend_signs", Signs, abi.unpack_backend_signs),
        ("interface", abi.InterfaceValue, abi.unpack_interface),
        ("control", abi.ControlValue, abi.unpack_control),
    ],
)
def test_values_come_back(
    name: str, value_type: Any, unpack: Callable[[bytes], Any], header: Btf
) -> None:
    """Reading what was written gives the same value, so the reading side fits, too."""
    for field in dataclasses.fields(value_type):
        member = header.members[name][C_NAMES.get(field.name, field.name)]
        zero = _zero(field.type, 6)
        one = b"\1\2\3\4\5\6" if isinstance(zero, bytes) else (1, 2) if zero else 1
        read = unpack(PACKERS[name](**{field.name: one}))
        assert getattr(read, field.name) == one, (field.name, member)


def test_event_header_fields(header: Btf) -> None:
    """Each member of a record's head is read from its place."""
    for field, member in header.members["event"].items():
        content, one = (1).to_bytes(member.size, "little"), FlowKey(0, 0, 1, 0, 0)
        if field == "key":
            content = _pack_key6(daddr=1)
        record = _expected(abi.EVENT_SIZE, member, content)
        read = getattr(abi.unpack_event_header(record), field)
        assert read == (one if field == "key" else 1)


@pytest.mark.parametrize("name", ENUM_MIRRORS)
def test_enums(name: str, header: Btf) -> None:
    """Names and numbers are the same on both sides."""
    python, prefix = ENUM_MIRRORS[name]
    in_c = {n.removeprefix(prefix): v for n, v in header.enums[name].items() if n not in ONLY_C}
    assert in_c == {
        m.name: m.value for m in python if f"{python.__name__}.{m.name}" not in ONLY_PYTHON
    }
    for end in ONLY_C & set(header.enums[name]):
        assert header.enums[name][end] == len(python)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str, header: Btf) -> None:
    """Each number that the header defines has its mirror, without the XR_."""
    plain = name.removeprefix("XR_")
    mirror = getattr(abi, plain, getattr(model, plain, None))
    assert mirror is not None, f"{plain} is missing in core/abi.py"
    assert header.enums["constants"][f"C_{name}"] & 0xFFFFFFFF == mirror


def test_built_object_is_of_this_header(header: Btf, built: Btf) -> None:
    """What the object was built from has the header's layouts, not those of an older one."""
    shared = set(STRUCTS) & set(built.sizes)
    assert {"flow_key", "pending_flow", "flow_entry", "service", "control"} <= shared
    for name in shared:
        assert built.sizes[name] == header.sizes[name], name
        assert built.members[name] == header.members[name], name


def test_map_table_has_the_headers_sizes(header: Btf) -> None:
    """Key and value sizes in map_specs are those of the structs that maps.h names."""
    source = "".join(
        (Path(ebpf.FOLDER) / "lib" / name).read_text()
        for name in ("maps_libbpf.h", "flow_maps_libbpf.h")
    )
    pairs = re.findall(r"^XR_MAP\((\w+), \w+, (?:struct )?(\w+), (?:struct )?(\w+)\)", source, re.M)
    assert len(pairs) > 8
    sizes = header.sizes | {"__u32": 4, "__u64": 8}
    specs = {spec.name: spec for spec in MAP_SPECS}
    for name, key, value in pairs:
        assert specs[name].key_size == sizes[key]
        assert specs[name].value_size in (None, sizes.get(value))
