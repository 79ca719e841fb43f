# SPDX-License-Identifier: Apache-2.0
"""What the maps say about VLAN tags."""

from __future__ import annotations

import pytest

from tests.support.frames import Hop, ethernet
from xdp_router.core import abi

HOP = Hop(b"\2\0\0\0\0\1", b"\2\0\0\0\0\2")
Q, AD = 0x8100, 0x88A8


@pytest.mark.parametrize(
    ("vlan", "value"), [(None, abi.VLAN_KEEP), (0, abi.VLAN_NONE), (7, abi.VLAN_TAG | 7)]
)
def test_values_of_backends(vlan: int | None, value: int) -> None:
    """Nothing said, no tag, and an id are three things."""
    assert abi.vlan_of(vlan) == value


@pytest.mark.parametrize(
    ("tags", "to_backend", "value"),
    [
        ((), 7, abi.VLAN_NONE),
        (((Q, 0xA005),), 7, abi.VLAN_TAG | 5),
        (((AD, 5), (Q, 6)), 7, abi.VLAN_TAG | abi.VLAN_SERVICE | 5),
        (((Q, 5),), 0, abi.VLAN_TAG | 5),
        (((AD, 5), (Q, 6)), 0, abi.VLAN_TAG | abi.VLAN_SERVICE | abi.VLAN_PUSH | 5),
    ],
)
def test_tag_of_a_client(tags: tuple[tuple[int, int], ...], to_backend: int, value: int) -> None:
    """His outer tag is what comes back; in front of another one if that one is left."""
    frame = ethernet(HOP, bytes(40), tags)
    assert abi.vlan_to_client(frame, abi.vlan_of(to_backend)) == value


def test_short_frames_have_no_tag() -> None:
    """A frame that ends in its header is one without a tag."""
    assert abi.vlan_to_client(bytes(14), abi.vlan_of(7)) == abi.VLAN_NONE
