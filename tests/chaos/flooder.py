# SPDX-License-Identifier: Apache-2.0
"""Floods on demand: ``python -m tests.chaos.flooder MACS SYN_ADDRESS:PORT UDP_ADDRESS:PORT SEED``.

Each line on stdin, ``syn RATE SECONDS`` or ``udp RATE SECONDS``, is done, and answered by what was
sent, as JSON. ``ready`` comes first, when all frames are made. Sources are nobody's.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
from collections.abc import Iterator

from tests.support.syn_flood import frames, send
from xdp_router.core.checksum import checksum, ones_sum

_SYNS = 16_000
_DATAGRAMS = 4_000
_PAYLOAD = b"nobody waits for an answer to this"


def datagrams(macs: bytes, service: tuple[str, int], count: int) -> Iterator[bytes]:
    """Datagrams to a service of IPv4, each of another flow, without a checksum of UDP."""
    target = socket.inet_aton(service[0])
    for number in range(count):
        source = bytes((198, 18, 1 + number % 99, 1 + number // 99 % 250))
        udp = struct.pack("!HHHH", 1024 + number, service[1], 8 + len(_PAYLOAD), 0) + _PAYLOAD
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0)
        head += source + target
        head = head[:10] + checksum(ones_sum(head)).to_bytes(2, "big") + head[12:]
        yield macs + b"\x08\x00" + head + udp


def main() -> int:
    """See the module's text."""
    macs = bytes.fromhex(sys.argv[1])
    syn, udp = ((host, int(port)) for host, _, port in (a.rpartition(":") for a in sys.argv[2:4]))
    made = {
        "syn": list(frames(macs, syn, _SYNS, int(sys.argv[4]))),
        "udp": list(datagrams(macs, udp, _DATAGRAMS)),
    }
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as handle:
        handle.bind(("eth0", 0))
        print("ready", flush=True)
        for line in sys.stdin:
            what, rate, seconds = line.split()
            count = int(float(rate) * float(seconds))
            packets = list(itertools.islice(itertools.cycle(made[what]), count))
            result = send(handle, packets, int(rate), float(seconds) + 1.0)
            print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
