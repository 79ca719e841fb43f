# SPDX-License-Identifier: Apache-2.0
"""Datagrams that are held behind the first one of a flow, while its decision is open.

UDP sends nothing again by itself: what is held goes on in its order, whoever decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from .commands import Reinject
from .events import Datagram, FirstPacket
from .flow import Flow
from .model import FlowKey

HELD_MAX = 4
"""Of one flow, the first included, as in ``ebpf/lib/datagram.h``: a post-quantum QUIC hello is
two, and may be sent twice."""

HELD_BYTES = 6144
"""And so long, all frames together."""

UDP = 17


def is_udp(key: FlowKey) -> bool:
    """Whether a flow is one of datagrams."""
    return key.proto == UDP


def hold(flow: Flow, datagram: Datagram | FirstPacket) -> bool:
    """Hold one more behind the flow's first; whether there is room for it."""
    held = sum(len(each.frame) for each in flow.held) + len(flow.first.frame)
    if len(flow.held) + 1 >= HELD_MAX or held + len(datagram.frame) > HELD_BYTES:
        return False
    flow.held.append(datagram)
    return True


def release(flow: Flow) -> Iterator[Reinject]:
    """Everything that is held of a flow, in the order in which it came."""
    yield Reinject(flow.first)
    for each in flow.held:
        yield Reinject(each)
