# SPDX-License-Identifier: Apache-2.0
"""A SYN flood: ``python -m tests.support.syn_flood`` in the namespace that it shall come from.

Each SYN is well-formed and of another flow; its source, in 198.18.0.0/16, is nobody's, so nobody
answers what comes back. The frames are made before the first is sent. ``ready`` is printed then,
and sending begins with a line on stdin; at the end what was sent, and in which time, as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.segments import SYN, Segment
from xdp_router.lab import Namespace

_ETH_P_IP = 0x0800
_CHUNK = 100
_SOURCES = 0xC6120000
# The lab's own clients are in the first /24, its service in another.
_OFFSETS = tuple(offset for offset in range(256, 65536) if offset >> 8 != 100)
_PORT_MIN = 1024


def frames(macs: bytes, service: tuple[str, int], count: int, seed: int) -> Iterator[bytes]:
    """Ethernet frames with correct checksums, ``macs`` (destination, source) in front."""
    rng = random.Random(seed)
    # With source, port, ISN and checksums 0: what is filled in is added to both sums.
    empty = Segment(("0.0.0.0", 0), service, SYN, 0).packet()
    sums = [~int.from_bytes(empty[at : at + 2]) & 0xFFFF for at in (10, 36)]
    head = macs + struct.pack("!H", _ETH_P_IP) + empty[:10]
    target, tail = empty[16:20], empty[32:36]
    for number in range(count):
        offset = _OFFSETS[number % len(_OFFSETS)]
        port = _PORT_MIN + number // len(_OFFSETS)
        isn = rng.getrandbits(32)
        addresses = (_SOURCES >> 16) + offset
        tcp = sums[1] + addresses + port + (isn >> 16) + (isn & 0xFFFF)
        yield (
            head
            + _finish(sums[0] + addresses)
            + (_SOURCES + offset).to_bytes(4, "big")
            + target
            + port.to_bytes(2, "big")
            + empty[22:24]
            + isn.to_bytes(4, "big")
            + empty[28:32]
            + tail
            + _finish(tcp)
            + empty[38:40]
        )


def _finish(total: int) -> bytes:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")


def send(handle: socket.socket, packets: list[bytes], rate: int, limit_s: float) -> dict[str, Any]:
    """Send at most so many a second, and for at most so long."""
    started = time.monotonic()
    sent = lost = 0
    while sent + lost < len(packets) and time.monotonic() - started < limit_s:
        at = sent + lost
        for packet in packets[at : at + _CHUNK]:
            try:
                handle.send(packet)
                sent += 1
            except OSError:  # ENOBUFS: the wire is full
                lost += 1
        time.sleep(max(0.0, started + (sent + lost) / rate - time.monotonic()))
    return {"sent": sent, "seconds": time.monotonic() - started}


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="tests.support.syn_flood", description=__doc__)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--macs", type=bytes.fromhex, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    service = (options.address, options.port)
    packets = list(frames(options.macs, service, options.count, options.seed))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as handle:
        handle.bind((options.interface, 0))
        print("ready", flush=True)
        if sys.stdin.readline():
            print(json.dumps(send(handle, packets, options.rate, options.limit_s)), flush=True)
    return 0


@dataclass
class Flood:
    """A flood that is ready to begin; ``begin`` it and ``wait`` for its end."""

    process: subprocess.Popen[bytes]

    @classmethod
    def prepare(
        cls,
        namespace: Namespace,
        interface: str,
        macs: bytes,
        service: tuple[str, int],
        *,
        count: int,
        rate: int,
        limit_s: float,
        seed: int,
    ) -> Flood:
        """Make ``count`` SYNs, to be sent by an interface of a lab's namespace."""
        argv = [sys.executable, "-m", "tests.support.syn_flood", "--interface", interface]
        argv += ["--macs", macs.hex(), "--address", service[0], "--port", str(service[1])]
        argv += ["--count", str(count), "--rate", str(rate), "--limit-s", str(limit_s)]
        argv += ["--seed", str(seed)]
        process = namespace.spawn(argv, name="flood", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return cls(process)

    def begin(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait(self) -> tuple[int, float]:
        """How many SYNs were sent, in how many seconds."""
        out, _ = self.process.communicate(timeout=60)
        result = json.loads(out)
        return int(result["sent"]), float(result["seconds"])


if __name__ == "__main__":
    sys.exit(main())
