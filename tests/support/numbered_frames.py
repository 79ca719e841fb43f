# SPDX-License-Identifier: Apache-2.0
"""A steady stream of numbered frames of one flow, and which of them arrive, how often.

A process that sends and receives by two packet sockets, given as descriptors:

    python -m tests.support.numbered_frames SEND_FD RECEIVE_FD PORT RATE TEMPLATE_HEX

The number is the last eight bytes of a frame. The TCP checksum is wrong by intent: XDP forwards
the frame all the same, and the backend's stack does not answer it. SIGTERM ends the sending;
a line of JSON says what has come.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.router import Router

_MAGIC = b"numbered"
_ETH_P_IP = 0x0800
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_RCVBUFFORCE = 33
_STEP_S = 0.001
_LAST_S = 0.5  # for what is under way when the sending ends


def template(client: tuple[str, int], service: tuple[str, int], dmac: bytes, smac: bytes) -> bytes:
    """A data segment of the flow, up to the number."""
    payload = _MAGIC + bytes(8)
    addresses = socket.inet_aton(client[0]) + socket.inet_aton(service[0])
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(payload), 1, 0x4000, 64, 6, 0)
    total = sum(struct.unpack("!10H", head + addresses))
    total = (total & 0xFFFF) + (total >> 16)
    ip = head[:10] + (0xFFFF ^ ((total & 0xFFFF) + (total >> 16))).to_bytes(2, "big") + addresses
    tcp = struct.pack("!HHIIHHHH", client[1], service[1], 1, 1, 0x5010, 1000, 0xBAD0, 0)
    frame: bytes = dmac + smac + _ETH_P_IP.to_bytes(2, "big") + ip + tcp + payload[:-8]
    return frame


def _run(sender: socket.socket, receiver: socket.socket, port: int, rate: int, head: bytes) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    wanted = port.to_bytes(2, "big")
    seen = bytearray()
    others = sent = twice = 0
    begun = time.monotonic()
    ends_s = 0.0
    while not ends_s or time.monotonic() < ends_s:
        if ending and not ends_s:
            ends_s = time.monotonic() + _LAST_S
        due = sent if ends_s else int((time.monotonic() - begun) * rate)
        # What is overdue after a stall of the machine is not sent in one burst: a wire's ring
        # has 256 places.
        for number in range(sent, min(due, sent + 2 * int(rate * _STEP_S) + 1)):
            sender.send(head + number.to_bytes(8, "big"))
            sent += 1
            seen.append(0)
        if due - sent > rate // 100:
            begun = time.monotonic() - sent / rate
        while select.select([receiver], [], [], 0)[0]:
            frame, (_, _, kind, _, _) = receiver.recvfrom(2048)
            if kind == 4 or frame[36:38] != wanted or frame[54:62] != _MAGIC:
                others += 1
                continue
            number = int.from_bytes(frame[62:70], "big")
            twice += seen[number]
            seen[number] = 1
        time.sleep(_STEP_S)
    statistics = receiver.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
    missing = [number for number, there in enumerate(seen) if not there]
    result = {
        "sent": sent,
        "missing": len(missing),
        "missing_first": missing[:10],
        "twice": twice,
        "receiver_dropped": struct.unpack("=II", statistics)[1],
    }
    print(json.dumps(result), flush=True)


class NumberedFrames:
    """The process, from the test's side. ``backend``: index of the one that has the flow."""

    def __init__(self, router: Router, flow: tuple[str, int], backend: int, rate: int) -> None:
        lab = router.lab
        links = router.links()
        wire = lab.router_interfaces
        self._sender = lab.client.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        name = next(name for _, name in lab.client.run(socket.if_nameindex) if name != "lo")
        self._sender.bind((name, 0))
        self._receiver = lab.backends[backend].socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP)
        )
        name = next(
            name for _, name in lab.backends[backend].run(socket.if_nameindex) if name != "lo"
        )
        self._receiver.bind((name, _ETH_P_IP))
        self._receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        head = template(flow, router.service, links[wire[0]].mac, self._sender.getsockname()[4])
        port = lab.addresses.backends[backend][1]
        fds = (self._sender.fileno(), self._receiver.fileno())
        argv = [sys.executable, "-m", "tests.support.numbered_frames", *map(str, fds)]
        self._process = lab.client.spawn(
            [*argv, str(port), str(rate), head.hex()],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            pass_fds=fds,
        )

    def end(self) -> dict[str, Any]:
        """Stop sending; what has come of it."""
        self._process.terminate()
        out, _ = self._process.communicate(timeout=20)
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        """Let go of all of it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._sender.close()
        self._receiver.close()


if __name__ == "__main__":
    send_fd, receive_fd, port, rate = map(int, sys.argv[1:5])
    _run(
        socket.socket(fileno=send_fd),
        socket.socket(fileno=receive_fd),
        port,
        rate,
        bytes.fromhex(sys.argv[5]),
    )
