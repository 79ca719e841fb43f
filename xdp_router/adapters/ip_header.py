# SPDX-License-Identifier: Apache-2.0
"""IP headers of the packets that probes are, of either family."""

from __future__ import annotations

import struct
from typing import Final

from xdp_router.core.address import address_bytes, is_ipv6
from xdp_router.core.checksum import checksum, ones_sum

_ETH_P_IP: Final = 0x0800
_ETH_P_IPV6: Final = 0x86DD
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_IPV4_CHECKSUM_AT: Final = 10
_HOP_LIMIT: Final = 64
_DONT_FRAGMENT: Final = 0x4000


def ethertype(addr: int) -> int:
    """Of packets to an address."""
    return _ETH_P_IPV6 if is_ipv6(addr) else _ETH_P_IP


def ip_header(source: int, destination: int, protocol: int, length: int) -> bytes:
    """Header of a packet with ``length`` bytes behind it. Both addresses are of one family."""
    addresses = address_bytes(source), address_bytes(destination)
    if is_ipv6(destination):
        return _IPV6.pack(6 << 28, length, protocol, _HOP_LIMIT, *addresses)
    head = _IPV4.pack(
        *(0x45, 0, _IPV4.size + length, 0, _DONT_FRAGMENT, _HOP_LIMIT, protocol, 0), *addresses
    )
    right = checksum(ones_sum(head)).to_bytes(2, "big")
    return head[:_IPV4_CHECKSUM_AT] + right + head[_IPV4_CHECKSUM_AT + 2 :]
