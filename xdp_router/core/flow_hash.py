# SPDX-License-Identifier: Apache-2.0
"""A flow's hash as the XDP program computes it, so that both find the same slot for a flow.

``flow_hash`` in ``ebpf/lib/binding.h`` is the other half.
"""

from __future__ import annotations

from .address import is_ipv6
from .model import FlowKey, Service

_U32 = 0xFFFF_FFFF
_FOLD = (0x27D4_EB2F, 0xC2B2_AE35, 0x85EB_CA6B, 0x9E37_79B1)
"""Odd factors, so no word loses a bit; for the least significant word first."""


def fold_addr(addr: int) -> int:
    """An address in 32 bits: an IPv4 address itself, of IPv6 all four words mixed."""
    if not is_ipv6(addr):
        return addr
    folded = 0
    for shift, factor in zip((0, 32, 64, 96), _FOLD, strict=True):
        folded ^= (addr >> shift & _U32) * factor & _U32
    return folded


def flow_hash(key: FlowKey) -> int:
    """A five-tuple's 32-bit hash. Multiply and fold: each input bit reaches each output bit."""
    return _tuple_hash(key, key.client_port << 16 | key.service_port)


def choice_hash(service: Service, key: FlowKey) -> int:
    """What a backend is chosen by: flows of one source go together if the service wants that."""
    return _tuple_hash(key, 0) if service.affinity_ns else flow_hash(key)


def _tuple_hash(key: FlowKey, ports: int) -> int:
    mixed = fold_addr(key.client_addr) * 0x9E37_79B1 & _U32
    mixed ^= mixed >> 15
    mixed += ports
    mixed = mixed * 0x85EB_CA6B & _U32
    mixed ^= mixed >> 13
    mixed = (mixed + fold_addr(key.service_addr)) * 0xC2B2_AE35 & _U32
    return mixed ^ (mixed >> 16)
