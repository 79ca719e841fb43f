# SPDX-License-Identifier: Apache-2.0
"""ICMP errors about flows, with faults on purpose, and whose each of them is.

An error of the tables is taken, one to four of its fields get other values, and the sums that
the changed lengths still allow are made right again.
"""

from __future__ import annotations

import random

from scapy.utils import checksum

from tests.support.frames import l3_offset

from .case import Case
from .icmp import CASES
from .world import B1, CLIENT, OTHER_MAC, ROUTER_MAC_B, ROUTER_MAC_C, WEB

SOURCES = [case for case in CASES if "icmp_translated" in case.counters]
"""Errors that are translated as they are."""

TUPLES = {
    "backend": (CLIENT.number, B1.end.number, CLIENT.port, B1.end.port),
    "client": (WEB.number, CLIENT.number, WEB.port, CLIENT.port),
}
"""What left us there, of the one flow that the tables have: the quoted tuple."""

MACS = {"backend": ROUTER_MAC_B, "client": ROUTER_MAC_C}


def generated_error(case: Case, rng: random.Random) -> bytes:
    """The case's frame with up to four changes."""
    frame = bytearray(case.frame)
    at = l3_offset(case.frame)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        message = min(at + (frame[at] & 15) * 4, len(frame) - 1)
        match rng.randrange(8):
            case 0:  # type and code
                frame[message] = rng.choice((3, 3, 11, 12, 5, 0, 8, rng.randrange(256)))
                if message + 1 < len(frame):
                    frame[message + 1] = rng.randrange(256)
            case 1:  # how long the packet says that it is
                frame[at + 2 : at + 4] = _near(rng, frame[at + 2 : at + 4])
            case 2:  # cut, or padded
                if rng.randrange(2):
                    del frame[rng.randint(at + 20, len(frame)) :]
                else:
                    frame += rng.randbytes(rng.randint(1, 50))
            case 3:  # a byte of either header
                place = rng.choice((at, message + 8)) + rng.randrange(20)
                _set(frame, place, rng.randrange(256))
            case 4:  # header lengths
                _set(frame, rng.choice((at, message + 8)), 0x40 | rng.randrange(16))
            case 5:  # the embedded tuple
                _set(frame, message + 20 + rng.randrange(12), rng.randrange(256))
            case 6:  # TTL
                frame[at + 8] = rng.choice((0, 1, 2, 255))
            case _:
                frame[:6] = rng.choice((OTHER_MAC, b"\xff" * 6, ROUTER_MAC_B, ROUTER_MAC_C))
    return _with_sums(frame, at)


def _set(frame: bytearray, at: int, value: int) -> None:
    if at < len(frame):
        frame[at] = value


def _near(rng: random.Random, raw: bytearray) -> bytes:
    value = int.from_bytes(raw, "big") + rng.choice((-20, -8, -1, 1, 8, 20, 1000))
    return (rng.choice((0, value, value, value)) & 0xFFFF).to_bytes(2, "big")


def _with_sums(frame: bytearray, at: int) -> bytes:
    """Sums of the outer header and the message, as far as their lengths make sense."""
    header, total = (frame[at] & 15) * 4, int.from_bytes(frame[at + 2 : at + 4], "big")
    if 20 <= header <= total - 8 and at + total <= len(frame):
        for begin, end, place in ((at, at + header, 10), (at + header, at + total, 2)):
            frame[begin + place : begin + place + 2] = b"\0\0"
            frame[begin + place : begin + place + 2] = checksum(bytes(frame[begin:end])).to_bytes(
                2, "big"
            )
    return bytes(frame)


def is_translated(frame: bytes, side: str) -> bool:
    """Whether the one established flow's other side gets the error, its TTL aside.

    Written from the description of the formats, not from the program.
    """
    at = l3_offset(frame)
    if frame[:6] != MACS[side] or frame[at - 2 : at] != b"\x08\0" or len(frame) < at + 20:
        return False
    header, total = (frame[at] & 15) * 4, int.from_bytes(frame[at + 2 : at + 4], "big")
    fragment = int.from_bytes(frame[at + 6 : at + 8], "big") & 0x3FFF
    if frame[at] >> 4 != 4 or header < 20 or at + total > len(frame) or fragment:
        return False
    inner = frame[at + header + 8 : at + total]
    if frame[at + 9] != 1 or len(inner) < 28 or frame[at + header] not in (3, 11, 12):
        return False
    inner_header = (inner[0] & 15) * 4
    fragment = int.from_bytes(inner[6:8], "big") & 0x1FFF
    if inner[0] >> 4 != 4 or inner_header < 20 or inner[9] != 6 or fragment:
        return False
    ports = inner[inner_header : inner_header + 8]
    if len(ports) < 8:
        return False
    numbers = [int.from_bytes(inner[i : i + 4], "big") for i in (12, 16)]
    numbers += [int.from_bytes(ports[i : i + 2], "big") for i in (0, 2)]
    return tuple(numbers) == TUPLES[side] and frame[at + 16 : at + 20] == inner[12:16]
