# SPDX-License-Identifier: Apache-2.0
"""Request smuggling and response splitting: each known trick with the answer it gets.

A row is a stream of one connection. It ends in an error with this status after so many whole
messages, or without an error (0); what a lenient reader would take for a second request must
never come out as one of its own.
"""

from __future__ import annotations

import pytest

from tests.support.http_talk import Outcome, requests, responses, singly
from xdp_router.gateway.http_head import RequestHead

EVIL = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def post(fields: bytes, rest: bytes = b"") -> bytes:
    """Return a request with these field lines, and what stands behind its head."""
    return b"POST / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n" + rest


def get(line: bytes, fields: bytes = b"Host: a\r\n") -> bytes:
    """Return a request with this request line."""
    return line + b"\r\n" + fields + b"\r\n"


TE_VARIANTS = {
    "other coding before": (b"Transfer-Encoding: gzip, chunked\r\n", 501),
    "other coding after": (b"Transfer-Encoding: chunked, identity\r\n", 501),
    "identity": (b"Transfer-Encoding: identity\r\n", 501),
    "unknown": (b"Transfer-Encoding: xchunked\r\n", 501),
    "capitals": (b"Transfer-Encoding: Chunked\r\n", 501),
    "quoted": (b'Transfer-Encoding: "chunked"\r\n', 501),
    "parameter": (b"Transfer-Encoding: chunked;q=1\r\n", 501),
    "trailing comma": (b"Transfer-Encoding: chunked,\r\n", 501),
    "empty": (b"Transfer-Encoding: \r\n", 501),
    "twice": (CHUNKED + CHUNKED, 400),
    "twice, one obscure": (CHUNKED + b"Transfer-Encoding: x\r\n", 400),
    "vertical tab": (b"Transfer-Encoding: \x0bchunked\r\n", 400),
    "form feed": (b"Transfer-Encoding: chunked\x0c\r\n", 400),
    "NUL": (b"Transfer-Encoding: chunked\0\r\n", 400),
    "0xff": (b"Transfer-Encoding: \xffchunked\r\n", 501),
    "no-break space": (b"Transfer-Encoding: \xa0chunked\r\n", 501),
    "space before colon": (b"Transfer-Encoding : chunked\r\n", 400),
    "tab before colon": (b"Transfer-Encoding\t: chunked\r\n", 400),
    "space before name": (b" Transfer-Encoding: chunked\r\n", 400),
    "folded": (b"Transfer-Encoding:\r\n chunked\r\n", 400),
    "folded name": (b"X: y\r\n Transfer-Encoding: chunked\r\n", 400),
    "bare LF before": (b"X: y\nTransfer-Encoding: chunked\r\n", 400),
    "bare CR before": (b"X: y\rTransfer-Encoding: chunked\r\n", 400),
    "underscore": (b"Transfer_Encoding: chunked\r\n", 400),
    "0xff in name": (b"Transfer-Encoding\xff: chunked\r\n", 400),
    "no colon": (b"Transfer-Encoding chunked\r\n", 400),
    "named in Connection": (CHUNKED + b"Connection: close, transfer-encoding\r\n", 400),
}
CL_VARIANTS = {
    "plus": b"+5",
    "minus": b"-5",
    "list": b"5, 5",
    "list of two": b"5,6",
    "blank": b"5 5",
    "underscore": b"1_0",
    "hexadecimal": b"0x5",
    "exponent": b"5e0",
    "dot": b"5.0",
    "empty": b"",
    "quoted": b'"5"',
    "letters": b"five",
    "superscript": b"\xb2",
    "NUL": b"5\0",
    "Arabic digit": "٥".encode(),
    "too large": b"9" * 19,
    "huge": b"9" * 400,
}  # fmt: skip - one line each would say less
# Request, whole messages before the end, status (0: none).
ROWS: dict[str, tuple[bytes, int, int]] = {
    "CL.TE": (post(b"Content-Length: 6\r\n" + CHUNKED, b"0\r\n\r\nG"), 0, 400),
    "TE.CL": (
        post(CHUNKED + b"Content-Length: 4\r\n", b"1e\r\n" + EVIL[:30] + b"\r\n0\r\n\r\n"),
        0,
        400,
    ),
    "TE.CL 0": (post(CHUNKED + b"Content-Length: 0\r\n", b"0\r\n\r\n"), 0, 400),
    "CL.CL equal": (post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), 0, 400),
    "CL.CL other": (post(b"Content-Length: 0\r\nContent-Length: 31\r\n", EVIL), 0, 400),
    "CL named in Connection": (
        post(b"Content-Length: 31\r\nConnection: content-length\r\n", EVIL),
        0,
        400,
    ),
    "CL twin": (post(b"Content-Length: 31\r\nContent_Length: 0\r\n", EVIL), 0, 400),
    "CL space before colon": (post(b"Content-Length : 31\r\n", EVIL), 0, 400),
    "CL.0: the body is the body": (post(b"Content-Length: %d\r\n" % len(EVIL), EVIL), 1, 0),
    "CL.0 of GET": (
        get(b"GET / HTTP/1.1", b"Host: a\r\nContent-Length: %d\r\n" % len(EVIL)) + EVIL,
        1,
        0,
    ),
    "0.CL: pipelined": (post(b"", EVIL), 2, 0),
    "TE in HTTP/1.0": (b"POST / HTTP/1.0\r\nHost: a\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 0, 400),
    "TRACE with a body": (
        get(b"TRACE / HTTP/1.1", b"Host: a\r\nContent-Length: 1\r\n") + b"x",
        0,
        400,
    ),
    "bare LF ends the request line": (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 0, 400),
    "bare LF ends the head": (b"GET / HTTP/1.1\r\nHost: a\r\n\n", 0, 400),
    "LF only": (b"GET / HTTP/1.1\nHost: a\n\n", 0, 400),
    "CR only": (b"GET / HTTP/1.1\rHost: a\r\r", 0, 400),
    "CR CR LF": (b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", 0, 400),
    "LF CR": (b"GET / HTTP/1.1\r\nHost: a\n\r\n\r", 0, 400),
    "CR and LF apart": (get(b"GET / HTTP/1.1", b"Host: a\r\nX: a\rb\nY: c\r\n"), 0, 400),
    "one empty line before": (b"\r\n" + EVIL, 1, 0),
    "two empty lines before": (b"\r\n\r\n" + EVIL, 0, 400),
    "bare LF before": (b"\n" + EVIL, 0, 400),
    "blank before": (b" " + EVIL, 0, 400),
    "obs-fold": (get(b"GET / HTTP/1.1", b"Host: a\r\nX: y\r\n z: w\r\n"), 0, 400),
    "folded first line": (get(b"GET / HTTP/1.1", b" Host: a\r\n"), 0, 400),
    "empty name": (get(b"GET / HTTP/1.1", b"Host: a\r\n: b\r\n"), 0, 400),
    "no colon": (get(b"GET / HTTP/1.1", b"Host: a\r\nabc\r\n"), 0, 400),
    "no Host": (get(b"GET / HTTP/1.1", b""), 0, 400),
    "no Host in HTTP/1.0": (get(b"GET / HTTP/1.0", b""), 1, 0),
    "two Hosts": (get(b"GET / HTTP/1.1", b"Host: a\r\nHost: b\r\n"), 0, 400),
    "two equal Hosts": (get(b"GET / HTTP/1.1", b"Host: a\r\nhost: a\r\n"), 0, 400),
    "two Hosts in HTTP/1.0": (get(b"GET / HTTP/1.0", b"Host: a\r\nHost: b\r\n"), 0, 400),
    "absolute form, no Host": (get(b"GET http://a/ HTTP/1.1", b""), 0, 400),
    "absolute form, bad Host": (get(b"GET http://a/ HTTP/1.1", b"Host: a/b\r\n"), 0, 400),
    "absolute form, user": (get(b"GET http://u@a/ HTTP/1.1"), 0, 400),
    "absolute form, empty": (get(b"GET http:///x HTTP/1.1"), 0, 400),
    "absolute form, backslash": (get(b"GET http://a\\b/ HTTP/1.1"), 0, 400),
    "other scheme": (get(b"GET file:///etc/passwd HTTP/1.1"), 0, 400),
    "target without slash": (get(b"GET evil HTTP/1.1"), 0, 400),
    "target with fragment": (get(b"GET /a#/b HTTP/1.1"), 0, 400),
    "target with NUL": (get(b"GET /\0 HTTP/1.1"), 0, 400),
    "target with 0xff": (get(b"GET /\xff HTTP/1.1"), 0, 400),
    "target with DEL": (get(b"GET /\x7f HTTP/1.1"), 0, 400),
    "asterisk of GET": (get(b"GET * HTTP/1.1"), 0, 400),
    "CONNECT": (get(b"CONNECT a:443 HTTP/1.1"), 0, 501),
    "authority form of GET": (get(b"GET a:443 HTTP/1.1"), 0, 400),
    "two blanks": (get(b"GET  / HTTP/1.1"), 0, 400),
    "blank in target": (get(b"GET /a b HTTP/1.1"), 0, 400),
    "blank at the end": (get(b"GET / HTTP/1.1 "), 0, 400),
    "tab for a blank": (get(b"GET\t/\tHTTP/1.1"), 0, 400),
    "lower-case method": (get(b"head / HTTP/1.1"), 0, 501),
    "method of a token's odd bytes": (get(b"G'T / HTTP/1.1"), 0, 501),
    "method that is no token": (get(b"G(T / HTTP/1.1"), 0, 400),
    "long method": (get(b"A" * 33 + b" / HTTP/1.1"), 0, 501),
    "no method": (get(b" / HTTP/1.1"), 0, 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 0, 505),
    "HTTP/0.9 with version": (get(b"GET / HTTP/0.9"), 0, 505),
    "HTTP/1.2": (get(b"GET / HTTP/1.2"), 0, 505),
    "HTTP/2.0": (get(b"GET / HTTP/2.0"), 0, 505),
    "HTTP/1.10": (get(b"GET / HTTP/1.10"), 0, 400),
    "http/1.1": (get(b"GET / http/1.1"), 0, 400),
    "HTTP/01.1": (get(b"GET / HTTP/01.1"), 0, 400),
    "ICE/1.0": (get(b"SOURCE / ICE/1.0"), 0, 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 0, 400),
    "NUL in a value": (get(b"GET / HTTP/1.1", b"Host: a\r\nX: \0\r\n"), 0, 400),
    "NUL in a name": (get(b"GET / HTTP/1.1", b"Host: a\r\nX\0: y\r\n"), 0, 400),
    "escape in a value": (get(b"GET / HTTP/1.1", b"Host: a\r\nX: \x1b[2J\r\n"), 0, 400),
    "0xff in a value": (get(b"GET / HTTP/1.1", b"Host: a\r\nX: \xff\r\n"), 1, 0),
    "other expectation": (post(b"Expect: 200-ok\r\nContent-Length: 1\r\n", b"x"), 0, 417),
    "expectation twice": (post(b"Expect: 100-continue, x\r\nContent-Length: 1\r\n", b"x"), 0, 417),
    "expectation without a body": (post(b"Expect: 100-continue\r\n", EVIL), 2, 0),
    "upgrade with a body": (
        post(
            b"Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 5\r\n", b"hello" + EVIL
        ),
        2,
        0,
    ),
    "pipelined": (EVIL * 3, 3, 0),
    "chunks, then another": (post(CHUNKED, b"5\r\nhello\r\n0\r\n\r\n" + EVIL), 2, 0),
    "chunk size in capitals": (post(CHUNKED, b"A\r\nhellohello\r\n0\r\n\r\n" + EVIL), 2, 0),
    "chunk size 0x5": (post(CHUNKED, b"0x5\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size +5": (post(CHUNKED, b"+5\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size -1": (post(CHUNKED, b"-1\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size 1_0": (post(CHUNKED, b"1_0\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size padded": (post(CHUNKED, b"5 \r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size after blank": (post(CHUNKED, b" 5\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size empty": (post(CHUNKED, b"\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size wraps 32 bits": (post(CHUNKED, b"100000005\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 0),
    "chunk size wraps 64 bits": (post(CHUNKED, b"10000000000000005\r\nhello\r\n0\r\n\r\n"), 0, 400),
    "chunk size LF": (post(CHUNKED, b"5\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk size CR": (post(CHUNKED, b"5\rXhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "chunk extension": (post(CHUNKED, b'5;a="b;c"\r\nhello\r\n0;x\r\n\r\n' + EVIL), 2, 0),
    "TERM.EXT: LF in an extension": (post(CHUNKED, b"5;a\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "EXT.TERM: CR in an extension": (
        post(CHUNKED, b"5;a\rbc\r\nhello\r\n0\r\n\r\n" + EVIL),
        0,
        400,
    ),
    "quoted CRLF in an extension": (
        post(CHUNKED, b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n' + EVIL),
        0,
        400,
    ),
    "NUL in an extension": (post(CHUNKED, b"5;a\0\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "extension after a blank": (post(CHUNKED, b"5 ;a\r\nhello\r\n0\r\n\r\n" + EVIL), 0, 400),
    "long extension": (post(CHUNKED, b"5;" + b"a" * 300 + b"\r\nhello\r\n0\r\n\r\n"), 0, 400),
    "many extensions": (post(CHUNKED, (b"1;" + b"a" * 200 + b"\r\nx\r\n") * 30), 0, 400),
    "TERM.SPILL: chunk too long": (post(CHUNKED, b"5\r\nhelloX\r\n0\r\n\r\n" + EVIL), 0, 400),
    "ONE.TWO: two bytes for a CRLF": (post(CHUNKED, b"5\r\nhelloXX0\r\n\r\n" + EVIL), 0, 400),
    "LF after a chunk": (post(CHUNKED, b"5\r\nhello\n0\r\n\r\n" + EVIL), 0, 400),
    "CR after a chunk": (post(CHUNKED, b"5\r\nhello\r0\r\n\r\n" + EVIL), 0, 400),
    "no empty line at the end": (post(CHUNKED, b"0\r\n" + EVIL), 0, 400),
    "LF at the end": (post(CHUNKED, b"0\r\n\n" + EVIL), 0, 400),
    "trailer": (post(CHUNKED, b"0\r\nX-Sum: 1\r\n\r\n" + EVIL), 2, 0),
    "trailer Content-Length": (post(CHUNKED, b"0\r\nContent-Length: 31\r\n\r\n" + EVIL), 0, 400),
    "trailer Transfer-Encoding": (post(CHUNKED, b"0\r\n" + CHUNKED + b"\r\n" + EVIL), 0, 400),
    "trailer Host": (post(CHUNKED, b"0\r\nHost: b\r\n\r\n" + EVIL), 0, 400),
    "trailer folded": (post(CHUNKED, b"0\r\nX: y\r\n z\r\n\r\n" + EVIL), 0, 400),
    "trailer without colon": (post(CHUNKED, b"0\r\nabc\r\n\r\n" + EVIL), 0, 400),
    "trailer with LF": (post(CHUNKED, b"0\r\nX: y\n\r\n" + EVIL), 0, 400),
    "long trailers": (post(CHUNKED, b"0\r\n" + b"X: yyyyyyyyyyyy\r\n" * 600 + b"\r\n"), 0, 400),
    **{
        f"TE.TE {name}": (post(line, b"0\r\n\r\n" + EVIL), 0, status)
        for name, (line, status) in TE_VARIANTS.items()
    },
    **{
        f"TE.TE with CL, {name}": (post(b"Content-Length: 5\r\n" + line, b"0\r\n\r\n"), 0, 400)
        for name, (line, _) in TE_VARIANTS.items()
    },
    **{
        f"CL {name}": (post(b"Content-Length: " + value + b"\r\n", b"hello" + EVIL), 0, 400)
        for name, value in CL_VARIANTS.items()
    },
    **{
        f"Host {value!r}": (get(b"GET / HTTP/1.1", b"Host: " + value + b"\r\n"), 0, 400)
        for value in (
            b"",
            b" ",
            b"a b",
            b"a,b",
            b"a/b",
            b"a?b",
            b"a#b",
            b"u@a",
            b"a:b",
            b"a:123456",
            b":80",
            b"a:80:80",
            b"::1",
            b"[::1",
            b"::1]",
            b"[::1]x",
            b"[::1]]",
            b"[[::1]",
            b"a\\b",
            b"\xff",
            b"a\tb",
            b"a[b]",
            b"[a]:x",
        )
    },
}  # fmt: skip - one line each would say less


def judge(outcome: Outcome, whole: int, status: int) -> None:
    """Compare an outcome with its row."""
    assert (outcome.error[0] if outcome.error else 0) == status, outcome
    assert sum(message.whole for message in outcome.messages) == whole, outcome


@pytest.mark.parametrize("name", ROWS)
def test_each_trick_gets_its_answer(name: str) -> None:
    """At once and byte by byte: the same status, the same requests before it, none smuggled."""
    stream, whole, status = ROWS[name]
    at_once = requests([stream])
    judge(at_once, whole, status)
    assert requests(singly(stream)) == at_once
    smuggled = [
        message
        for message in at_once.messages[1:]
        if isinstance(message.head, RequestHead) and message.head.path == b"/evil"
    ]
    assert len(smuggled) == max(0, whole - 1)


OK = b"HTTP/1.1 200 OK\r\n"
SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
ANSWERS: dict[str, bytes] = {
    "no status line": b"hello",
    "another protocol": b"SSH-2.0-x\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n\r\n",
    "HTTP/1.10": b"HTTP/1.10 200 OK\r\n\r\n",
    "empty line before": b"\r\n" + SECOND,
    "two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "letters": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "below 100": b"HTTP/1.1 099 OK\r\n\r\n",
    "two blanks": b"HTTP/1.1  200 OK\r\n\r\n",
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\n\r\n",
    "LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "CR in a value": OK + b"Location: /\rSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n",
    "LF in a value": OK + b"Location: /\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n",
    "CR and LF apart": OK + b"X: a\rb\nY: c\r\nContent-Length: 0\r\n\r\n",
    "NUL in a value": OK + b"X: \0\r\nContent-Length: 0\r\n\r\n",
    "folded": OK + b"X: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    "blank before colon": OK + b"Content-Length : 0\r\n\r\n",
    "no colon": OK + b"abc\r\nContent-Length: 0\r\n\r\n",
    "no name": OK + b": b\r\nContent-Length: 0\r\n\r\n",
    "TE and CL": OK + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two CLs": OK + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "CL list": OK + b"Content-Length: 0, 0\r\n\r\n",
    "CL +4": OK + b"Content-Length: +4\r\n\r\nevil",
    "TE twice": OK + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "TE gzip": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "TE in HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "204 with a body": b"HTTP/1.1 204 N\r\nContent-Length: 50\r\n\r\n" + SECOND,
    "204 in chunks": b"HTTP/1.1 204 N\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "100 with a body": b"HTTP/1.1 100 C\r\nContent-Length: 50\r\n\r\n" + SECOND,
    "101 in chunks": b"HTTP/1.1 101 S\r\nUpgrade: x\r\n" + CHUNKED + b"\r\n",
    "101 to nothing": b"HTTP/1.1 101 S\r\n\r\n",
    "bad chunk": OK + CHUNKED + b"\r\nxyz\r\n",
    "chunk with LF": OK + CHUNKED + b"\r\n5\nhello",
    "bad trailer": OK + CHUNKED + b"\r\n0\r\nContent-Length: 1\r\n\r\n",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_backends_bad_answer_is_502(name: str) -> None:
    """Whatever a client could read as two answers, or as another one, does not reach it."""
    stream = ANSWERS[name]
    at_once = responses([stream])
    judge(at_once, 0, 502)
    assert responses(singly(stream)) == at_once
