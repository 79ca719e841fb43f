# SPDX-License-Identifier: Apache-2.0
"""Which conversation shows each row of the manual's table of methods."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.every_method import Cell, ways_of
from tests.support.method_conversations import (
    keep_rules_tcp,
    keep_rules_udp,
    measure_tcp,
    measure_udp,
    outgrow_budget,
    speak_in_fragments,
    speak_quic,
    speak_stun,
    speak_tcp,
    speak_udp,
    speak_wide_tcp,
)
from tests.support.method_errors import hear_of_closed_port, hear_of_last_hop, hear_pings
from tests.support.method_table import works
from xdp_router.lab.spec import Topology

ROWS: dict[str, dict[str, Callable[[Cell], None]]] = {
    "TCP": {"tcp": speak_tcp, "iperf-tcp": measure_tcp},
    "UDP": {"udp": speak_udp, "iperf-udp": measure_udp},
    "QUIC": {"quic": speak_quic},
    "STUN": {"stun": speak_stun},
    "many ports, kept by the backend": {"wide-tcp": speak_wide_tcp, "wide-udp": speak_udp},
    "many ports, one of the backend": {"mapped-tcp": speak_wide_tcp, "mapped-udp": speak_udp},
    "IP fragments": {"closed": speak_in_fragments},
    "unreachable ports are told": {"closed": hear_of_closed_port},
    "traceroute": {"udp": hear_of_last_hop},
    "pings of the service": {"tcp": hear_pings},
    "stateless services": {"stateless": outgrow_budget},
    "affinity, limits, source rules": {"ruled-tcp": keep_rules_tcp, "ruled-udp": keep_rules_udp},
}
"""By rows of the manual's table: what is done with which sort of service."""


def cells(topology: Topology) -> list[tuple[str, str, str]]:
    """(row, sort of service, way) of all that the manual says works, and can be tried there."""
    return [
        (row, sort, way.name)
        for row, sorts in ROWS.items()
        for sort in sorts
        for way in ways_of(topology)
        if works(row, way.method)
    ]
