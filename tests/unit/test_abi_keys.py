# SPDX-License-Identifier: Apache-2.0
"""xdp_router.core.abi_keys: keys and back, and errors that name what does not fit."""

from __future__ import annotations

import dataclasses

import pytest

from xdp_router.core import abi_keys
from xdp_router.core.abi_values import EndpointKind, Kind
from xdp_router.core.errors import AbiError
from xdp_router.core.model import Endpoint, FlowKey, Mode

KEY = FlowKey(0xC6120A01, 40001, 0xC6126401, 80)
BACKEND = Endpoint(0xC6120102, 8080)
NET6 = 0x2001_0DB8 << 96
KEY6 = FlowKey(NET6 | 0xA01, 40001, NET6 | 0x6401, 80)
BACKEND6 = Endpoint(NET6 | 0x102, 8080)


@pytest.mark.parametrize("key", [KEY, KEY6], ids=("ipv4", "ipv6"))
@pytest.mark.parametrize("kind", Kind)
def test_a_key_names_its_kind_and_its_tuple(kind: Kind, key: FlowKey) -> None:
    """What was packed is read back, and without its kind it is the flow table's key."""
    packed = abi_keys.pack_flow_key(key, kind)
    assert len(packed) == (abi_keys.FLOW_KEY_SIZE if key is KEY else abi_keys.FLOW_KEY6_SIZE)
    assert abi_keys.flow_key_from_bytes(packed) == key
    assert abi_keys.key_kind(packed) is kind
    assert abi_keys.without_kind(packed) == abi_keys.pack_flow_key(key)


@pytest.mark.parametrize("key", [KEY, KEY6], ids=("ipv4", "ipv6"))
def test_events_have_one_key_for_both_families(key: FlowKey) -> None:
    """An IPv4 tuple is mapped into an IPv6 one, and comes back as it was."""
    packed = abi_keys.pack_shared_key(key, Kind.SEEN)
    assert len(packed) == abi_keys.FLOW_KEY6_SIZE
    assert abi_keys.flow_key_from_bytes(packed) == key


def test_addresses_are_told_apart_by_their_bytes() -> None:
    """IPv4 is mapped (RFC 4291, 2.5.5.2); no address is all zero."""
    assert abi_keys.pack_addr(0xC6120102) == bytes(10) + b"\xff\xff\xc6\x12\x01\x02"
    assert abi_keys.pack_addr(0) == bytes(16)
    for addr in (0, 1, 0xC6120102, 0xFFFFFFFF, BACKEND6.addr):
        assert abi_keys.unpack_addr(abi_keys.pack_addr(addr)) == addr


def test_the_reply_key_is_the_way_back() -> None:
    """From the backend to the client's port."""
    back = abi_keys.flow_key_from_bytes(abi_keys.pack_reply_key(BACKEND, KEY))
    assert back == FlowKey(0xC6120102, 8080, 0xC6120A01, 40001)


def test_endpoints_survive() -> None:
    """An endpoint's key is read back."""
    for endpoint in (BACKEND, BACKEND6):
        for kind in EndpointKind:
            packed = abi_keys.pack_endpoint_key(endpoint, kind)
            ranged = kind is EndpointKind.RANGE
            found = dataclasses.replace(endpoint, ranged=ranged)
            assert abi_keys.unpack_endpoint_key(packed) == (found, kind)
            if not kind or ranged:  # which is in the endpoint itself
                assert abi_keys.pack_endpoint_key(found) == packed


def test_what_does_not_fit_is_named() -> None:
    """Wrong lengths and unknown numbers say in what they were found."""
    with pytest.raises(AbiError, match=r"flow_key: 15 bytes, expected 16"):
        abi_keys.flow_key_from_bytes(bytes(15))
    with pytest.raises(AbiError, match=r"service: Mode has no value 99"):
        abi_keys.read_enum(Mode, 99, "service")
