# SPDX-License-Identifier: Apache-2.0
"""STUN messages: the published samples, what is refused, and that nothing else is raised."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.stun import STUN

from xdp_router.core.stun import (
    BINDING_ERROR,
    BINDING_SUCCESS,
    COOKIE,
    BindingAnswer,
    binding_request,
    parse_binding_answer,
)

TRANSACTION = bytes(range(12))

# RFC 5769, 2.2: a server's response over IPv4, with its own transaction id.
SAMPLE = bytes.fromhex(
    "0101003c2112a442b7e7a701bc34d686fa87dfae"
    "8022000b7465737420766563746f7220"
    "002000080001a147e112a643"
    "000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7"
    "80280004c07d4c96"
)


def answer(
    kind: int = BINDING_SUCCESS,
    body: bytes = b"",
    *,
    cookie: int = COOKIE,
    length: int | None = None,
) -> bytes:
    """A message of a server."""
    size = len(body) if length is None else length
    return struct.pack("!HHI12s", kind, size, cookie, TRANSACTION) + body


def error(code: int, before: bytes = b"") -> bytes:
    """An error answer, with its reason."""
    value = bytes([0, 0, code // 100, code % 100]) + b"why!"
    return answer(BINDING_ERROR, before + struct.pack("!HH", 9, len(value)) + value)


def test_a_request_is_a_bare_header() -> None:
    """As scapy reads it: a binding request of length 0 with the magic cookie."""
    request = binding_request(TRANSACTION)
    assert len(request) == 20
    read = STUN(request)
    assert (read.stun_message_type, read.length, read.magic_cookie) == (1, 0, COOKIE)
    assert int(read.transaction_id).to_bytes(12, "big") == TRANSACTION


@pytest.mark.parametrize("size", [0, 11, 13, 16])
def test_a_transaction_id_has_twelve_bytes(size: int) -> None:
    """Any other is refused: it would shift what follows."""
    with pytest.raises(ValueError, match=f"{size} bytes, expected 12"):
        binding_request(bytes(size))


def test_the_published_sample() -> None:
    """RFC 5769's response is a success, with its transaction id."""
    assert parse_binding_answer(SAMPLE) == BindingAnswer(SAMPLE[8:20])


@pytest.mark.parametrize(
    ("code", "willing"), [(300, False), (401, True), (420, True), (500, False), (599, False)]
)
def test_errors_tell_whether_the_server_is_at_work(code: int, willing: bool) -> None:
    """One that wants credentials is; one that sends clients elsewhere, or has failed, is not."""
    found = parse_binding_answer(error(code, before=bytes.fromhex("8022000361626300")))
    assert found == BindingAnswer(TRANSACTION, code)
    assert found.is_willing is willing


def test_a_success_is_willing() -> None:
    """It has no error."""
    assert BindingAnswer(TRANSACTION).is_willing


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"", "0 bytes"),
        (answer()[:19], "19 bytes"),
        (binding_request(TRANSACTION), "type 0x0001"),
        (answer(0x0111 | 0x8000), "type 0x8111"),
        (answer(cookie=COOKIE ^ 1), "cookie 0x2112a443"),
        (answer(body=bytes(4), length=8), "length 8, 4 bytes"),
        (answer(body=bytes(4), length=0), "length 0, 4 bytes"),
        (answer(body=bytes(3)), "length 3"),
        (answer(body=bytes.fromhex("00200008")), "0x0020 of 8 bytes"),
        (answer(BINDING_ERROR), "without an ERROR-CODE"),
        (answer(BINDING_ERROR, bytes.fromhex("0009000200000000")), "of 2 bytes"),
        (answer(BINDING_ERROR, bytes.fromhex("0009000400000201")), "class 2"),
        (answer(BINDING_ERROR, bytes.fromhex("0009000400000464")), "number 100"),
    ],
)
def test_what_is_no_answer_is_refused(message: bytes, said: str) -> None:
    """Too short, a request, another cookie, lengths that do not fit, attributes that overrun."""
    with pytest.raises(ValueError, match=said):
        parse_binding_answer(message)


def test_the_beginning_of_a_message_is_enough_if_it_may_be_cut() -> None:
    """XDP hands on the first 64 bytes."""
    assert parse_binding_answer(SAMPLE[:64], cut=True) == BindingAnswer(SAMPLE[8:20])
    with pytest.raises(ValueError, match="length 60, 44 bytes"):
        parse_binding_answer(SAMPLE[:64])
    late = error(401, before=bytes.fromhex("80220024") + bytes(36))
    assert parse_binding_answer(late[:64], cut=True).error == 499  # somewhere behind
    assert parse_binding_answer(late).error == 401


@given(st.binary(max_size=80), st.booleans(), st.booleans())
def test_no_bytes_raise_anything_else(body: bytes, is_error: bool, cut: bool) -> None:
    """Whatever follows a right header: a value, or ValueError."""
    kind = BINDING_ERROR if is_error else BINDING_SUCCESS
    with contextlib.suppress(ValueError):
        assert parse_binding_answer(answer(kind, body), cut=cut).transaction == TRANSACTION
    with contextlib.suppress(ValueError):
        parse_binding_answer(body, cut=cut)
