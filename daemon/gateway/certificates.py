# SPDX-License-Identifier: Apache-2.0
"""Where TLS ends at a listener: its certificate and key, with settings that are safe today.

The supervisor reads the files, once for each load of the configuration, and keeps what they said:
a worker that is started later gets that, whatever has become of the files.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig, Listener

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption (RFC 9325); 1.3 has no others."""
PEM_MOST: Final = 1 << 20
"""Bytes of a file; a chain has a few thousand."""


class CertificateError(XdpRouterError):
    """A certificate or key cannot be used; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Pem:
    """What the two files said. Not to be seen in any message: one of them is secret."""

    chain: str = field(repr=False)
    key: str = field(repr=False)


Pems = Mapping[str, Pem]
"""By listeners' names; who has no certificate is not in it."""


def read_certificates(config: GatewayConfig) -> Pems:
    """What all files say now, when it can be used. Raises CertificateError."""
    found: dict[str, Pem] = {}
    for listener in config.listeners:
        certificate = listener.certificate
        if certificate is not None:
            found[listener.name] = Pem(
                _read(listener, "certificate", certificate.chain),
                _read(listener, "key", certificate.key),
            )
            server_context(listener, found[listener.name])
    return found


def server_context(listener: Listener, pem: Pem) -> ssl.SSLContext:
    """For a listener's connections. Raises CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        with _as_file(pem.chain) as chain, _as_file(pem.key) as key:
            # A key that is encrypted would be asked for at the terminal: nobody sits there.
            context.load_cert_chain(chain, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        files = listener.certificate
        assert files is not None  # or there was nothing to read
        raise CertificateError(
            f"listener {listener.name!r}: tls: {files.chain} and {files.key} do not "
            f"make a certificate with its key ({_reason(error)}): both are PEM, the key is the "
            "certificate's and not encrypted, the chain begins with the server's own"
        ) from error
    return context


def _read(listener: Listener, key: str, path: str) -> str:
    where = f"listener {listener.name!r}: tls.{key}: {path}"
    try:
        with Path(path).open("rb") as file:
            data = file.read(PEM_MOST + 1)
    except OSError as error:
        raise CertificateError(f"{where} cannot be read: {error.strerror}") from error
    if len(data) > PEM_MOST:
        raise CertificateError(f"{where} has more than {PEM_MOST} bytes: expected PEM")
    # Between its parts PEM may have words of any encoding; what is encoded itself is ASCII.
    return data.decode("latin-1")


@contextlib.contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """A path to be read from, for OpenSSL, which takes nothing else; it is in memory alone."""
    fd = os.memfd_create("pem")
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(pem.encode("latin-1"))
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)


def _no_password() -> str:
    raise ValueError("the key is encrypted")
