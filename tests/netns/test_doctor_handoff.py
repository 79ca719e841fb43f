# SPDX-License-Identifier: Apache-2.0
"""Findings about hand-off to the kernel, on wires of the test's own."""

from __future__ import annotations

from pathlib import Path

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters.doctor_finding import Finding, Severity
from xdp_router.adapters.doctor_handoff import HandoffFacts, check_handoff, judge_handoff
from xdp_router.adapters.host import link_info
from xdp_router.adapters.kernel_forwarding import Obstacle
from xdp_router.core.address import parse_endpoint
from xdp_router.linux.ethtool import Offload, set_offload

WEB = ("web", parse_endpoint("198.18.100.1:80"))
STUCK = Obstacle("it does not forward", (("net.x", "1"),))


def told(found: list[Finding]) -> list[tuple[str, str, Severity]]:
    return [(each.subject, each.code, each.severity) for each in found]


@in_fresh_netns
def test_on_this_host() -> None:
    """What is not needed is no warning; once an interface takes no frames, the rest has to forward.
    The mend in the finding mends it."""
    Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0")
    Path("/proc/sys/net/ipv4/conf/default/rp_filter").write_text("0")
    with IPRoute() as ipr:
        wires = [make_wire(ipr, name, f"198.18.{n}.1", None) for n, name in enumerate("ab")]

        def far_gro(number: int, on: bool) -> None:
            name = f"{'ab'[number]}p"
            wires[number].at_far(lambda _: set_offload(name, Offload.GRO, on))

        links = [link_info(name) for name in "ab"]
        for number in (0, 1):
            far_gro(number, True)
            Path(f"/proc/sys/net/ipv4/conf/{'ab'[number]}/forwarding").write_text("0")
        found = list(check_handoff(links, [WEB]))
        assert told(found) == [(name, "handoff", Severity.OK) for name in "ab"]
        assert "sysctl -w net.ipv4.conf.a.forwarding=1" in found[0].text
        far_gro(1, False)
        found = list(check_handoff(links, [WEB]))
        assert told(found) == [
            ("a", "handoff", Severity.WARN),
            ("b", "takes_no_xdp_frames", Severity.WARN),
            ("b", "handoff", Severity.OK),
        ]
        assert found[0].mend.startswith("sysctl -w net.ipv4.conf.a.forwarding=1")
        Path("/proc/sys/net/ipv4/conf/a/forwarding").write_text("1")
        found = list(check_handoff(links, [WEB]))
        assert told(found)[0] == ("a", "handoff", Severity.OK)
        assert "needed for b" in found[0].text


def test_one_armed() -> None:
    """The only interface has to forward to itself."""
    (lacks, possible) = judge_handoff([HandoffFacts("a", "", False, (STUCK,))])
    assert (lacks.code, possible.severity) == ("takes_no_xdp_frames", Severity.WARN)
    assert "ethtool -L" in lacks.mend
    assert "it does not forward" in possible.text
    assert possible.mend == 'sysctl -w net.x=1; or kernel_handoff = "set"'
