# SPDX-License-Identifier: Apache-2.0
"""Mirror of ``ebpf/abi.h``: the only place where bytes become values and back.

Addresses and ports are host-order integers in values and big-endian in bytes; all other
integers are in the machine's order on both sides. Field names are those of the header,
except ``octets`` for ``bytes``. Padding is written as zero and ignored when read. Every
``unpack_*`` and ``decode_*`` function raises :class:`AbiError` on bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from .abi_events import COMPARED_SIZE as COMPARED_SIZE
from .abi_events import EVENT_SIZE as EVENT_SIZE
from .abi_events import decode_event as decode_event
from .abi_events import pack_compared as pack_compared
from .abi_events import pack_event as pack_event
from .abi_events import unpack_event_header as unpack_event_header
from .abi_flows import FLOW_ENTRY6_SIZE as FLOW_ENTRY6_SIZE
from .abi_flows import FLOW_ENTRY_SIZE as FLOW_ENTRY_SIZE
from .abi_flows import FLOW_FIN as FLOW_FIN
from .abi_flows import FLOW_FULLNAT as FLOW_FULLNAT
from .abi_flows import FLOW_KILLED as FLOW_KILLED
from .abi_flows import FLOW_ONE_SIDED as FLOW_ONE_SIDED
from .abi_flows import FLOW_RST as FLOW_RST
from .abi_flows import FLOW_STAGE as FLOW_STAGE
from .abi_flows import NAT_REST_S as NAT_REST_S
from .abi_flows import NO_WSCALE as NO_WSCALE
from .abi_flows import PENDING_AGAIN as PENDING_AGAIN
from .abi_flows import PENDING_CLOSED as PENDING_CLOSED
from .abi_flows import PENDING_FIN as PENDING_FIN
from .abi_flows import PENDING_FLOW6_SIZE as PENDING_FLOW6_SIZE
from .abi_flows import PENDING_FLOW_SIZE as PENDING_FLOW_SIZE
from .abi_flows import PENDING_FULLNAT as PENDING_FULLNAT
from .abi_flows import PENDING_PROMOTED as PENDING_PROMOTED
from .abi_flows import PENDING_PROVEN as PENDING_PROVEN
from .abi_flows import PENDING_REFUSED as PENDING_REFUSED
from .abi_flows import PENDING_SYNACK as PENDING_SYNACK
from .abi_flows import count_flows_of as count_flows_of
from .abi_flows import count_one_sided as count_one_sided
from .abi_flows import flow_backends as flow_backends
from .abi_flows import flow_open as flow_open
from .abi_flows import flow_services as flow_services
from .abi_flows import flows_heard as flows_heard
from .abi_flows import iter_flow_aging as iter_flow_aging
from .abi_flows import iter_flow_clients as iter_flow_clients
from .abi_flows import iter_flow_traffic as iter_flow_traffic
from .abi_flows import iter_pending_aging as iter_pending_aging
from .abi_flows import pack_flow_entry as pack_flow_entry
from .abi_flows import pack_forward_pending as pack_forward_pending
from .abi_flows import pack_pending as pack_pending
from .abi_flows import pack_reply_pending as pack_reply_pending
from .abi_flows import peer_key as peer_key
from .abi_flows import pending_backends as pending_backends
from .abi_flows import pending_of_backend as pending_of_backend
from .abi_flows import pending_reply_key as pending_reply_key
from .abi_flows import unpack_flow_entry as unpack_flow_entry
from .abi_flows import unpack_pending as unpack_pending
from .abi_keys import ENDPOINT, Buffer, from_slots, read_enum, read_fields, slot_values
from .abi_keys import FLOW_KEY6_SIZE as FLOW_KEY6_SIZE
from .abi_keys import FLOW_KEY_SIZE as FLOW_KEY_SIZE
from .abi_keys import IP_ADDR_SIZE as IP_ADDR_SIZE
from .abi_keys import flow_key_from_bytes as flow_key_from_bytes
from .abi_keys import key_kind as key_kind
from .abi_keys import pack_addr as pack_addr
from .abi_keys import pack_endpoint_key as pack_endpoint_key
from .abi_keys import pack_flow_key as pack_flow_key
from .abi_keys import pack_reply_key as pack_reply_key
from .abi_keys import pack_shared_key as pack_shared_key
from .abi_keys import protocols as protocols
from .abi_keys import unpack_addr as unpack_addr
from .abi_keys import unpack_endpoint_key as unpack_endpoint_key
from .abi_keys import without_kind as without_kind
from .abi_limits import AFFINITY_KEY_SIZE as AFFINITY_KEY_SIZE
from .abi_limits import CONNECTION_ID_MAX as CONNECTION_ID_MAX
from .abi_limits import EVENT_SHARE_SIZE as EVENT_SHARE_SIZE
from .abi_limits import FRAGMENT_KEY_SIZE as FRAGMENT_KEY_SIZE
from .abi_limits import FRAGMENT_SIZE as FRAGMENT_SIZE
from .abi_limits import PATH_MTU_SIZE as PATH_MTU_SIZE
from .abi_limits import PORT_RANGES_SIZE as PORT_RANGES_SIZE
from .abi_limits import PREFIX_KEY_SIZE as PREFIX_KEY_SIZE
from .abi_limits import PRESSURE_SIZE as PRESSURE_SIZE
from .abi_limits import QUIC_KEY_SIZE as QUIC_KEY_SIZE
from .abi_limits import RANGE_KEY_SIZE as RANGE_KEY_SIZE
from .abi_limits import RANGES as RANGES
from .abi_limits import SHARE_ONE as SHARE_ONE
from .abi_limits import SOURCE_KEY_SIZE as SOURCE_KEY_SIZE
from .abi_limits import STICKY_SIZE as STICKY_SIZE
from .abi_limits import TOKEN_BUCKET_SIZE as TOKEN_BUCKET_SIZE
from .abi_limits import TOKENS_ECHO as TOKENS_ECHO
from .abi_limits import TOKENS_EVENTS as TOKENS_EVENTS
from .abi_limits import TOKENS_ICMP as TOKENS_ICMP
from .abi_limits import TOKENS_SERVICE as TOKENS_SERVICE
from .abi_limits import TRAFFIC_SIZE as TRAFFIC_SIZE
from .abi_limits import USAGE_SIZE as USAGE_SIZE
from .abi_limits import pack_affinity_key as pack_affinity_key
from .abi_limits import pack_event_share as pack_event_share
from .abi_limits import pack_fragment as pack_fragment
from .abi_limits import pack_fragment_key as pack_fragment_key
from .abi_limits import pack_path_mtu as pack_path_mtu
from .abi_limits import pack_port_ranges as pack_port_ranges
from .abi_limits import pack_prefix_key as pack_prefix_key
from .abi_limits import pack_pressure as pack_pressure
from .abi_limits import pack_quic_key as pack_quic_key
from .abi_limits import pack_range_key as pack_range_key
from .abi_limits import pack_source_default as pack_source_default
from .abi_limits import pack_source_key as pack_source_key
from .abi_limits import pack_sticky as pack_sticky
from .abi_limits import pack_token_bucket as pack_token_bucket
from .abi_limits import pack_traffic as pack_traffic
from .abi_limits import pack_usage as pack_usage
from .abi_limits import quic_service as quic_service
from .abi_limits import source_service as source_service
from .abi_limits import unpack_affinity_key as unpack_affinity_key
from .abi_limits import unpack_event_share as unpack_event_share
from .abi_limits import unpack_fragment as unpack_fragment
from .abi_limits import unpack_path_mtu as unpack_path_mtu
from .abi_limits import unpack_port_ranges as unpack_port_ranges
from .abi_limits import unpack_pressure as unpack_pressure
from .abi_limits import unpack_range_key as unpack_range_key
from .abi_limits import unpack_sticky as unpack_sticky
from .abi_limits import unpack_token_bucket as unpack_token_bucket
from .abi_limits import unpack_traffic as unpack_traffic
from .abi_limits import unpack_usage as unpack_usage
from .abi_picks import BACKEND_LOAD_SIZE as BACKEND_LOAD_SIZE
from .abi_picks import BACKEND_SIGNS_SIZE as BACKEND_SIGNS_SIZE
from .abi_picks import PICK_SLOTS as PICK_SLOTS
from .abi_picks import PICK_TABLE_SIZE as PICK_TABLE_SIZE
from .abi_picks import PICKS_SIZE as PICKS_SIZE
from .abi_picks import LoadValue as LoadValue
from .abi_picks import pack_backend_load as pack_backend_load
from .abi_picks import pack_backend_signs as pack_backend_signs
from .abi_picks import pack_pick_table as pack_pick_table
from .abi_picks import pack_picks as pack_picks
from .abi_picks import unpack_backend_load as unpack_backend_load
from .abi_picks import unpack_backend_signs as unpack_backend_signs
from .abi_picks import unpack_pick_table as unpack_pick_table
from .abi_picks import unpack_picks as unpack_picks
from .abi_values import SERVICE_GATEWAY as SERVICE_GATEWAY
from .abi_values import BackendValue as BackendValue
from .abi_values import ControlValue as ControlValue
from .abi_values import Counter as Counter
from .abi_values import Direction as Direction
from .abi_values import EndpointKind as EndpointKind
from .abi_values import EventHeader as EventHeader
from .abi_values import EventType as EventType
from .abi_values import FlowEntryValue as FlowEntryValue
from .abi_values import InterfaceValue as InterfaceValue
from .abi_values import Kind as Kind
from .abi_values import PendingValue as PendingValue
from .abi_values import ServiceValue as ServiceValue
from .abi_values import SourceRule as SourceRule
from .abi_values import Stage as Stage
from .abi_values import TcpState as TcpState
from .abi_values import TrafficValue as TrafficValue
from .abi_vlan import VLAN_KEEP as VLAN_KEEP
from .abi_vlan import VLAN_NONE as VLAN_NONE
from .abi_vlan import VLAN_PUSH as VLAN_PUSH
from .abi_vlan import VLAN_SERVICE as VLAN_SERVICE
from .abi_vlan import VLAN_TAG as VLAN_TAG
from .abi_vlan import vlan_of as vlan_of
from .abi_vlan import vlan_to_client as vlan_to_client
from .address import family_of as family_of
from .address import format_addr as format_addr
from .address import format_endpoint as format_endpoint
from .address import format_mac as format_mac
from .address import parse_addr as parse_addr
from .address import parse_endpoint as parse_endpoint
from .address import parse_mac as parse_mac
from .address import protocol_name as protocol_name
from .model import Forwarding, Mode, Orphans

ABI_VERSION = 5
STAGE_MAX = len(Stage)
STAGES_IPV6 = 20
STAGE_IPV6 = 40
STAGES_ALL = 41
COUNTER_MAX = len(Counter)
HASH_SLOTS = 1021
MAX_VLAN_TAGS = 2
FRAME_SMALL = 240
FRAME_LARGE = 1520
RECORD_SMALL = 328
RECORD_LARGE = 1608

BACKEND_UP = 0x01
BACKEND_DRAINING = 0x02
BACKEND_SHARED = 0x04
BACKEND_KERNEL = 0x08
BACKEND_ONE_SIDED = 0x10
BACKEND_STAGE = 0x20
BACKEND_TUNNEL = 0x40
BACKEND_DEAD = 0x80
SERVICE_ECHO = 0x01
SERVICE_QUIC = 0x02
SERVICE_SOURCES = 0x04
SERVICE_AFFINITY = 0x08
SERVICE_STATELESS = 0x10
IF_BOUNCE_REDIRECT = 0x01
IF_VIRTUAL_MAC = 0x02
IF_HANDOFF_FORWARD4 = 0x04
IF_HANDOFF_REPLY4 = 0x08
IF_NO_XMIT = 0x10
IF_HANDOFF_FORWARD6 = 0x20
IF_HANDOFF_REPLY6 = 0x40
IF_HANDOFF_FORWARD = {4: IF_HANDOFF_FORWARD4, 6: IF_HANDOFF_FORWARD6}
"""By address family of the packets; so is that of replies."""
IF_HANDOFF_REPLY = {4: IF_HANDOFF_REPLY4, 6: IF_HANDOFF_REPLY6}
CONTROL_NO_XMIT = 0x01
CONTROL_RANGES = 0x02
CONTROL_ECHO = 0x04
CONTROL_HOLD = 0x08
EGRESS_KERNEL = 0xFFFFFFFF

BACKEND_METHOD = {
    Forwarding.DSR: BACKEND_ONE_SIDED,
    Forwarding.IPIP: BACKEND_ONE_SIDED | BACKEND_STAGE | BACKEND_TUNNEL,
}
"""Flags of backends that a method's packets reach otherwise than by their address."""

_SERVICE = Struct("=5Q6I4BBBBx16s")
_BACKEND = Struct("=16s16s2sBBII6s6sHH16s2sH")
_BACKEND_REF = Struct("=II")
_HASH_TABLE = Struct(f"={HASH_SLOTS}I4x")
_INTERFACE = Struct("=6s6sI4sI16s")
_CONTROL = Struct("=14Q6I4HII")
_REINJECT = Struct("=QI4x")

ENDPOINT_KEY_SIZE = ENDPOINT.size
SERVICE_SIZE = _SERVICE.size
BACKEND_SIZE = _BACKEND.size
BACKEND_REF_SIZE = _BACKEND_REF.size
HASH_TABLE_SIZE = _HASH_TABLE.size
INTERFACE_SIZE = _INTERFACE.size
CONTROL_SIZE = _CONTROL.size
REINJECT_META_SIZE = _REINJECT.size


def pack_service(value: ServiceValue) -> bytes:
    """Bytes of a ``services`` value."""
    *fields, tunnel_source = slot_values(value)
    return _SERVICE.pack(*fields, pack_addr(tunnel_source))


def unpack_service(data: Buffer) -> ServiceValue:
    """Read a ``services`` value."""
    fields = read_fields(_SERVICE, data, "service")
    fields[11] = read_enum(Mode, fields[11], "service")
    fields[12] = read_enum(Forwarding, fields[12], "service")
    fields[13] = read_enum(Orphans, fields[13], "service")
    fields[17] = read_enum(Mode, fields[17], "service")
    fields[18] = unpack_addr(fields[18])
    return from_slots(ServiceValue, fields)


def pack_backend(value: BackendValue) -> bytes:
    """Bytes of a ``backends`` value."""
    addr, probe_addr, port, *rest, stateless_addr, stateless_port, share = slot_values(value)
    return _BACKEND.pack(
        pack_addr(addr),
        pack_addr(probe_addr),
        port.to_bytes(2, "big"),
        *rest,
        pack_addr(stateless_addr),
        stateless_port.to_bytes(2, "big"),
        share,
    )


def unpack_backend(data: Buffer) -> BackendValue:
    """Read a ``backends`` value."""
    fields = read_fields(_BACKEND, data, "backend")
    for at in (0, 1, -3):
        fields[at] = unpack_addr(fields[at])
    for at in (2, -2):
        fields[at] = int.from_bytes(fields[at], "big")
    return BackendValue(*fields)


def pack_backend_ref(backend: int, service: int) -> bytes:
    """Bytes of a ``backend_index`` value."""
    return _BACKEND_REF.pack(backend, service)


def unpack_backend_ref(data: Buffer) -> tuple[int, int]:
    """Backend id and service id of a ``backend_index`` value."""
    backend, service = read_fields(_BACKEND_REF, data, "backend_ref")
    return backend, service


def pack_hash_table(slots: Sequence[int]) -> bytes:
    """Bytes of a ``hash_tables`` value. Raises ValueError unless there are HASH_SLOTS slots."""
    if len(slots) != HASH_SLOTS:
        raise ValueError(f"a hash table has {HASH_SLOTS} slots, got {len(slots)}")
    return _HASH_TABLE.pack(*slots)


def unpack_hash_table(data: Buffer) -> tuple[int, ...]:
    """Backend id of each slot of a ``hash_tables`` value."""
    return tuple(read_fields(_HASH_TABLE, data, "hash_table"))


def pack_interface(value: InterfaceValue) -> bytes:
    """Bytes of an interface's value."""
    mac, virtual_mac, flags, addr, mtu, addr6 = slot_values(value)
    return _INTERFACE.pack(
        mac, virtual_mac, flags, addr.to_bytes(4, "big"), mtu, addr6.to_bytes(16, "big")
    )


def unpack_interface(data: Buffer) -> InterfaceValue:
    """Read an interface's value."""
    mac, virtual_mac, flags, addr, mtu, addr6 = read_fields(_INTERFACE, data, "interface")
    return InterfaceValue(
        mac, virtual_mac, flags, int.from_bytes(addr, "big"), mtu, int.from_bytes(addr6, "big")
    )


def pack_control(value: ControlValue) -> bytes:
    """Bytes of the ``control`` value."""
    fields = slot_values(value)
    return _CONTROL.pack(*fields[:14], *value.probe_key, *fields[15:])


def unpack_control(data: Buffer) -> ControlValue:
    """Read the ``control`` value."""
    fields = read_fields(_CONTROL, data, "control")
    fields[14:16] = [(fields[14], fields[15])]
    return from_slots(ControlValue, fields)


def pack_reinject_meta(mark: int, egress_ifindex: int = 0) -> bytes:
    """Metadata in front of a frame that is run through the program."""
    return _REINJECT.pack(mark, egress_ifindex)


def unpack_reinject_meta(data: Buffer) -> tuple[int, int]:
    """``mark`` and ``egress_ifindex`` of the metadata that came back."""
    mark, egress_ifindex = read_fields(_REINJECT, data, "reinject_meta")
    return mark, egress_ifindex
