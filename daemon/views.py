# SPDX-License-Identifier: Apache-2.0
"""What the control socket answers: the daemon's state as plain data (DESIGN: CLI contract)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from xdp_router import __version__
from xdp_router.adapters.control import CommandError
from xdp_router.core import abi
from xdp_router.core.address import (
    Prefix,
    format_endpoint,
    format_mac,
    format_ports,
    is_ipv6,
    parse_client,
    protocol_name,
)
from xdp_router.core.config import RouterConfig
from xdp_router.core.held import is_udp
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Decision,
    Endpoint,
    Probe,
    ProbeAnswer,
    Service,
    Unfit,
)
from xdp_router.core.probe_kinds import probe_noun
from xdp_router.core.quantile import percentile

from .event_views import EventViews, NameViews
from .field_view import first_byte_view, overhead_of, retention_of
from .flood_view import flood_view
from .health_view import health_totals, health_view
from .score_view import (
    candidates_compared,
    candidates_of,
    compared_view,
    score_view,
    snapshot_view,
)
from .stateless import stateless_view

if TYPE_CHECKING:
    from .app import Router

_NS_PER_US = 1000
_FLOW_TABLES = {4: "flow_table", 6: "flow_table6"}
_MAX_CLIENTS = 2000
_SLICE = 100
"""Clients that are looked up before the event loop has its turn: about 1 ms."""
_SAMPLE = 10_000
"""Newest decisions that percentiles are taken of."""


def handlers(router: Router) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Handlers of the control socket, by command."""
    views = Views(router)
    return {
        "status": views.status,
        "services": views.services,
        "backends": views.backends,
        "explain": views.explain,
        "decisions": views.decisions,
        "events": EventViews(router).events,
        "names": NameViews(router).names,
    }


class Views:
    """Reads a router; changes nothing."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._config: RouterConfig | None = None
        self._services: dict[int, Service] = {}
        self._backends: dict[int, Backend] = {}
        """By id; those that were removed stay until their ids are others', for ``explain``."""

    def _look_again(self) -> RouterConfig:
        config = self._router.config
        if config is not self._config:
            self._config = config
            self._services |= {service.id: service for service in config.services}
            self._backends |= {
                backend.id: backend for service in config.services for backend in service.backends
            }
        return config

    def status(self, _args: Mapping[str, Any]) -> dict[str, Any]:
        """One look at everything."""
        router = self._router
        engine = router.engine
        newest = islice(engine.decisions, _SAMPLE)
        fppl = [decision.fppl_ns for decision in newest if decision.fppl_ns]
        return {
            "ready": router.ready,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - router.started_s, 3),
            "interfaces": [
                {
                    "name": each.name,
                    "ifindex": each.ifindex,
                    "mode": each.mode.value if each.mode else "",
                    "ready": router.ready and each.mode is not None,
                    "reason": each.reason,
                    **router.handoff.view(each.ifindex),
                }
                for each in router.attachments
            ],
            "loader": router.plane.loader,
            "generation": router.state.generation,
            "kernel_handoff": router.config.settings.kernel_handoff.name.lower(),
            "pins": str(router.plane.pin_dir or ""),
            "services": len(router.config.services),
            "backends": sum(len(service.backends) for service in router.config.services),
            "backends_up": len(engine.backends.reached),
            "backends_draining": len(engine.backends.draining),
            **health_totals(router),
            "loop_late_max_ms": round(router.loop.late_max_ns / 1e6, 1),
            "hash_tables_waiting": engine.tables_waiting,
            "open_decisions": engine.open_decisions,
            "flows": router.ager.flows,
            "flow_entries": {
                _FLOW_TABLES[family]: count for family, count in router.ager.entries_of.items()
            },
            "flows_stateless": router.ager.stateless,
            **router.service_watch.view(),
            "decisions_total": router.decisions.total,
            "engine": {
                **engine.counters,
                **router.executor.counters,
                **router.sender.counters,
                "bad_records": router.loop.bad_records,
                "loop_faults": router.loop.faults,
                "netlink_overruns": router.watcher.overruns if router.watcher else 0,
            },
            "fppl_us": {
                "p50": round(percentile(fppl, 0.50) / _NS_PER_US, 1),
                "p99": round(percentile(fppl, 0.99) / _NS_PER_US, 1),
                "count": len(fppl),
            },
            "flow_binding_retention": rounded(retention_of(router.state.maps.counters.read())),
            "probe_overhead": rounded(overhead_of(router)),
            "event_readers": router.feed.readers,
            "xdp_program_id": router.program_id,
        }

    def services(self, _args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """All services."""
        totals = self._router.decisions.by_service
        config = self._look_again()
        return (
            {
                "name": service.name,
                "address": format_endpoint(service.endpoint),
                "protocol": protocol_name(service.endpoint.proto),
                "mode": "gateway" if service.listener else self._mode(service),
                "forwarding": "none" if service.listener else service.forwarding.name.lower(),
                "gateway": self._router.steering.view(service),
                "fallback": self._backend_name(service.fallback),
                "deadline_ms": service.deadline_ns / 1e6,
                "backends": [backend.name for backend in service.backends],
                "decisions": totals.get(service.id, 0),
                "open": self._open(service),
                "connections": self._router.state.maps.usage.open(service.id),
                "max_connections": service.max_connections or None,
                "except_ports": [format_ports(ports) for ports in service.except_ports],
                "affinity": "source" if service.affinity_ns else "none",
                "affinity_time_s": service.affinity_ns / 1e9 or None,
                "quic": service.quic,
                "icmp_echo": service.icmp_echo,
                "allow": sum(not prefix.denied for prefix in service.sources),
                "deny": sum(prefix.denied for prefix in service.sources),
                "tunnel_source": _tunnel_source(service),
                "stateless": stateless_view(self._router.state.maps, service),
                "flood": flood_view(self._router, service),
                "first_byte": first_byte_view(self._router, service),
            }
            for service in config.services
            if self._router.config is config or self._is_there(service)
        )

    def _open(self, service: Service) -> int:
        """Established flows of which nobody has said goodbye, those of removed backends too."""
        router = self._router
        gone = (each for each in router.retirement.backends if each.service == service.id)
        loads = router.state.maps.backend_loads
        return sum(loads.open(each.id) for each in (*service.backends, *gone))

    def _mode(self, service: Service) -> str:
        return self._router.engine.roster.mode_of(service.id).name.lower()

    def _is_there(self, service: Service) -> bool:
        """Whether a service is still one: rows are sent while others may change things."""
        return any(each.id == service.id for each in self._router.config.services)

    def backends(self, _args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """All backends: usable or why not, how they answer."""
        router = self._router
        config = self._look_again()
        for backend in [each for service in config.services for each in service.backends]:
            if router.config is not config and backend.id not in router.engine.roster.service_of:
                continue
            path, reason = router.network.paths.get(backend.id, (None, "not looked at yet"))
            stats = router.engine.backend_stats(backend.id)
            rtt_us = round(stats.last_rtt_ns / _NS_PER_US, 1) if stats.last_rtt_ns else None
            yield {
                "name": backend.name,
                "service": self._services[backend.service].name,
                "address": format_endpoint(backend.endpoint),
                "up": router.engine.backends.is_reached(backend.id),
                "draining": router.engine.backends.is_draining(backend.id),
                "reason": reason,
                "path": _path_kind(backend.id in router.network.by_kernel, path is not None),
                "interface": router.network.interface_name(path.ifindex) if path else "",
                "next_hop_mac": format_mac(path.dmac) if path else "",
                "weight": backend.weight,
                "probe": backend.probe.name,
                "rtt_us": rtt_us,
                "wins": stats.wins,
                "answers": stats.answers,
                "losses": stats.losses,
                "health": health_view(router.engine, backend),
                **score_view(router, backend),
            }

    async def decisions(self, args: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Candidates of the newest decision of each of ``clients``, ``addr:port/protocol``."""
        self._look_again()
        clients = args.get("clients")
        if not isinstance(clients, list) or len(clients) > _MAX_CLIENTS:
            raise CommandError(
                f"clients: expected a list of up to {_MAX_CLIENTS} ADDR:PORT[/PROTOCOL]"
            )
        found = {}
        for number, client in enumerate(clients, 1):
            if not number % _SLICE:
                await asyncio.sleep(0)
            decision = self._find(str(client))
            if decision is not None:
                found[str(client)] = self._candidates(decision)
        return found

    def explain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The time line of a client's newest decision."""
        self._look_again()
        client = str(args.get("client", ""))
        decision = self._find(client)
        if decision is None:
            raise CommandError(
                f"no decision about {client} is kept: the newest "
                f"{self._router.config.settings.decisions_kept} decided by the daemon are; "
                "'xdp-router flows' shows mode and reason of every live flow"
            )
        service = self._services.get(decision.service)
        if service is None:
            raise CommandError(f"the service of {client} was removed, and nothing is kept of it")
        key = decision.key
        return {
            "client": format_endpoint(Endpoint(key.client_addr, key.client_port, key.proto)),
            "service": service.name,
            "protocol": protocol_name(key.proto),
            "backend": self._backend_name(decision.backend),
            "mode": decision.mode.name.lower(),
            "reason": decision.reason.name.lower(),
            "source_address": self._source(decision),
            "candidates": self._candidates(decision),
            "snapshot": snapshot_view(decision, self._backend_name),
            "compared": compared_view(decision, self._backends, self._backend_name),
            "timeline": self._timeline(decision, service),
        }

    def _find(self, client: str) -> Decision | None:
        try:
            endpoint = parse_client(client)
        except ValueError as error:
            raise CommandError(str(error)) from error
        return self._router.engine.decisions.newest_of_client(
            endpoint.addr, endpoint.port, endpoint.proto
        )

    def _backend_name(self, backend: int) -> str:
        if backend == NO_BACKEND:
            return ""
        known = self._backends.get(backend)
        return known.name if known is not None else f"backend {backend}"  # a retired one

    def _candidates(self, decision: Decision) -> list[dict[str, Any]]:
        if decision.snapshot is not None:
            return candidates_of(decision.snapshot, self._backend_name)
        if decision.compared:
            return candidates_compared(decision, self._backend_name)
        return [
            {
                "backend": self._backend_name(probe.backend),
                "rtt_us": round(probe.rtt_ns / _NS_PER_US, 1) if probe.rtt_ns else None,
                "answer": probe.answer.name.lower(),
                "tied": probe.tied,
            }
            for probe in decision.probes
        ]

    def _timeline(self, decision: Decision, service: Service) -> list[dict[str, Any]]:
        """What happened when, in microseconds since the first packet was seen."""
        start_ns = decision.seen_ns
        # Otherwise XDP decided in the same pass through the program.
        held = decision.decided_ns != start_ns
        seen = f"first packet of {service.name}" + (", held by XDP" if held else "")
        line: list[tuple[float, str, str]] = [(0.0, "seen", seen)]

        def at(instant_ns: int) -> float:
            return round((instant_ns - start_ns) / _NS_PER_US, 1)

        for backend, why in decision.unfit:
            chosen = ", chosen as the last resort" if backend == decision.backend else ""
            text = f"{self._backend_name(backend)} {_UNFIT[why]}{chosen}"
            line.append((0.0, "unfit", text))
        if decision.snapshot is not None:
            count = len(decision.snapshot.scored)
            text = f"the table's newest measurement, of {count} backends"
            line.append((at(decision.snapshot.made_ns), "snapshot", text))
        for probe in decision.probes:
            name = self._backend_name(probe.backend)
            if probe.sent_ns:
                joined = " (race already running)" if probe.sent_ns < start_ns else ""
                known = self._backends.get(probe.backend)
                asked = probe_noun(known.probe if known is not None else Probe())
                line.append((at(probe.sent_ns), "probe", f"{asked} to {name}{joined}"))
            if probe.answered_ns:
                answer = _ANSWERS[probe.answer]
                rtt = probe.rtt_ns / _NS_PER_US
                text = f"{name}: {answer}, RTT {rtt:.1f} us"
                line.append((at(probe.answered_ns), "answer", text))
        tied = [self._backend_name(probe.backend) for probe in decision.probes if probe.tied]
        weighed = f", a tie of {', '.join(tied)} that weights decided" if tied else ""
        winner = self._backend_name(decision.backend)
        to = winner or "nobody (refused)"
        udp = is_udp(decision.key)
        refusal = "ICMP port unreachable" if udp else "RST"
        out = f"out to {winner}" if winner else f"{refusal} to the client"
        line.append(
            (
                at(decision.decided_ns),
                "decided",
                f"{to}, mode {decision.mode.name.lower()}, reason {decision.reason.name.lower()}"
                + weighed,
            )
        )
        if decision.fppl_ns:
            what = "re-injected" if decision.reinjected_ns else "forwarded"
            line.append((round(decision.fppl_ns / _NS_PER_US, 1), what, out))
        elif decision.reinjected_ns:
            line.append((at(decision.reinjected_ns), "re-injected", out))
        if decision.synack_us:
            answer = "first answer" if udp else "SYN-ACK"
            line.append((float(decision.synack_us), answer, f"of {to}"))
        if decision.established_ns:
            proof = "the client spoke again" if udp else "handshake verified"
            line.append((at(decision.established_ns), "established", proof))
        request_us, reply_us = self._first_data(decision)
        if request_us:
            line.append((float(request_us), "first data", "from the client"))
        if reply_us:
            line.append((float(reply_us), "first data", f"from {to}"))
        if decision.closed_ns:
            line.append((at(decision.closed_ns), "closed", "removed after its linger or idle time"))
        line.sort(key=lambda entry: entry[0])
        return [{"t_us": t_us, "what": what, "detail": detail} for t_us, what, detail in line]

    def _source(self, decision: Decision) -> str:
        """The address and port that the backend knows a fullnat client by, while that is known."""
        tables = self._router.state.maps.flows_of(decision.key.service_addr)
        entry: abi.FlowEntryValue | abi.PendingValue
        raw = tables.flows.read(abi.pack_flow_key(decision.key))
        if raw is not None:
            entry, ours = abi.unpack_flow_entry(raw), abi.FLOW_FULLNAT
        else:
            raw = tables.pending.read(abi.pack_flow_key(decision.key, abi.Kind.FORWARD))
            if raw is None:
                return ""
            entry, ours = abi.unpack_pending(raw), abi.PENDING_FULLNAT
        if not entry.flags & ours or entry.seen_ns != decision.seen_ns:
            return ""
        return format_endpoint(Endpoint(entry.new_saddr, entry.new_sport, decision.key.proto))

    def _first_data(self, decision: Decision) -> tuple[int, int]:
        """First payload of each direction, from the kernel's entries while they live."""
        flows = self._router.state.maps.flows_of(decision.key.service_addr).flows
        key = abi.pack_flow_key(decision.key)
        raw = flows.read(key)
        if raw is None:
            return 0, decision.first_data_us
        forward = abi.unpack_flow_entry(raw)
        if forward.seen_ns != decision.seen_ns:  # a later flow of the same ports
            return 0, decision.first_data_us
        raw = flows.read(abi.peer_key(key, raw))
        reply_us = abi.unpack_flow_entry(raw).first_data_us if raw is not None else 0
        return forward.first_data_us, reply_us


def rounded(share: float | None) -> float | None:
    """As ``status`` shows it."""
    return None if share is None else round(share, 6)


def _tunnel_source(service: Service) -> str:
    """The addresses that outer headers have by turns, as a prefix; empty: not chosen."""
    addr = service.tunnel_source
    if not addr:
        return ""
    length = (128 if is_ipv6(addr) else 32) - service.tunnel_bits
    return str(Prefix(addr, length, is_ipv6(addr)))


def _path_kind(by_kernel: bool, known: bool) -> str:
    """Who sends a backend's packets on their way."""
    return "kernel" if by_kernel else "xdp" if known else "none"


_ANSWERS = {
    ProbeAnswer.LOST: "no answer",
    ProbeAnswer.SYNACK: "SYN-ACK",
    ProbeAnswer.RST: "refused by RST",
    ProbeAnswer.UNREACHABLE: "unreachable (ICMP)",
    ProbeAnswer.ECHO: "echo reply",
    ProbeAnswer.STUN: "STUN answer",
    ProbeAnswer.DATAGRAM: "datagram",
    ProbeAnswer.CONNECTED: "connection",
    ProbeAnswer.HTTP: "HTTP answer",
    ProbeAnswer.UNEXPECTED: "another answer than expected",
}

_UNFIT = {
    Unfit.CLIENT_ITSELF: "is the client itself",
    Unfit.BESIDE_CLIENT: "is in the client's subnet: it would answer past the router",
}
