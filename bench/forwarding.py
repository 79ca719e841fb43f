# SPDX-License-Identifier: Apache-2.0
"""Packets a second through the router on veth, against a bare redirect and the kernel's NAT."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from xdp_router.adapters.map_specs import Sizes
from xdp_router.core.abi import format_addr
from xdp_router.core.model import Forwarding
from xdp_router.lab.namespace import Namespace

from .frames import PROTO_TCP
from .plane import Flows, data_plane
from .rows import Options, Row, Table, median, paired, percentile, summary, take_turns
from .traffic import FAMILIES, NAT, Traffic, combinations
from .wire import Wire, wire

FLOWS = (1, 1_000, 100_000)
_OF_BARE = {1: 0.80, 1_000: 0.80, 100_000: 0.35}
_OF_NFTABLES = {1: 5.0, 1_000: 5.0, 100_000: 3.0}

_RULES = f"""
table ip bench {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {format_addr(NAT.service.addr)} tcp dport {NAT.service.port} \
dnat to {format_addr(NAT.backend.addr)}:{NAT.backend.port}
  }}
}}
"""


def nftables(namespace: Namespace, rules: str) -> None:
    """Load rules in a namespace."""

    def body() -> None:
        subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True, timeout=30)

    namespace.run(body)


def round_robin_rules(service: tuple[str, int], backends: Sequence[tuple[str, int]]) -> str:
    """Rules that send new connections to the backends in turn."""
    targets = ", ".join(f"{n} : {host} . {port}" for n, (host, port) in enumerate(backends))
    address, port = service
    return f"""
table ip bench {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {address} tcp dport {port} dnat ip addr . port \
to numgen inc mod {len(backends)} map {{ {targets} }}
  }}
}}
"""


def flow_counts(traffic: Traffic) -> tuple[int, ...]:
    """With how many flows it is measured: other methods differ from nat by what they do to a
    packet, not by what a larger table costs."""
    return FLOWS if traffic.method is Forwarding.NAT else FLOWS[:-1]


@dataclass(slots=True)
class _Lane:
    """What one wire carries, and what has arrived there."""

    wire: Wire
    traffic: Traffic
    flows: int
    shares: list[float] = field(default_factory=list)

    def arm(self, frames: int) -> Callable[[], float]:
        """Packets a second that arrive."""

        def measure() -> float:
            self._aim()
            rate, share = self.wire.rate(frames, self.traffic.family)
            self.shares.append(share)
            return rate

        return measure

    def _aim(self) -> None:
        place = self.wire.place
        self.wire.generators[self.traffic.family].configure(
            self.flows,
            self.traffic.frame(place.client_side, place.client),
            redirect_to=place.backend_ifindex,
            dmac=place.backend,
            smac=place.backend_side,
            arrives=self.traffic.arrives,
        )


def forwarding(options: Options) -> Iterator[Row]:
    """Three routers, each on wires of its own: a bare redirect, this one, the kernel."""
    traffic = combinations()
    with ExitStack() as stack:
        wires = {
            name: stack.enter_context(wire(options.directory, families))
            for name, families in (("bare", FAMILIES), ("router", FAMILIES), ("nftables", (4,)))
        }
        bare, router = wires["bare"], wires["router"]
        bare.attach(bare.router, "client0", bare.ends.programs["bare_redirect"])
        plane = stack.enter_context(data_plane(Sizes(ipv6=True), router.place, traffic))
        for interface in ("client0", "be1"):
            router.attach(router.router, interface, plane.entry)
        nftables(wires["nftables"].router, _RULES)
        for each in traffic:
            flows = Flows(plane.maps, router.place, options.directory, each)
            flows.fill(flow_counts(each)[-1])
            flows.close()
        found: dict[tuple[Traffic, int], _Found] = {}
        for count in FLOWS:
            for family in FAMILIES:
                here = [
                    each for each in traffic if each.family == family and count in flow_counts(each)
                ]
                found |= {(each, count): ratios for each, ratios in _at(
                    options, wires, here, count
                ).items()}  # fmt: skip
            yield from _judged(traffic, found, count)
    yield _by_method(traffic, found)


@dataclass(frozen=True, slots=True)
class _Found:
    """One case: against the other arms of its run, and by itself."""

    of_bare: float
    of_nftables: float | None
    rates: Mapping[str, float]
    values: dict[str, Any]
    arrived: float


def _at(
    options: Options, wires: dict[str, Wire], traffic: Sequence[Traffic], count: int
) -> dict[Traffic, _Found]:
    """All cases of one family and number of flows, arms taking turns."""
    frames = options.pick(150_000, 300_000)
    lanes = {each.name: _Lane(wires["router"], each, count) for each in traffic}
    lanes["bare"] = _Lane(wires["bare"], Traffic(traffic[0].family), count)
    numbers = dict.fromkeys(lanes, frames)
    if traffic[0].family == 4:
        lanes["nftables"] = _Lane(wires["nftables"], NAT, count)
        numbers["nftables"] = frames // 3
    # Entries and caches first: each flow some times, so that conntrack knows them all.
    for name, lane in lanes.items():
        often = 10 if name == "nftables" else 3
        lane.arm(max(20_000, often * count))()
        lane.shares.clear()
    samples = take_turns(
        {name: lane.arm(numbers[name]) for name, lane in lanes.items()}, options.pick(3, 7)
    )
    at = {name: median(values) for name, values in samples.items()}
    found = {}
    for each in traffic:
        ratios = paired(samples[each.name], samples["bare"])
        against = None
        if each.family == 4 and _is_judged(each):
            against = median(paired(samples[each.name], samples["nftables"]))
        names = [name for name in (each.name, "bare", "nftables") if name in lanes]
        found[each] = _Found(
            median(ratios),
            against,
            {name: at[name] for name in names},
            {
                **{name: summary(samples[name]) for name in names},
                "arrived": {name: median(lanes[name].shares) for name in names},
                "worst_round_of_bare": percentile(ratios, 0.0),
            },
            min(lanes[each.name].shares),
        )
    return found


def _is_judged(traffic: Traffic) -> bool:
    return traffic.method is Forwarding.NAT and traffic.proto == PROTO_TCP


def _judged(
    traffic: Sequence[Traffic], found: Mapping[tuple[Traffic, int], _Found], count: int
) -> Iterator[Row]:
    flows = "1 flow" if count == 1 else f"{count:,} flows"
    for each in filter(_is_judged, traffic):
        here = found[each, count]
        which = "" if each.family == 4 else ", IPv6"
        nanoseconds = ", ".join(
            f"{'router' if name == each.name else name} {1e9 / rate:.0f} ns"
            for name, rate in here.rates.items()
            if rate
        )
        yield Row(
            f"forwarding against a bare XDP redirect, {flows}{which}",
            f">= {100 * _OF_BARE[count]:.0f} %",
            f"{100 * here.of_bare:.0f} % ({here.rates[each.name] / 1e6:.2f} Mpps; a packet: "
            f"{nanoseconds})",
            here.of_bare >= _OF_BARE[count],
            "live frames of 64 bytes (IPv6: 78) from one CPU, random flows, counted by an XDP "
            "program at the backend; generator, router and receiver share that CPU, so ratios are "
            f"those of whole paths; arrived {100 * here.arrived:.1f} %",
            here.values,
        )
        if here.of_nftables is not None:
            yield Row(
                f"forwarding against kernel forwarding + nftables DNAT, {flows}",
                f">= {_OF_NFTABLES[count]:.0f} x",
                f"{here.of_nftables:.1f} x",
                here.of_nftables >= _OF_NFTABLES[count],
                "as above; conntrack knows the flows; arrived "
                f"{100 * here.values['arrived']['nftables']:.1f} %",
                {},
            )


def _by_method(traffic: Sequence[Traffic], found: Mapping[tuple[Traffic, int], _Found]) -> Row:
    """Every method, protocol and family beside each other."""
    columns = tuple((family, count) for family in FAMILIES for count in FLOWS)
    by = {(each.method, each.proto, each.family): each for each in traffic}
    lines = []
    for method, proto in dict.fromkeys((each.method, each.proto) for each in traffic):
        cells = []
        for family, count in columns:
            here = found.get((by[method, proto, family], count))
            cells.append(f"{100 * here.of_bare:.0f} %" if here else "-")
        first = by[method, proto, FAMILIES[0]]
        lines.append((f"{method.name.lower()}, {first.protocol}", *cells))
    return Row(
        "forwarding against a bare XDP redirect, by method",
        "reported",
        "see the table",
        None,
        "as above, client to backend; the flows of all cases are in the tables at once (IPv4 and "
        "IPv6 one each); a bare redirect of the same frame length and family in each round",
        {f"{each.name}, {count:,} flows": here.values for (each, count), here in found.items()},
        table=Table(
            ("method", *(f"IPv{family}, {count:,}" for family, count in columns)), tuple(lines)
        ),
    )
