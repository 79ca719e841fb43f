# SPDX-License-Identifier: Apache-2.0
"""A WebSocket that sends back what it gets (RFC 6455), without I/O: bytes in, bytes out."""

from __future__ import annotations

import base64
import hashlib

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE, _PING, _PONG = 8, 9, 10
_OPCODES = (0, 1, 2, _CLOSE, _PING, _PONG)
PROTOCOL_ERROR, TOO_BIG = 1002, 1009
FRAME_MAX = 16 << 20
"""Payload of one frame."""


def accept(key: bytes) -> bytes:
    """What Sec-WebSocket-Accept has to be for a Sec-WebSocket-Key (section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID).digest())


def frame(opcode: int, payload: bytes, *, end: bool = True, mask: bytes = b"") -> bytes:
    """A frame; with ``mask`` (4 bytes) as a client has to send it."""
    size = len(payload)
    flag = 0x80 if mask else 0
    head = bytes([opcode | (0x80 if end else 0)])
    if size < 126:
        head += bytes([flag | size])
    elif size < 1 << 16:
        head += bytes([flag | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([flag | 127]) + size.to_bytes(8, "big")
    return head + mask + (masked(payload, mask) if mask else payload)


def masked(payload: bytes, mask: bytes) -> bytes:
    """A payload with a mask put on, or taken off (section 5.3)."""
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return mixed.to_bytes(size, "big")


class Echo:
    """One connection after its upgrade. ``closed``: nothing more is taken, the peer gets FIN."""

    def __init__(self) -> None:
        self._input = bytearray()
        self.closed = False

    def feed(self, data: bytes) -> bytes:
        """What is to be sent for what came."""
        self._input += data
        answers = []
        while not self.closed and (answer := self._next()) is not None:
            answers.append(answer)
        return b"".join(answers)

    def _next(self) -> bytes | None:
        buffer = self._input
        if len(buffer) < 2:
            return None
        first, size = buffer[0], buffer[1] & 0x7F
        opcode, end = first & 0x0F, bool(first & 0x80)
        control = opcode >= _CLOSE
        bad = first & 0x70 or opcode not in _OPCODES or not buffer[1] & 0x80
        if bad or (control and (size > 125 or not end)):
            return self._fail(PROTOCOL_ERROR)
        at = 2
        if size >= 126:
            at += 2 if size == 126 else 8
            size = int.from_bytes(buffer[2:at], "big")
        if len(buffer) < at:
            return None
        if size > FRAME_MAX:
            return self._fail(TOO_BIG)
        if len(buffer) < at + 4 + size:
            return None
        payload = masked(bytes(buffer[at + 4 : at + 4 + size]), bytes(buffer[at : at + 4]))
        del buffer[: at + 4 + size]
        if opcode == _CLOSE:
            self.closed = True
            return frame(_CLOSE, payload)
        if opcode == _PING:
            return frame(_PONG, payload)
        return b"" if opcode == _PONG else frame(opcode, payload, end=end)

    def _fail(self, code: int) -> bytes:
        self.closed = True
        return frame(_CLOSE, code.to_bytes(2, "big"))
