# SPDX-License-Identifier: Apache-2.0
"""Where TLS ends at a listener: its certificate and key, with settings that are safe today."""

from __future__ import annotations

import ssl
from pathlib import Path

from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig, Listener

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption (RFC 9325); 1.3 has no others."""


class CertificateError(XdpRouterError):
    """A certificate or key cannot be used; the text says which, and why."""


def server_context(listener: Listener) -> ssl.SSLContext | None:
    """For a listener's connections; None: they are not encrypted. Raises CertificateError."""
    certificate = listener.certificate
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    for key, path in (("certificate", certificate.chain), ("key", certificate.key)):
        _require_readable(listener, key, path)
    try:
        # A key that is encrypted would be asked for at the terminal: nobody sits there.
        context.load_cert_chain(certificate.chain, certificate.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"listener {listener.name!r}: tls: {certificate.chain} and {certificate.key} do not "
            f"make a certificate with its key ({_reason(error)}): both are PEM, the key is the "
            "certificate's and not encrypted, the chain begins with the server's own"
        ) from error
    return context


def check_certificates(config: GatewayConfig) -> None:
    """Whether all of them can be used. Raises CertificateError."""
    for listener in config.listeners:
        server_context(listener)


def _require_readable(listener: Listener, key: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise CertificateError(
            f"listener {listener.name!r}: tls.{key}: {path} cannot be read: {error.strerror}"
        ) from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)


def _no_password() -> str:
    raise ValueError("the key is encrypted")
