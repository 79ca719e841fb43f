# SPDX-License-Identifier: Apache-2.0
"""Ports that programs of a host listen on, with real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters.listeners import in_range, listening

LOCAL, OTHER = 0x7F000001, 0x7F000002
TCP, UDP = 6, 17


@in_fresh_netns
def test_listeners_of_an_address(tmp_path: Path) -> None:
    """At it or at any address; not at another one, and not of another protocol."""
    with (
        socket.create_server(("127.0.0.1", 1001)),
        socket.create_server(("127.0.0.2", 1002)),
        socket.create_server(("0.0.0.0", 1003)),
        socket.create_server(("::", 1004), family=socket.AF_INET6),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 1005))
        assert listening(LOCAL, TCP) == [1001, 1003, 1004]
        assert listening(OTHER, TCP) == [1002, 1003, 1004]
        assert listening(0x20010DB8 << 96 | 1, TCP) == [1004]
        assert listening(LOCAL, UDP) == [1005]
        assert listening(LOCAL, 1) == []
        assert in_range(1002, 1005) == [("tcp", 1002), ("tcp", 1003), ("tcp", 1004), ("udp", 1005)]
    assert listening(LOCAL, TCP, tmp_path) == []
