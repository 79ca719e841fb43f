# SPDX-License-Identifier: Apache-2.0
"""A QUIC server that answers each stream at its end by the line of ``hash_server``.

The one module that needs aioquic, which only the tests bring along; it is imported by a backend's
own process alone. The certificate is made at start, for nobody to trust.
"""

from __future__ import annotations

import datetime
import hashlib

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .hash_server import receipt

ALPN = "xr-hash"
_VALID = datetime.timedelta(days=2)


class HashStreams(QuicConnectionProtocol):
    """One QUIC connection; ``name`` is set by its server."""

    name = ""

    def quic_event_received(self, event: QuicEvent) -> None:
        if not isinstance(event, StreamDataReceived):
            return
        streams = self.__dict__.setdefault("_hashes", {})
        digest, count = streams.pop(event.stream_id, (hashlib.sha256(), 0))
        digest.update(event.data)
        count += len(event.data)
        if not event.end_stream:
            streams[event.stream_id] = digest, count
            return
        line = receipt(self.name, digest.hexdigest(), count)
        self._quic.send_stream_data(event.stream_id, line, end_stream=True)
        self.transmit()


def server(name: str) -> QuicServer:
    """A server for a ``UdpEndpoint``."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[ALPN])
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    configuration.private_key = key
    configuration.certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    protocol = type("NamedHashStreams", (HashStreams,), {"name": name})
    return QuicServer(configuration=configuration, create_protocol=protocol)
