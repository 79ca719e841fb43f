# SPDX-License-Identifier: Apache-2.0
"""What OpenSSL makes of a ClientHello: judged by a server that is asked for the name only."""

from __future__ import annotations

import ssl
import sys
import warnings
from dataclasses import dataclass
from functools import cache

# What OpenSSL says when a hello can be read and only its versions do not suit.
OTHER_VERSION = frozenset(
    {"UNSUPPORTED_PROTOCOL", "INAPPROPRIATE_FALLBACK", "VERSION_TOO_LOW", "BAD_LEGACY_VERSION"}
)


@dataclass(frozen=True)
class Verdict:
    """``accepted`` with the name that was sent; or refused with ``reason``; or neither: more."""

    accepted: bool
    name: str | None = None
    reason: str | None = None


@cache
def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        # Old versions are deprecated, and hellos of old clients are what is wanted here.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def judge(data: bytes) -> Verdict:
    """Give the bytes to a server; its callback for the name comes once the hello was read."""
    names: list[str | None] = []

    def asked(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        names.append(name)
        return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)

    context = _context()
    context.sni_callback = asked
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(data)
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    before = sys.unraisablehook
    # Python does not call back for a name beyond ASCII, and complains where nobody can catch it.
    sys.unraisablehook = lambda _: None
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        return Verdict(False)
    except ssl.SSLError as error:
        if names:
            return Verdict(True, names[0])
        return Verdict(False, reason=error.reason or str(error))
    finally:
        sys.unraisablehook = before
    raise AssertionError("a handshake without a certificate cannot end well")


def client_hello(context: ssl.SSLContext, server_name: str | None) -> bytes:
    """Return what a client of this context sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()
