# SPDX-License-Identifier: Apache-2.0
"""Field lines of HTTP/1.1, judged one by one."""

from __future__ import annotations

import pytest

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_fields import (
    SPELLINGS,
    TOKEN_BYTES,
    read_fields,
    read_trailer,
    tokens,
)

NOTHING: frozenset[bytes] = frozenset()


def test_names_are_lower_case_and_values_without_blanks_around_them() -> None:
    """Order, repeated fields and what stands inside a value stay as they came."""
    lines = [b"B:  two words\t ", b"a:1", b"A: :2:", b"Empty:", b"c: \xff\xc3"]
    fields, found = read_fields(lines, frozenset((b"a", b"z")), 400)
    assert fields == [
        (b"b", b"two words"),
        (b"a", b"1"),
        (b"a", b":2:"),
        (b"empty", b""),
        (b"c", b"\xff\xc3"),
    ]
    assert found == {b"a": [b"1", b":2:"]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b" folded", "folded"),
        (b"\tfolded: yes", "folded"),
        (b"Host", "without a colon"),
        (b"x", "without a colon"),
        (b"", "without a colon"),
        (b": value", "without a name"),
        (b"Host : a", "blank between"),
        (b"Transfer-Encoding\t: chunked", "blank between"),
        (b"a b: c", "character in a header's name"),
        (b"a\xff: c", "character in a header's name"),
        (b"(a): c", "character in a header's name"),
        (b"a\0: c", "character in a header's name"),
        (b"Content_Length: 5", "underscore"),
        (b"TRANSFER_ENCODING: chunked", "underscore"),
        (b"X_Forwarded-For: 192.0.2.1", "underscore"),
    ],
)
def test_a_line_that_is_no_field_is_refused_with_its_reason(line: bytes, reason: str) -> None:
    """Both statuses, a client's and a backend's, come with the same words."""
    for status in (400, 502):
        with pytest.raises(MessageError, match=reason) as caught:
            read_fields([b"a: b", line], NOTHING, status)
        assert caught.value.status == status


def test_every_byte_of_a_name_is_judged_by_the_grammar() -> None:
    """RFC 9110's tchar and nothing else; the colon ends the name."""
    for code in range(256):
        byte = bytes([code])
        if code == ord(":"):
            continue
        line = b"x" + byte + b"x: v"
        if byte in TOKEN_BYTES:
            assert read_fields([line], NOTHING, 400)[0] == [(b"x" + byte.lower() + b"x", b"v")]
        else:
            with pytest.raises(MessageError):
                read_fields([line], NOTHING, 400)


def test_other_underscores_are_fine() -> None:
    """A field that has no twin in the protocol keeps its name."""
    assert read_fields([b"api_key: 1"], NOTHING, 400)[0] == [(b"api_key", b"1")]


def test_the_table_of_usual_names_says_what_the_slow_way_says() -> None:
    """A name in it is a token and stands for its own lower case."""
    assert len(SPELLINGS) > 150
    for written, name in SPELLINGS.items():
        assert written.lower() == name
        assert not name.translate(None, TOKEN_BYTES)
        assert b"_" not in name


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5",
        b"transfer-encoding: chunked",
        b"Host: a",
        b"a",
        b" a: b",
        b"a : b",
        b"a: \0",
        b"a: b\rc",
        b"a: b\nc",
        b"a\x7f: b",
    ],
)
def test_a_trailer_that_is_none_is_refused(line: bytes) -> None:
    """What is refused in a head, and what would say anew where the message ends."""
    with pytest.raises(MessageError):
        read_trailer(line, 400)


def test_a_trailer_is_a_field_like_another() -> None:
    """A checksum or a gRPC status may follow the body."""
    read_trailer(b"grpc-status: 0", 400)
    read_trailer(b"X-Checksum:\tabc \xff", 502)


def test_members_of_a_list_are_taken_apart() -> None:
    """Empty members do not count, and several fields are one list (RFC 9110 section 5.6.1)."""
    assert tokens([b"close"]) == [b"close"]
    assert tokens([b"Keep-Alive , ,TE", b"x\t"]) == [b"keep-alive", b"te", b"x"]
    assert tokens([b","]) == []
    assert tokens([b""]) == []
