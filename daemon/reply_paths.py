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
from collections.abc import Collection, Iterable
from struct import Struct

import structlog

from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import FlowTable, FlowTables
from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.held import is_udp

from .aging import BATCH, in_batches

AT_ONCE = 64
"""Flows before the loop has its turn: about 2 ms."""

_TAG = Struct(">HH")
_IPV4 = Struct(">BBHHHBBHII")
_IPV6 = Struct(">IHBB16s16s")
_SEGMENT = Struct(">HHIIHHHH")
_DATAGRAM = Struct(">HHHH")
_ETH_P_IP, _IHL, _TTL = 0x0800, 0x45, 64
_ETH_P_IPV6, _VERSION_6 = 0x86DD, 6 << 28
_ETH_P_8021Q, _ETH_P_8021AD, _VLAN_ID = 0x8100, 0x88A8, 0x0FFF
_ACK = 0x5010  # header of 20 bytes
_U16 = 0xFFFF

_log = structlog.get_logger()


class ReplyPaths:
    """Corrects the entries of ``tables`` by test runs of ``program``.

    ``program`` must not have the router's own mark: the segments count as new ones.
    """

    def __init__(self, tables: Iterable[FlowTables], program: Reinjector) -> None:
        self._tables = tuple(tables)
        self._program = program
        self.led = 0
        """Flows that were led since the start."""

    async def lead(self, link: LinkInfo, former: Collection[int]) -> None:
        """Lead flows whose client came by interfaces ``former`` to ``link``.

        Each counts one packet of 40 bytes more, and as used at this moment.
        """
        led = failed = 0
        try:
            for tables in self._tables:
                async for batch in in_batches(tables.flows.batches(BATCH)):
                    for (key, value), (direction, ifindex) in zip(
                        batch, abi.iter_flow_clients(batch.values, tables.family), strict=True
                    ):
                        if ifindex not in former or direction != abi.Direction.FORWARD:
                            continue
                        if self._show(tables.flows, key, value, link):
                            led += 1
                        else:
                            failed += 1
                        if not (led + failed) % AT_ONCE:
                            await asyncio.sleep(0)
        except XdpRouterError as error:
            _log.error("replies_not_led", interface=link.name, error=str(error))
        _log.info("replies_led", interface=link.name, flows=led, failed=failed)
        self.led += led

    def _show(self, flows: FlowTable, key: bytes, stale: bytes, link: LinkInfo) -> bool:
        """Run the client's segment; whether the entry names ``link`` now."""
        value = flows.read(key)
        if value is None:
            return True  # over meanwhile
        try:
            vlan = vlan_of(flows.read(abi.peer_key(key, value)))
            self._program.run(segment(key, value, link.mac, vlan), link.ifindex)
        except BpfError:
            return False  # the interface is gone again
        after = flows.read(key)
        return after is None or abi.unpack_flow_entry(after).ifindex == link.ifindex


def vlan_of(reply: bytes | None) -> int:
    """What replies of a flow do to tags, so that they have the client's."""
    return abi.unpack_flow_entry(reply).vlan if reply is not None else abi.VLAN_KEEP


def segment(key: bytes, value: bytes, mac: bytes, vlan: int = abi.VLAN_KEEP) -> bytes:
    """The last acknowledgement of a flow's client once more, to an interface with ``mac``.

    Of UDP, an empty datagram. It moves nothing that is tracked. The program looks at no checksum.
    ``vlan``: of the flow's REPLY entry, which the program makes anew from the segment's tag.
    """
    flow, entry = abi.flow_key_from_bytes(key), abi.unpack_flow_entry(value)
    window = min(entry.window >> (entry.wscale & 15), _U16)
    client, service, proto = flow.client_addr, flow.service_addr, flow.proto
    ports = flow.client_port, flow.service_port
    if is_udp(flow):
        payload = _DATAGRAM.pack(*ports, _DATAGRAM.size, 0)
    else:
        payload = _SEGMENT.pack(*ports, entry.seq_next, entry.ack, _ACK, window, 0, 0)
    length = len(payload)
    if abi.family_of(service) == 4:
        kind = _ETH_P_IP
        header = _IPV4.pack(_IHL, 0, _IPV4.size + length, 0, 0, _TTL, proto, 0, client, service)
    else:
        kind = _ETH_P_IPV6
        addresses = client.to_bytes(16, "big"), service.to_bytes(16, "big")
        header = _IPV6.pack(_VERSION_6, length, proto, _TTL, *addresses)
    return b"".join((mac, entry.dmac, _tags(vlan), kind.to_bytes(2, "big"), header, payload))


def _tags(vlan: int) -> bytes:
    """The client's tag, and another one within if replies leave that alone: its id is no matter."""
    if not vlan & abi.VLAN_TAG:
        return b""
    outer = _ETH_P_8021AD if vlan & abi.VLAN_SERVICE else _ETH_P_8021Q
    inner = _TAG.pack(_ETH_P_8021Q, 0) if vlan & abi.VLAN_PUSH else b""
    return _TAG.pack(outer, vlan & _VLAN_ID) + inner
