# SPDX-License-Identifier: Apache-2.0
"""Any bytes are the same messages or the same error whether they come whole, one at a time or in
pieces, and what is accepted is read again, once sent on, as a message with the same end.

The first byte chooses the side (even for a client's requests, odd for a backend's answers) and
the size of the pieces.
"""

from __future__ import annotations

from tests.support.http_talk import requests, responses, singly
from xdp_router.gateway.http_forward import request_frame, response_to_client
from xdp_router.gateway.http_head import (
    Framing,
    HeadLimits,
    RequestHead,
    read_request,
    read_response,
)

# Small, so that a fuzzer reaches them.
LIMITS = HeadLimits(head_bytes=512, headers=12, target_bytes=64)
# What a head grows by when it is sent on is not its sender's fault.
WIDE = HeadLimits(head_bytes=4096, headers=40, target_bytes=128)
SEEDS = (
    b"\0" + b"GET /a?b HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    b"\0" + b"POST http://h:1/p HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    b"\0" + b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    b"\0" + b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"\1" + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"\1" + b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
    b"\3" + b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"\0" + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
WORDS = (
    b"\r\n", b"Host: ", b"Content-Length: ", b"Transfer-Encoding: chunked", b"Connection: close",
    b" HTTP/1.1", b"HTTP/1.1 ", b"Expect: 100-continue",
)  # fmt: skip


def check(data: bytes) -> None:
    """Check one input; any exception is a finding."""
    if not data:
        return
    stream = data[1:]
    size = 2 + (data[0] >> 2)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    if data[0] & 1:
        method = b"HEAD" if data[0] & 2 else b"GET"
        whole = responses([stream], [method], LIMITS)
        assert whole == responses(singly(stream), [method], LIMITS)
        assert whole == responses(pieces, [method], LIMITS)
    else:
        method = b""
        whole = requests([stream], LIMITS)
        assert whole == requests(singly(stream), LIMITS)
        assert whole == requests(pieces, LIMITS)
    for message in whole.messages:
        head = message.head
        assert head.raw in stream
        assert (head.framing is Framing.LENGTH) or head.length == 0
        if isinstance(head, RequestHead):
            check_request(head)
        else:
            again = read_response(response_to_client(head, close=False), method, WIDE)
            assert (again.status, again.reason) == (head.status, head.reason)
            assert (again.framing, again.length) == (head.framing, head.length)


def check_request(head: RequestHead) -> None:
    """Check that a backend reads the request as it was read here."""
    sent = request_frame(head, host=None, proto=b"http").filled(b"192.0.2.1")
    again = read_request(sent, WIDE)
    assert again.target[:1] == b"/" or again.target == b"*"
    assert (again.method, again.path, again.version) == (head.method, head.path, head.version)
    assert again.host == head.host
    assert (again.framing, again.length) == (head.framing, head.length)
    assert (again.upgrade, again.expects_continue) == (head.upgrade, head.expects_continue)
