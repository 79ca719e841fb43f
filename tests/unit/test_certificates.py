# SPDX-License-Identifier: Apache-2.0
"""Where TLS ends: what is offered, and what is said of files that cannot be used."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from xdp_router.core.listeners import (
    Certificate,
    GatewayConfig,
    Listener,
    ListenerKind,
    SocketAddress,
)
from xdp_router.daemon.gateway.certificates import (
    CertificateError,
    Pem,
    read_certificates,
    server_context,
)


def listener(chain: Path | str, key: Path | str) -> Listener:
    """With such a certificate."""
    plain = Listener("web", ListenerKind.HTTP, SocketAddress("127.0.0.1", 443), ())
    return replace(plain, certificate=Certificate(str(chain), str(key)))


def context_of(chain: Path, key: Path) -> ssl.SSLContext:
    """Of such a listener, as a worker makes it."""
    pems = read_certificates(GatewayConfig((listener(chain, key),)))
    return server_context(listener(chain, key), pems["web"])


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Both sides in memory; the client's. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="a.test")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    return ours


def client(chain: Path) -> ssl.SSLContext:
    """That trusts the certificate."""
    context = ssl.create_default_context(cafile=str(chain))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def test_a_good_one(tmp_path: Path) -> None:
    """TLS 1.3, and 1.2 with forward secrecy; HTTP/1.1 is what is spoken."""
    chain, key = write_certificate(tmp_path, "a.test")
    context = context_of(chain, key)
    done = handshake(context, client(chain))
    assert (done.version(), done.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    older = client(chain)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    done = handshake(context, older)
    cipher = done.cipher()
    assert done.version() == "TLSv1.2"
    assert cipher is not None
    assert cipher[0].startswith("ECDHE-")


def test_what_is_too_old(tmp_path: Path) -> None:
    """No ciphers without forward secrecy, no TLS 1.1."""
    chain, key = write_certificate(tmp_path, "a.test")
    context = context_of(chain, key)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert all(
        each["name"].startswith(("ECDHE", "TLS_")) and "CBC" not in each["name"]
        for each in context.get_ciphers()
    )


def test_none() -> None:
    """Without a certificate nothing is encrypted."""
    plain = Listener("web", ListenerKind.HTTP, SocketAddress("127.0.0.1", 443), ())
    assert not read_certificates(GatewayConfig((plain,)))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """The listener and the file are named; nobody is asked for a password."""
    chain, key = write_certificate(tmp_path, "a.test")
    _, other = write_certificate(tmp_path, "b.test")
    _, locked = write_certificate(tmp_path, "c.test", password=b"secret")
    (tmp_path / "empty").write_text("")
    for files, words in (
        ((tmp_path / "no", key), "'web': tls.certificate: .*no cannot be read: No such file"),
        ((chain, tmp_path), "tls.key: .* cannot be read: Is a directory"),
        ((chain, other), "b.test.key do not make a certificate with its key .key values mismatch"),
        ((chain, locked), "encrypted"),
        ((tmp_path / "empty", key), "empty and .* do not make a certificate"),
        ((chain, chain), "do not make a certificate"),
    ):
        with pytest.raises(CertificateError, match=words):
            read_certificates(GatewayConfig((listener(*files),)))


def test_what_was_read_is_enough(tmp_path: Path) -> None:
    """The files may be gone when a context is made; a key is in no message, and in no file."""
    chain, key = write_certificate(tmp_path, "a.test")
    secret = key.read_text()
    config = GatewayConfig((listener(chain, key),))
    pem = read_certificates(config)["web"]
    authority = client(chain)
    chain.unlink()
    key.write_text("garbage")
    assert handshake(server_context(config.listeners[0], pem), authority).version() == "TLSv1.3"
    assert secret.splitlines()[1] not in f"{pem!r} {pem}"
    with pytest.raises(CertificateError) as caught:
        server_context(config.listeners[0], Pem(secret, secret))
    assert secret.splitlines()[1] not in str(caught.value)


def test_a_file_without_end(tmp_path: Path) -> None:
    """Is not read to the end."""
    chain, _ = write_certificate(tmp_path, "a.test")
    with pytest.raises(CertificateError, match="/dev/zero has more than 1048576 bytes"):
        read_certificates(GatewayConfig((listener(chain, "/dev/zero"),)))
