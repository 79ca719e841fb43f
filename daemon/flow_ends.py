# SPDX-License-Identifier: Apache-2.0
"""Tells the clients of a backend that has died that their connections are over.

A client that waits for an answer sends nothing, and so would hear nothing from XDP, which
answers its segments alone. As with replies (``reply_paths``) the program is shown the client's
last acknowledgement once more: it marks the flow killed and makes the RST, which is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

import structlog

from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import FlowTable, FlowTables
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.held import is_udp

from .aging import BATCH, in_batches
from .reply_paths import AT_ONCE, segment, vlan_of

_log = structlog.get_logger()


class FlowEnds:
    """Ends established TCP flows of ``tables`` by runs of ``program``, which has the router's mark.

    ``send`` gets an interface index and a frame.
    """

    def __init__(
        self,
        tables: Iterable[FlowTables],
        program: Reinjector,
        send: Callable[[int, bytes], object],
    ) -> None:
        self._tables = tuple(tables)
        self._program = program
        self._send = send
        self.told = 0
        """Flows that were ended since the start."""

    async def tell(self, dead: Collection[int]) -> int:
        """End the flows of these backends, which are marked dead. Returns how many there were.

        Those that end or come meanwhile are XDP's. Raise XdpRouterError if the tables cannot be
        read, which is logged: who was not told then is told by the next call.
        """
        told = failed = seen = 0
        try:
            for tables in self._tables:
                async for batch in in_batches(tables.flows.batches(BATCH)):
                    if abi.flow_backends(batch.values, tables.family).isdisjoint(dead):
                        continue
                    for key, value in batch:
                        if not _is_told(key, value, dead):
                            continue
                        if self._tell(tables.flows, key, value):
                            told += 1
                        else:
                            failed += 1
                        seen += 1
                        if not seen % AT_ONCE:
                            await asyncio.sleep(0)
        except XdpRouterError as error:
            _log.error(
                "flows_not_ended", error=str(error), flows=told, consequence="it is tried again"
            )
            raise
        finally:
            self.told += told
        _log.info("flows_ended", flows=told, failed=failed)
        return told

    def _tell(self, flows: FlowTable, key: bytes, value: bytes) -> bool:
        entry = abi.unpack_flow_entry(value)
        vlan = vlan_of(flows.read(abi.peer_key(key, value)))
        frame = segment(key, value, entry.in_mac, vlan)
        try:
            _, egress, reset = self._program.run(frame, entry.ifindex)
        except BpfError:
            return False  # the client's interface is gone
        after = flows.read(key)
        if not egress or after is None or not abi.unpack_flow_entry(after).flags & abi.FLOW_KILLED:
            return False  # it is over, or the backend is not dead any more
        self._send(egress, reset)
        return True


def _is_told(key: bytes, value: bytes, dead: Collection[int]) -> bool:
    """Whether it is the client's direction of such a flow, and was not told yet."""
    entry = abi.unpack_flow_entry(value)
    return (
        entry.direction == abi.Direction.FORWARD
        and entry.backend in dead
        and entry.state != abi.TcpState.CLOSING  # nobody waits: it is over, or nearly so
        and not entry.flags & abi.FLOW_KILLED
        and not is_udp(abi.flow_key_from_bytes(key))
    )
