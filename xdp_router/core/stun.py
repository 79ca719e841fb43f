# SPDX-License-Identifier: Apache-2.0
"""STUN (RFC 8489): the binding request that a server is probed with, and what answers it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

BINDING_REQUEST = 0x0001
BINDING_SUCCESS = 0x0101
BINDING_ERROR = 0x0111
COOKIE = 0x2112_A442
TRANSACTION_BYTES = 12
HEADER_BYTES = 20

_HEADER = struct.Struct("!HHI12s")
_ATTRIBUTE = struct.Struct("!HH")
_ERROR_CODE = 0x0009
_TRY_ALTERNATE = 300
_SERVER_ERROR = 5
_UNKNOWN_ERROR = 499


@dataclass(frozen=True, slots=True)
class BindingAnswer:
    """A server's answer to a binding request; ``error`` is 0 in a success."""

    transaction: bytes
    error: int = 0

    @property
    def is_willing(self) -> bool:
        """Whether the server is at work. One that asks for credentials is; one that sends its
        clients to another server, or has failed, is not."""
        return self.error != _TRY_ALTERNATE and self.error // 100 != _SERVER_ERROR


def binding_request(transaction: bytes) -> bytes:
    """A request without attributes. Raise ValueError unless ``transaction`` has 12 bytes."""
    if len(transaction) != TRANSACTION_BYTES:
        raise ValueError(f"STUN transaction id of {len(transaction)} bytes, expected 12")
    return _HEADER.pack(BINDING_REQUEST, 0, COOKIE, transaction)


def parse_binding_answer(data: bytes, *, cut: bool = False) -> BindingAnswer:
    """What answers a binding request; ``cut``: ``data`` may be only the beginning of it.

    Raise ValueError, saying what is wrong. An error whose code was cut off has code 499.
    """
    if len(data) < HEADER_BYTES:
        raise ValueError(f"STUN message of {len(data)} bytes, expected at least {HEADER_BYTES}")
    kind, length, cookie, transaction = _HEADER.unpack_from(data)
    if kind not in (BINDING_SUCCESS, BINDING_ERROR):
        raise ValueError(f"STUN type 0x{kind:04x}, expected a binding success or error")
    if cookie != COOKIE:
        raise ValueError(f"STUN magic cookie 0x{cookie:08x}, expected 0x{COOKIE:08x}")
    room = len(data) - HEADER_BYTES
    if length % 4 or length < room or (length > room and not cut):
        raise ValueError(f"STUN length {length}, {room} bytes follow its header")
    error = 0
    found = _attribute(data[HEADER_BYTES:], _ERROR_CODE, whole=length == room)
    if kind == BINDING_ERROR:
        if found is None and length == room:
            raise ValueError("STUN error without an ERROR-CODE")
        error = _UNKNOWN_ERROR if found is None else _error_code(found)
    return BindingAnswer(transaction, error)


def _attribute(data: bytes, wanted: int, whole: bool) -> bytes | None:
    """First four bytes of the first attribute of a type; None: it is not there."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        kind, length = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        following = at + (length + 3 & ~3)  # padded to whole words
        if following > len(data) and whole:
            raise ValueError(f"STUN attribute 0x{kind:04x} of {length} bytes, beyond the message")
        if kind == wanted:
            value = data[at : at + min(length, 4)]
            if len(value) < 4:
                if length < 4 or whole:
                    raise ValueError(f"STUN ERROR-CODE of {length} bytes, expected at least 4")
                return None
            return value
        at = following
    return None


def _error_code(value: bytes) -> int:
    hundreds, number = value[2] & 7, value[3]
    if not 3 <= hundreds <= 6 or number > 99:
        raise ValueError(f"STUN error class {hundreds}, number {number}")
    return hundreds * 100 + number
