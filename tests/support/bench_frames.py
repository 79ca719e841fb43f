# SPDX-License-Identifier: Apache-2.0
"""Frames of the benchmarks, untagged and without options, taken apart."""

from __future__ import annotations

import struct

from bench.frames import family_of, fold, sum16


def segment_of(frame: bytes) -> tuple[bytes, bytes, int]:
    """Addresses, what is behind the IP header, and its protocol."""
    if family_of(frame) == 6:
        return frame[22:54], frame[54:], frame[20]
    return frame[26:34], frame[34:], frame[23]


def is_right(frame: bytes) -> bool:
    """Whether the sums of an IPv4 header and of the segment are right, and the lengths."""
    addresses, segment, proto = segment_of(frame)
    if family_of(frame) == 4:
        if fold(sum16(frame[14:34])) != 0xFFFF:
            return False
        length = struct.unpack_from("!H", frame, 16)[0] - 20
    else:
        length = struct.unpack_from("!H", frame, 18)[0]
    pseudo = addresses + bytes((0, proto)) + len(segment).to_bytes(2, "big")
    return length == len(segment) and fold(sum16(pseudo) + sum16(segment)) == 0xFFFF
