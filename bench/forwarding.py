# SPDX-License-Identifier: Apache-2.0
"""Packets a second through the router on veth, against a bare redirect and the kernel's NAT."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from xdp_router.adapters.map_specs import Sizes
from xdp_router.core.abi import format_addr
from xdp_router.lab.namespace import Namespace

from .frames import ACK, tcp_frame
from .plane import BACKEND, CLIENT_BASE, CLIENT_PORT_MIN, SERVICE, Flows, data_plane
from .rows import Options, Row, median, paired, percentile, summary, take_turns
from .wire import Wire, wire

FLOWS = (1, 1_000, 100_000)
_OF_BARE = {1: 0.80, 1_000: 0.80, 100_000: 0.35}
_OF_NFTABLES = {1: 5.0, 1_000: 5.0, 100_000: 3.0}

_RULES = f"""
table ip bench {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {format_addr(SERVICE.addr)} tcp dport {SERVICE.port} \
dnat to {format_addr(BACKEND.addr)}:{BACKEND.port}
  }}
}}
"""


def nftables(namespace: Namespace, rules: str) -> None:
    """Load rules in a namespace."""

    def body() -> None:
        subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True, timeout=30)

    namespace.run(body)


def forwarding(options: Options) -> Iterator[Row]:
    """Three routers, each on wires of its own, at 1, 1,000 and 100,000 flows."""
    with ExitStack() as stack:
        wires = {
            name: stack.enter_context(wire(options.directory))
            for name in ("bare", "router", "nftables")
        }
        bare, router = wires["bare"], wires["router"]
        bare.attach(bare.router, "client0", bare.ends.programs["bare_redirect"])
        plane = stack.enter_context(data_plane(Sizes(), router.place))
        for interface in ("client0", "be1"):
            router.attach(router.router, interface, plane.entry)
        nftables(wires["nftables"].router, _RULES)
        flows = Flows(plane.maps, router.place, options.directory)
        stack.callback(flows.close)
        flows.fill(max(FLOWS))
        for count in FLOWS:
            yield from _at(options, wires, count)


def _at(options: Options, wires: dict[str, Wire], count: int) -> Iterator[Row]:
    for each in wires.values():
        place = each.place
        frame = tcp_frame(
            place.client_side,
            place.client,
            (CLIENT_BASE, CLIENT_PORT_MIN),
            (SERVICE.addr, SERVICE.port),
            ACK,
            seq=1,
            ack=1,
        )
        each.generator.configure(
            count,
            frame,
            redirect_to=place.backend_ifindex,
            dmac=place.backend,
            smac=place.backend_side,
        )
    flows = "1 flow" if count == 1 else f"{count:,} flows"
    frames = options.pick(400_000, 1_500_000)
    arrived: dict[str, list[float]] = {name: [] for name in wires}

    def arm(name: str, number: int) -> Callable[[], float]:
        def measure() -> float:
            rate, share = wires[name].rate(number)
            arrived[name].append(share)
            return rate

        return measure

    # Entries and caches first: each flow some ten times, so that conntrack knows them all.
    for name in wires:
        arm(name, max(100_000, 10 * count))()
        arrived[name].clear()
    numbers = {"bare": frames, "router": frames, "nftables": frames // 3}
    samples = take_turns(
        {name: arm(name, number) for name, number in numbers.items()}, options.pick(3, 7)
    )
    at = {name: median(values) for name, values in samples.items()}
    of_bare = median(paired(samples["router"], samples["bare"]))
    of_nftables = median(paired(samples["router"], samples["nftables"]))
    how = (
        "live frames of 64 bytes from one CPU, random flows, counted by an XDP program at the "
        "backend; generator, router and receiver share that CPU, so ratios are those of whole "
        f"paths; arrived {100 * min(arrived['router']):.1f} %"
    )
    nanoseconds = ", ".join(f"{name} {1e9 / rate:.0f} ns" for name, rate in at.items() if rate)
    values = {
        **{name: summary(each) for name, each in samples.items()},
        "arrived": {name: median(each) for name, each in arrived.items()},
        "worst_round_of_bare": percentile(paired(samples["router"], samples["bare"]), 0.0),
    }
    yield Row(
        f"forwarding against a bare XDP redirect, {flows}",
        f">= {100 * _OF_BARE[count]:.0f} %",
        f"{100 * of_bare:.0f} % ({at['router'] / 1e6:.2f} Mpps; a packet: {nanoseconds})",
        of_bare >= _OF_BARE[count],
        how,
        values,
    )
    yield Row(
        f"forwarding against kernel forwarding + nftables DNAT, {flows}",
        f">= {_OF_NFTABLES[count]:.0f} x",
        f"{of_nftables:.1f} x",
        of_nftables >= _OF_NFTABLES[count],
        f"as above; conntrack knows the flows; arrived {100 * min(arrived['nftables']):.1f} %",
        {},
    )
