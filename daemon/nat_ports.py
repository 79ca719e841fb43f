# SPDX-License-Identifier: Apache-2.0
"""Source ports of fullnat, as the daemon takes them. The rule is that of ``ebpf/lib/nat_ports.h``.

A port is had by inserting REPLY, which its tuple is the key of: nobody else has it then.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from xdp_router.adapters.bpf_maps import FlowTables
from xdp_router.core import abi
from xdp_router.core.address import format_addr
from xdp_router.core.commands import WriteBinding
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Backend, Endpoint, Forwarding

TRIES = 16
"""Ports that are tried at one backend."""
STEPS_FROM = 4096
"""Ranges from here on are walked in steps that differ from flow to flow: no clusters."""
EVERY_NS = 60_000_000_000
"""One line about a backend without a free port within a minute."""

NO_PORTS = {"nat_port_taken": 0, "nat_ports_exhausted": 0}
"""The counters before anything is counted."""

_log = structlog.get_logger()


class NoFreePort(Exception):
    """Each port that was tried is in use, or rests."""


class InsertFailed(Exception):
    """``pending_flows`` did not take the entry; the text says why."""


class NatPorts:
    """Takes ports ``nat_port_min``..``nat_port_max`` (inclusive) at backends, and counts."""

    def __init__(
        self,
        config: RouterConfig,
        source: Callable[[int], int],
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        """``source``: our address towards a backend, by id."""
        self.change(config)
        self._source = source
        self.counters = dict(NO_PORTS)
        self._random_bits = random_bits
        self._told_ns: dict[int, int] = {}

    def change(self, config: RouterConfig) -> None:
        """Take ports for the services of this configuration from now on."""
        settings = config.settings
        self._first, self._last = settings.nat_port_min, settings.nat_port_max
        self._services = {
            each.id for each in config.services if each.forwarding is Forwarding.FULLNAT
        }

    def has(self, backend: Backend) -> bool:
        """Whether flows to a backend get a source of ours."""
        return backend.service in self._services

    def take(
        self, tables: FlowTables, command: WriteBinding, backend: Backend, vlan: int = 0
    ) -> tuple[bytes, Endpoint]:
        """Insert REPLY with a free port: its key, and the source that the flow gets.

        ``vlan``: as for ``abi.pack_reply_pending``.

        Raises NoFreePort or InsertFailed, and AbiError or BpfError.
        """
        first, ours = command.first, self._source(backend.id)
        for port in self._some():
            source = Endpoint(ours, port, first.key.proto)
            key, value = abi.pack_reply_pending(
                first, backend, command.mode, command.reason, source, vlan
            )
            code = tables.pending.insert_noexist(key, value)
            if not code:
                # Its flow's REPLY may have aged out of pending_flows long ago, or be one of a
                # flood: looked for after ours is there, see ebpf/lib/flood.h.
                if tables.flows.read(abi.without_kind(key)) is None and (
                    tables.flood is None or tables.flood.read(key) is None
                ):
                    return key, source
                tables.pending.delete(key)
            elif code != errno.EEXIST:
                raise InsertFailed(os.strerror(code))
            self.counters["nat_port_taken"] += 1
        self.counters["nat_ports_exhausted"] += 1
        self._tell(backend, ours)
        raise NoFreePort

    def _some(self) -> Iterator[int]:
        size = self._last - self._first + 1
        random = self._random_bits(32)
        step = random >> 24 | 1 if size >= STEPS_FROM else 1
        for turn in range(min(TRIES, size)):
            yield self._first + (random + turn * step) % size

    def _tell(self, backend: Backend, ours: int) -> None:
        now_ns = time.monotonic_ns()
        told_ns = self._told_ns.get(backend.id)
        if told_ns is None or now_ns - told_ns >= EVERY_NS:
            self._told_ns[backend.id] = now_ns
            _log.warning("nat_ports_exhausted", **exhausted(backend, ours, self._first, self._last))


def exhausted(backend: Backend, ours: int, first: int, last: int) -> dict[str, Any]:
    """What the log says about a backend without a free port."""
    return {
        "backend": backend.name,
        "source": format_addr(ours),
        "nat_ports": f"{first}-{last}",
        "reason": f"none of {min(TRIES, last - first + 1)} ports tried is free: a connection has "
        f"one, and {abi.NAT_REST_S} s longer than it lasts",
        "consequence": "the connection goes to another backend, or is refused",
        "mend": "widen nat_ports in [router], or give the service more backends",
    }
