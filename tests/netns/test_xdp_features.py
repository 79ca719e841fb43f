# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells about XDP on interfaces of a namespace of the test's own."""

from __future__ import annotations

import os

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.lab import xdp_stub
from xdp_router.lab.readable import is_readable
from xdp_router.linux.ethtool import Offload, set_offload
from xdp_router.linux.xdp_features import XdpFeatures


@in_fresh_netns
def test_veth_by_its_other_end() -> None:
    """GRO there, or a program, wherever that end is; asked anew each time."""
    with IPRoute() as ipr, XdpFeatures() as features:
        wire = make_wire(ipr, "v0", None, None)

        def far_gro(on: bool) -> None:
            wire.at_far(lambda _: set_offload("v0p", Offload.GRO, on))

        far_gro(False)
        assert features.takes_frames(wire.near) is False
        far_gro(True)
        assert features.takes_frames(wire.near) is True
        far_gro(False)
        program = xdp_stub.load_constant(xdp_stub.XDP_PASS)
        wire.at_far(lambda far: far.link("set", index=wire.far, xdp_fd=program))
        assert features.takes_frames(wire.near) is True
        os.close(program)


@in_fresh_netns
def test_changes_are_told() -> None:
    """At once, and in silence there is nothing to read."""
    with IPRoute() as ipr, XdpFeatures() as features:
        wire = make_wire(ipr, "v0", None, None)
        wire.at_far(lambda _: set_offload("v0p", Offload.GRO, False))
        changes = features.changes()
        assert changes is not None
        with changes:
            assert not is_readable(changes, 0.05)
            wire.at_far(lambda _: set_offload("v0p", Offload.GRO, True))
            assert is_readable(changes, 2)
            assert changes.recv(4096)


@in_fresh_netns
def test_what_is_not_known() -> None:
    """An interface that is not there; one that has no XDP at all takes no frames."""
    with XdpFeatures() as features:
        assert features.takes_frames(9999) is None
        assert features.takes_frames(1) is False
    features.close()
