# SPDX-License-Identifier: Apache-2.0
"""An interface behind an 802.1Q tag, by two classifiers of its own.

As a VLAN device would, also on kernels that have none: the stack sees untagged frames, the wire
tagged ones. Frames that come with another tag, or without one, are lost. A frame that is sent with
a tag already keeps it. XDP sees tagged frames, and what it redirects is not touched.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from xdp_router.linux.ethtool import set_tag_insertion

from . import links
from .bpf_code import R1, R2, R3, R6, Code, ProgramType
from .errors import LabError
from .namespace import Namespace

_PASS = 0  # TC_ACT_OK
_LOSE = 2  # TC_ACT_SHOT
_PUSH, _POP = 18, 19
_PROTOCOL, _PRESENT, _TCI = 16, 20, 24  # in struct __sk_buff
_TAGS = (socket.htons(0x8100), socket.htons(0x88A8))
_ANY_PROTOCOL = 3
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3


def load_untag(vlan: int) -> int:
    """Load the classifier of arriving frames; the caller closes the fd."""
    code = Code()
    code.copy(R6, R1)
    code.load(4, R2, R6, _PRESENT)
    code.jump("==", R2, 0, "lose")
    code.load(4, R2, R6, _TCI)
    code.mask(R2, 0xFFF)
    code.jump("!=", R2, vlan, "lose")
    code.copy(R1, R6)
    code.call(_POP)
    code.end(_PASS)
    code.label("lose")
    code.end(_LOSE)
    return code.install("xr_lab_untag", ProgramType.CLS)


def load_tag(vlan: int) -> int:
    """Load the classifier of leaving frames; the caller closes the fd."""
    code = Code()
    code.copy(R6, R1)
    code.load(4, R2, R6, _PRESENT)
    code.jump("!=", R2, 0, "pass")
    code.load(4, R2, R6, _PROTOCOL)
    for tag in _TAGS:
        code.jump("==", R2, tag, "pass")
    code.copy(R1, R6)
    code.set(R2, _TAGS[0])
    code.set(R3, vlan)
    code.call(_PUSH)
    code.label("pass")
    code.end(_PASS)
    return code.install("xr_lab_tag", ProgramType.CLS)


def put_behind_tag(namespace: Namespace, ifname: str, vlan: int) -> None:
    """From now on the namespace's stack speaks on that interface through the tag."""
    # A tag that travels beside the frame is nothing that an XDP program at the other end sees.
    namespace.run(lambda: set_tag_insertion(ifname, False))

    def body(netlink: Any) -> None:
        (index,) = netlink.link_lookup(ifname=ifname)
        try:
            classify(netlink, index)
        except NetlinkError as error:
            raise LabError(
                f"{ifname} can't be put behind a tag ({error}): the lab does it by BPF classifiers "
                "(CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF)"
            ) from error

    def classify(netlink: Any, index: int) -> None:
        netlink.tc("add", "clsact", index)
        for parent, load in ((_INGRESS, load_untag), (_EGRESS, load_tag)):
            program = load(vlan)
            try:
                netlink.tc(
                    "add-filter",
                    "bpf",
                    index,
                    fd=program,
                    name=f"vlan{vlan}",
                    parent=parent,
                    protocol=_ANY_PROTOCOL,
                    direct_action=True,
                )
            finally:
                os.close(program)

    links.with_netlink(namespace, body)
