# SPDX-License-Identifier: Apache-2.0
"""xdp_router.core.abi_keys: keys and back, and errors that name what does not fit."""

from __future__ import annotations

import pytest

from xdp_router.core import abi_keys
from xdp_router.core.abi_values import Kind
from xdp_router.core.errors import AbiError
from xdp_router.core.model import Endpoint, FlowKey, Mode

KEY = FlowKey(0xC6120A01, 40001, 0xC6126401, 80)
BACKEND = Endpoint(0xC6120102, 8080)


@pytest.mark.parametrize("kind", Kind)
def test_a_key_names_its_kind_and_its_tuple(kind: Kind) -> None:
    """What was packed is read back, and without its kind it is the flow table's key."""
    packed = abi_keys.pack_flow_key(KEY, kind)
    assert abi_keys.flow_key_from_bytes(packed) == KEY
    assert abi_keys.key_kind(packed) is kind
    assert abi_keys.without_kind(packed) == abi_keys.pack_flow_key(KEY)


def test_the_reply_key_is_the_way_back() -> None:
    """From the backend to the client's port."""
    back = abi_keys.flow_key_from_bytes(abi_keys.pack_reply_key(BACKEND, KEY))
    assert back == FlowKey(0xC6120102, 8080, 0xC6120A01, 40001)


def test_endpoints_survive() -> None:
    """An endpoint's key is read back."""
    assert abi_keys.unpack_endpoint_key(abi_keys.pack_endpoint_key(BACKEND)) == BACKEND


def test_what_does_not_fit_is_named() -> None:
    """Wrong lengths and unknown numbers say in what they were found."""
    with pytest.raises(AbiError, match=r"flow_key: 15 bytes, expected 16"):
        abi_keys.flow_key_from_bytes(bytes(15))
    with pytest.raises(AbiError, match=r"service: Mode has no value 99"):
        abi_keys.read_enum(Mode, 99, "service")
