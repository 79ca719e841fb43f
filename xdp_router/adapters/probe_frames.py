# SPDX-License-Identifier: Apache-2.0
"""Frames of probes that are no SYNs: Ethernet and IP, of either family, before a message."""

from __future__ import annotations

from xdp_router.core.model import Backend, ProbeKind
from xdp_router.core.probe_kinds import Message, message_of, probed_endpoint

from .ip_header import ethertype, ip_header
from .netlink import Path
from .probe_socket import ProbeTarget, Target


class MessageTarget:
    """One backend as the destination of messages. Make a new one when the path changes."""

    __slots__ = ("_head", "_message", "ifindex", "path")

    def __init__(self, path: Path, addr: int, message: Message) -> None:
        self.path = path
        self.ifindex = path.ifindex
        self._message = message
        header = ip_header(path.source_addr, addr, message.protocol, message.length)
        self._head = path.ethernet_header(ethertype(addr)) + header

    def probe(self, probe_port: int, seq: int) -> bytes:
        """The finished frame of one probe."""
        return self._head + self._message.build(probe_port, seq)


def probe_target(path: Path, backend: Backend) -> Target:
    """A backend as the destination of probes of its kind, which is none of connections."""
    to = probed_endpoint(backend)
    if backend.probe.kind is ProbeKind.SYN:
        return ProbeTarget(path, to.addr, to.port)
    return MessageTarget(path, to.addr, message_of(backend, path.source_addr))
