# SPDX-License-Identifier: Apache-2.0
"""ClientHellos: values, not enough yet, or the error that names the fault."""

from __future__ import annotations

from tests.support.hello_bytes import alpn, hello, record, server_name, supported_versions
from xdp_router.gateway.tls_hello import ClientHello, HelloParser


def test_a_hello_says_who_is_asked_for() -> None:
    """Server name, protocols, versions and size."""
    sent = record(
        hello(
            server_name(b"api.example.com"),
            alpn(b"h2", b"http/1.1"),
            supported_versions(0x0304, 0x0303),
        )
    )
    assert HelloParser().feed(sent) == ClientHello(
        "api.example.com", ("h2", "http/1.1"), (0x0304, 0x0303), len(sent)
    )
