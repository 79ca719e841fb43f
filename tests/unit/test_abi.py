# SPDX-License-Identifier: Apache-2.0
"""xdp_router.core.abi against ebpf/abi.h, as the C compiler lays it out."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xdp_router.core import abi, model
from xdp_router.core.errors import AbiError
from xdp_router.core.events import FirstPacket

EBPF = Path(__file__).parents[2] / "ebpf"
ABI_H = EBPF / "abi.h"
HEADER = "".join(path.read_text() for path in sorted(EBPF.glob("abi*.h")))

# Python name -> name in abi.h, where they differ.
RENAMED = {
    "octets": "bytes",
    "ranged": "kind",
    "client_addr": "saddr",
    "client_port": "sport",
    "service_addr": "daddr",
    "service_port": "dport",
}

MAC = b"\x02\x11\x22\x33\x44\x55"


@dataclasses.dataclass(frozen=True, slots=True)
class CField:
    name: str
    offset: int
    size: int
    big_endian: bool


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[CField]]]:
    """Size and fields of each struct of abi.h, told by the compiler."""
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        reason = "no C compiler (cc or clang): layouts cannot be compared"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
    lines, fields = [], []
    for struct, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
        lines.append(f'printf("{struct} - 0 %zu\\n", sizeof(struct {struct}));')
        for kind, name in re.findall(r"(\w+) (\w+)(?:\[\w+\])?;", body):
            fields.append((struct, name, kind.startswith(("__be", "ip_addr"))))
            lines.append(
                f'printf("{struct} {name} %zu %zu\\n", offsetof(struct {struct}, {name}), '
                f"sizeof(((struct {struct} *)0)->{name}));"
            )
    folder = tmp_path_factory.mktemp("abi")
    (folder / "layout.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <linux/types.h>\n"
        f'#include "{ABI_H}"\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
    )
    subprocess.run([compiler, "-o", folder / "layout", folder / "layout.c"], check=True)
    printed = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True)
    endian = {(struct, name): big for struct, name, big in fields}
    found: dict[str, tuple[int, list[CField]]] = {}
    for line in printed.stdout.splitlines():
        struct, name, offset, size = line.split()
        if name == "-":
            found[struct] = (int(size), [])
        else:
            field = CField(name, int(offset), int(size), endian[struct, name])
            found[struct][1].append(field)
    return found


SERVICE = abi.ServiceValue(
    1 << 60, 3, 4, 5, 6, 7, 8, model.Mode.HASH, model.Forwarding.NAT, model.Orphans.HASH, 1,
    affinity_ns=9, flags=10, flow_limit=11, tunnel_bits=12, tunnel_source=0xC6130000,
    control_arm=13, control_arm_by=model.Mode.HASH,
)  # fmt: skip
BACKEND = abi.BackendValue(0xC6120102, 0xC6120101, 8080, 6, 3, 9, 4, MAC, MAC[::-1], 500, 7, 5, 90)
EMPTY_PENDING = abi.unpack_pending(bytes(abi.PENDING_FLOW_SIZE))
PENDING = abi.PendingValue(
    seen_ns=1 << 50,
    last_seen_ns=1 << 51,
    packets=3,
    octets=4,
    isn=0xDEADBEEF,
    backend=6,
    service=7,
    ifindex=8,
    new_saddr=0xC6120001,
    new_daddr=0xC6120002,
    new_sport=40000,
    new_dport=8080,
    dmac=MAC,
    smac=MAC[::-1],
    latency_ns=9,
    fppl_ns=10,
    synack_us=11,
    syn_data=12,
    wscale=13,
    flags=14,
    mode=model.Mode.RACE,
    reason=model.Reason.RACE_JOINED,
    vlan=24,
    window=15,
    seq=0xDEADBEEF,
    ack=16,
)
FLOW = abi.FlowEntryValue(
    *(1 << 50, 2, 3, 0xDEADBEEF, 5, 6, abi.TcpState.CLOSING, 8, 9, abi.Direction.REPLY),
    *(0xC6120001, 0xC6120002, 40000, 8080, 0x1234, 0x5678, 12, 13),
    *(MAC, MAC[::-1], b"abcdef", model.Mode.FALLBACK, model.Reason.DEADLINE),
    *(14, 1 << 52, 1 << 31, 17, 18, 19, 20, 21, 22),
    vlan=23,
)
NET6 = 0x2001_0DB8 << 96
SIX: dict[str, Any] = {"new_saddr": NET6 | 1, "new_daddr": NET6 | 2}
KEY = model.FlowKey(0xC6120A01, 40001, 0xC6126401, 80)
EVENT = abi.EventHeader(1 << 50, KEY, 2, 3, 4, 0xDEADBEEF, 0, 7, 8, 9, 10, 11, 12, 13, 1 << 51)
INTERFACE = abi.InterfaceValue(MAC, MAC[::-1], 3, 0xC6120101, 1500, NET6 | 3)
CONTROL = abi.ControlValue(
    *(1, 2, 1 << 63, 4, 5, 6, 7, 8, (0x11223344, 0x55667788), 9, 10, 61000, 61999),
    resumed_ns=1 << 54,
    prefix_interval_ns=11,
    prefix_burst_ns=12,
    icmp_interval_ns=13,
    icmp_burst_ns=14,
    min_mtu=1500,
    ring_deep=1 << 20,
    udp_idle_ns=1 << 40,
    nat_port_min=10_000,
    nat_port_max=29_999,
)

Case = tuple[str, Any, Callable[[Any], bytes], Callable[[bytes], Any]]
CASES: list[Case] = [
    ("flow_key", KEY, abi.pack_flow_key, abi.flow_key_from_bytes),
    (
        "endpoint_key",
        model.Endpoint(0xC6126401, 443, ranged=True),
        abi.pack_endpoint_key,
        lambda data: abi.unpack_endpoint_key(data)[0],
    ),
    ("service", SERVICE, abi.pack_service, abi.unpack_service),
    ("backend", BACKEND, abi.pack_backend, abi.unpack_backend),
    ("pending_flow", PENDING, abi.pack_pending, abi.unpack_pending),
    ("flow_entry", FLOW, abi.pack_flow_entry, abi.unpack_flow_entry),
    (
        "pending_flow6",
        dataclasses.replace(PENDING, **SIX),
        lambda value: abi.pack_pending(value, 6),
        abi.unpack_pending,
    ),
    (
        "flow_entry6",
        dataclasses.replace(FLOW, **SIX),
        lambda value: abi.pack_flow_entry(value, 6),
        abi.unpack_flow_entry,
    ),
    ("event", EVENT, abi.pack_event, abi.unpack_event_header),
    ("interface", INTERFACE, abi.pack_interface, abi.unpack_interface),
    ("control", CONTROL, abi.pack_control, abi.unpack_control),
]


@pytest.mark.parametrize(("struct", "value", "pack", "unpack"), CASES, ids=[c[0] for c in CASES])
def test_each_field_is_where_the_compiler_puts_it(
    struct: str,
    value: Any,
    pack: Callable[[Any], bytes],
    unpack: Callable[[bytes], Any],
    layouts: dict[str, tuple[int, list[CField]]],
) -> None:
    """Every field is found at its C offset, in its byte order; padding is zero; nothing is lost."""
    size, fields = layouts[struct]
    packed = pack(value)
    assert len(packed) == size
    known = {RENAMED.get(f.name, f.name): getattr(value, f.name) for f in dataclasses.fields(value)}
    known.pop("last", None)  # of an endpoint: service_ranges has it
    for field in fields:
        data = packed[field.offset : field.offset + field.size]
        wanted = known.pop(field.name, 0)
        if isinstance(wanted, bytes):
            assert data == wanted, field
        elif isinstance(wanted, tuple):
            assert data == b"".join(word.to_bytes(4, sys.byteorder) for word in wanted), field
        elif isinstance(wanted, model.FlowKey):
            assert data == abi.pack_shared_key(wanted), field
        elif field.size == abi.IP_ADDR_SIZE:
            assert data == abi.pack_addr(wanted), field
        else:
            order: Any = "big" if field.big_endian else sys.byteorder
            assert int.from_bytes(data, order) == wanted, field
    assert not known, "fields that abi.h does not have"
    assert unpack(packed) == value


@pytest.mark.parametrize(("struct", "value", "pack", "unpack"), CASES, ids=[c[0] for c in CASES])
def test_short_bytes_are_refused(
    struct: str, value: Any, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]
) -> None:
    """Bytes of another length than the struct's raise AbiError, naming the struct."""
    with pytest.raises(AbiError, match=struct.rstrip("6")):
        unpack(pack(value)[:-1])


def test_small_structs_match_the_compiler(layouts: dict[str, tuple[int, list[CField]]]) -> None:
    """Structs that become tuples have the compiler's size and survive both ways."""
    slots = tuple(range(abi.HASH_SLOTS))
    for struct, packed, back, value in (
        ("backend_ref", abi.pack_backend_ref(1, 2), abi.unpack_backend_ref, (1, 2)),
        ("token_bucket", abi.pack_token_bucket(1, 2, 3), abi.unpack_token_bucket, (1, 2, 3)),
        ("event_share", abi.pack_event_share(7), abi.unpack_event_share, 7),
        ("usage", abi.pack_usage(1 << 40, 7), abi.unpack_usage, (1 << 40, 7)),
        ("path_mtu", abi.pack_path_mtu(1 << 40, 7), abi.unpack_path_mtu, (1 << 40, 7)),
        ("sticky", abi.pack_sticky(1 << 40, 7), abi.unpack_sticky, (1 << 40, 7)),
        ("pressure", abi.pack_pressure(1 << 40, 7, 3), abi.unpack_pressure, (1 << 40, 7, 3, 0)),
        ("reinject_meta", abi.pack_reinject_meta(9, 2), abi.unpack_reinject_meta, (9, 2)),
        ("hash_table", abi.pack_hash_table(slots), abi.unpack_hash_table, slots),
    ):
        assert len(packed) == layouts[struct][0]
        unpack: Callable[[bytes], object] = back
        assert unpack(packed) == value
    with pytest.raises(ValueError, match="1021"):
        abi.pack_hash_table(slots[1:])


def test_constants_mirror_the_header() -> None:
    """Every plain #define XR_NAME of the header has its number in Python."""
    defines = re.findall(r"^#define XR_(\w+) (\d\w*)", HEADER, re.MULTILINE)
    assert len(defines) > 15
    for name, number in defines:
        ours = model.NO_BACKEND if name == "NO_BACKEND" else getattr(abi, name)
        assert ours == int(number.rstrip("U"), 0), name


FRAME = b"\x02\0\0\0\0\x01" + b"\x02\0\0\0\0\x02" + b"\x08\x00" + bytes(range(60))
BOUND_TO = model.Backend(7, "b7", model.Endpoint(0xC6120102, 8080), 2)


def held() -> FirstPacket:
    head = dataclasses.replace(EVENT, type=abi.EventType.FIRST_PACKET, frame_len=len(FRAME))
    event = abi.decode_event(abi.pack_event(head, FRAME, abi.RECORD_SMALL))
    assert isinstance(event, FirstPacket)
    return event


def test_forward_entry_of_a_decision() -> None:
    """FORWARD is keyed client to service, rewrites to the backend and keeps the SYN's facts.

    It was last heard of when it was decided.
    """
    key, value = abi.pack_forward_pending(
        held(), BOUND_TO, model.Mode.RACE, model.Reason.RACE_WON, 1 << 40
    )
    assert (abi.flow_key_from_bytes(key), abi.key_kind(key)) == (KEY, abi.Kind.FORWARD)
    assert abi.unpack_pending(value) == dataclasses.replace(
        EMPTY_PENDING,
        seen_ns=1 << 51,
        last_seen_ns=(1 << 51) + (1 << 40),
        isn=0xDEADBEEF,
        backend=7,
        service=2,
        new_saddr=KEY.client_addr,
        new_daddr=0xC6120102,
        new_sport=KEY.client_port,
        new_dport=8080,
        latency_ns=0xFFFFFFFF,
        syn_data=11,
        wscale=10,
        reason=model.Reason.RACE_WON,
    )


def test_reply_entry_of_a_decision() -> None:
    """REPLY is keyed backend to client and leads back the way that the first packet came."""
    key, value = abi.pack_reply_pending(held(), BOUND_TO, model.Mode.RACE, model.Reason.RACE_WON)
    assert key == abi.pack_flow_key(
        model.FlowKey(0xC6120102, 8080, KEY.client_addr, KEY.client_port), abi.Kind.REPLY
    )
    assert abi.unpack_pending(value) == dataclasses.replace(
        EMPTY_PENDING,
        seen_ns=1 << 51,
        last_seen_ns=1 << 51,
        backend=7,
        service=2,
        ifindex=4,
        new_saddr=KEY.service_addr,
        new_daddr=KEY.client_addr,
        new_sport=KEY.service_port,
        new_dport=KEY.client_port,
        dmac=FRAME[6:12],
        smac=FRAME[0:6],
        wscale=abi.NO_WSCALE,
        reason=model.Reason.RACE_WON,
    )


def test_refused_flow_has_a_flagged_forward_entry() -> None:
    """A refusal is a FORWARD entry without a backend, flagged REFUSED."""
    _, value = abi.pack_forward_pending(
        held(), None, model.Mode.REFUSED, model.Reason.NO_CANDIDATE, -5
    )
    pending = abi.unpack_pending(value)
    assert (pending.backend, pending.flags) == (model.NO_BACKEND, abi.PENDING_REFUSED)
    assert (pending.latency_ns, pending.new_daddr) == (0, 0)


def test_unknown_mode_in_an_entry_is_refused() -> None:
    """An entry with a number that this version does not know raises AbiError."""
    data = bytearray(abi.pack_flow_entry(FLOW))
    data[82] = 200
    with pytest.raises(AbiError, match="Mode has no value 200"):
        abi.unpack_flow_entry(data)


def test_peer_key_leads_from_either_direction_to_the_other() -> None:
    """An entry's rewritten tuple, turned round, is the key of the flow's other entry."""
    forward = abi.pack_flow_key(KEY)
    reply = abi.pack_reply_key(BOUND_TO.endpoint, KEY)
    to_backend = dataclasses.replace(
        FLOW,
        new_saddr=KEY.client_addr,
        new_daddr=BOUND_TO.endpoint.addr,
        new_sport=KEY.client_port,
        new_dport=BOUND_TO.endpoint.port,
    )
    to_client = dataclasses.replace(
        FLOW,
        new_saddr=KEY.service_addr,
        new_daddr=KEY.client_addr,
        new_sport=KEY.service_port,
        new_dport=KEY.client_port,
    )
    assert abi.peer_key(forward, abi.pack_flow_entry(to_backend)) == reply
    assert abi.peer_key(reply, memoryview(abi.pack_flow_entry(to_client))) == forward


def test_aging_view_reads_many_entries() -> None:
    """The aging view agrees with the full value for each entry of a batch."""
    other = dataclasses.replace(FLOW, last_seen_ns=5, state=abi.TcpState.CLOSING, flags=1)
    batch = abi.pack_flow_entry(FLOW) + abi.pack_flow_entry(other)
    assert list(abi.iter_flow_aging(batch)) == [
        (flow.last_seen_ns, flow.state, flow.flags, flow.direction) for flow in (FLOW, other)
    ]


@pytest.mark.parametrize("method", [model.Forwarding.DSR, model.Forwarding.IPIP])
def test_entries_of_a_flow_that_is_not_rewritten(method: model.Forwarding) -> None:
    """FORWARD keeps the tuple, and REPLY is what the backend answers with: the service's own."""
    first, backend = held(), dataclasses.replace(BOUND_TO, forwarding=method)
    forward = abi.unpack_pending(abi.pack_forward_pending(first, backend, 0, 1, 5)[1])
    key = first.key
    tuple_ = (key.client_addr, key.service_addr, key.client_port, key.service_port)
    assert (forward.new_saddr, forward.new_daddr, forward.new_sport, forward.new_dport) == tuple_
    reply_key, _ = abi.pack_reply_pending(first, backend, 0, 1)
    service = model.Endpoint(key.service_addr, key.service_port)
    assert reply_key == abi.pack_reply_key(service, key, abi.Kind.REPLY)


@pytest.mark.parametrize("family", [4, 6])
def test_one_sided_flows_are_counted(family: int) -> None:
    """By the flag alone, in the entries of both families."""
    flags = (abi.FLOW_ONE_SIDED, 0, abi.FLOW_ONE_SIDED | abi.FLOW_FIN, abi.FLOW_FIN | abi.FLOW_RST)
    size = abi.FLOW_ENTRY_SIZE if family == 4 else abi.FLOW_ENTRY6_SIZE
    raw = b"".join(bytes(37) + bytes([each]) + bytes(size - 38) for each in flags)
    assert [each for _, _, each, _ in abi.iter_flow_aging(raw, family)] == list(flags)
    assert abi.count_one_sided(raw, family) == 2
