# SPDX-License-Identifier: Apache-2.0
"""VLAN tags as the maps have them: ``XR_VLAN_*`` of ``ebpf/abi_services.h``."""

from __future__ import annotations

VLAN_KEEP = 0
VLAN_TAG = 0x1000
VLAN_NONE = 0x2000
VLAN_PUSH = 0x4000
VLAN_SERVICE = 0x8000

_ID = 0x0FFF
_8021Q, _8021AD = 0x8100, 0x88A8


def vlan_of(vlan: int | None) -> int:
    """``backend.vlan`` of a VLAN id; 0: no tag, None: frames keep what they came with."""
    if vlan is None:
        return VLAN_KEEP
    return VLAN_TAG | vlan if vlan else VLAN_NONE


def vlan_to_client(frame: bytes, to_backend: int) -> int:
    """What gives frames to the sender of ``frame`` its tag, when those to the backend get another.

    ``ebpf/lib/vlan.h`` has the same function. ``to_backend``: ``backend.vlan``.
    """
    kind = int.from_bytes(frame[12:14], "big")
    if kind not in (_8021Q, _8021AD):
        return VLAN_NONE
    vlan = VLAN_TAG | int.from_bytes(frame[14:16], "big") & _ID
    if kind == _8021AD:
        vlan |= VLAN_SERVICE
    if to_backend == VLAN_NONE and int.from_bytes(frame[16:18], "big") in (_8021Q, _8021AD):
        vlan |= VLAN_PUSH
    return vlan
