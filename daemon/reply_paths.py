# SPDX-License-Identifier: Apache-2.0
"""Leads replies to clients behind an interface that was made anew, and has another number.

A flow's entries name the interface that its client came in by. The program corrects them when
the client's next segment comes by another one; but where only the backend has something to
say, its segments go nowhere and no segment of the client ever comes. So the program is shown
that segment: an empty acknowledgement, as the client would repeat it, in a test run that
sends nothing. The program alone changes entries, in place; the daemon never writes over them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from struct import Struct

import structlog

from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import FlowTable
from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from .aging import BATCH, in_batches

AT_ONCE = 64
"""Flows before the loop has its turn: about 2 ms."""

_FRAME = Struct(">6s6sH BBHHHBBHII HHIIHHHH")
_ETH_P_IP, _IHL, _IP_LENGTH, _TTL, _TCP = 0x0800, 0x45, 40, 64, 6
_ACK = 0x5010  # header of 20 bytes
_U16 = 0xFFFF

_log = structlog.get_logger()


class ReplyPaths:
    """Corrects the entries of ``flows`` by test runs of ``program``.

    ``program`` must not have the router's own mark: the segments count as new ones.
    """

    def __init__(self, flows: FlowTable, program: Reinjector) -> None:
        self._flows = flows
        self._program = program
        self.led = 0
        """Flows that were led since the start."""

    async def lead(self, link: LinkInfo, former: Collection[int]) -> None:
        """Lead flows whose client came by interfaces ``former`` to ``link``.

        Each counts one packet of 40 bytes more, and as used at this moment.
        """
        led = failed = 0
        try:
            async for batch in in_batches(self._flows.batches(BATCH)):
                for (key, value), (direction, ifindex) in zip(
                    batch, abi.iter_flow_clients(batch.values), strict=True
                ):
                    if ifindex not in former or direction != abi.Direction.FORWARD:
                        continue
                    if self._show(key, value, link):
                        led += 1
                    else:
                        failed += 1
                    if not (led + failed) % AT_ONCE:
                        await asyncio.sleep(0)
        except XdpRouterError as error:
            _log.error("replies_not_led", interface=link.name, error=str(error))
        _log.info("replies_led", interface=link.name, flows=led, failed=failed)
        self.led += led

    def _show(self, key: bytes, stale: bytes, link: LinkInfo) -> bool:
        """Run the client's segment; whether the entry names ``link`` now."""
        value = self._flows.read(key)
        if value is None:
            return True  # over meanwhile
        try:
            self._program.run(segment(key, value, link.mac), link.ifindex)
        except BpfError:
            return False  # the interface is gone again
        after = self._flows.read(key)
        return after is None or abi.unpack_flow_entry(after).ifindex == link.ifindex


def segment(key: bytes, value: bytes, mac: bytes) -> bytes:
    """The last acknowledgement of a flow's client once more, to an interface with ``mac``.

    It moves nothing that is tracked. The program looks at no checksum.
    """
    flow, entry = abi.flow_key_from_bytes(key), abi.unpack_flow_entry(value)
    window = min(entry.window >> (entry.wscale & 15), _U16)
    addresses = flow.client_addr, flow.service_addr
    ports = flow.client_port, flow.service_port
    return _FRAME.pack(
        *(mac, entry.dmac, _ETH_P_IP),
        *(_IHL, 0, _IP_LENGTH, 0, 0, _TTL, _TCP, 0, *addresses),
        *(*ports, entry.seq_next, entry.ack, _ACK, window, 0, 0),
    )
