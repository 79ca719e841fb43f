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
STUCK = Obstacle("it does not forward", (("net.ipv4.conf.a.x", "1"),))


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


@in_fresh_netns
def test_families_of_the_services() -> None:
    """Only what services of a family need is asked for; the other one's settings do not count."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "a", "198.18.0.1", None)
        wire.at_far(lambda _: set_offload("ap", Offload.GRO, False))
        links = [link_info("a")]
        web6 = ("web6", parse_endpoint("[2001:db8:100::1]:80"))
        Path("/proc/sys/net/ipv4/conf/a/rp_filter").write_text("0")
        Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0")
        for ipv4, ipv6 in ((0, 0), (0, 1), (1, 0), (1, 1)):
            Path("/proc/sys/net/ipv4/conf/a/forwarding").write_text(str(ipv4))
            Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text(str(ipv6))
            for services, possible in (([WEB], ipv4), ([web6], ipv6), ([WEB, web6], ipv4 & ipv6)):
                found = list(check_handoff(links, services))[-1]
                assert (found.code, found.severity is Severity.OK) == ("handoff", bool(possible))


@in_fresh_netns
def test_sources_of_our_own() -> None:
    """What goes to fullnat's backends bears our address: accept_local is needed."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "a", "198.18.0.1", None)
        wire.at_far(lambda _: set_offload("ap", Offload.GRO, False))
        for name in ("all", "a"):
            Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0")
        Path("/proc/sys/net/ipv4/conf/a/forwarding").write_text("1")
        links, backend = [link_info("a")], ("b1", parse_endpoint("198.18.0.2:80"))
        assert list(check_handoff(links, [WEB]))[-1].severity is Severity.OK
        found = list(check_handoff(links, [WEB], [backend]))[-1]
        assert (found.code, found.severity) == ("handoff", Severity.WARN)
        assert "address 198.18.0.1 is an address of this host" in found.text
        assert found.mend.startswith("sysctl -w net.ipv4.conf.a.accept_local=1")
        Path("/proc/sys/net/ipv4/conf/a/accept_local").write_text("1")
        assert list(check_handoff(links, [WEB], [backend]))[-1].severity is Severity.OK


def test_one_armed() -> None:
    """The only interface has to forward to itself."""
    (lacks, possible) = judge_handoff([HandoffFacts("a", "", False, {4: (STUCK,)})])
    assert (lacks.code, possible.severity) == ("takes_no_xdp_frames", Severity.WARN)
    assert "ethtool -L" in lacks.mend
    assert "it does not forward" in possible.text
    assert possible.mend == 'sysctl -w net.ipv4.conf.a.x=1; or kernel_handoff = "set"'


def test_what_no_sysctl_mends() -> None:
    """It is said what does, beside what others do, and never that the router could."""
    booted = Obstacle("this kernel runs without IPv6", (), "boot it without ipv6.disable=1")
    (_, found) = judge_handoff([HandoffFacts("a", "", False, {4: (), 6: (booted,)})])
    assert found.mend == "boot it without ipv6.disable=1"
    (_, found) = judge_handoff([HandoffFacts("a", "", False, {4: (STUCK,), 6: (booted,)})])
    assert found.mend == "sysctl -w net.ipv4.conf.a.x=1; boot it without ipv6.disable=1"


def test_one_family_that_is_not_forwarded() -> None:
    """The other one's packets are handed over all the same; both are told when both are stuck."""
    (_, found) = judge_handoff([HandoffFacts("a", "", False, {4: (), 6: (STUCK,)})])
    assert found.severity is Severity.WARN
    assert found.text.startswith("what IPv6 comes in here for a has to be forwarded")
    (_, found) = judge_handoff([HandoffFacts("a", "", False, {4: (STUCK,), 6: (STUCK,)})])
    assert found.text.startswith("what comes in here for a has to be forwarded")
    (found,) = judge_handoff([HandoffFacts("a", "", True, {4: (STUCK,), 6: ()})])
    assert (found.severity, "cannot take IPv4 over" in found.text) == (Severity.OK, True)


def test_nothing_is_handed_over_where_it_is_switched_off() -> None:
    """Then it is no help that the kernel would forward; the mend is the setting."""
    (_, found) = judge_handoff([HandoffFacts("a", "", False, {4: ()})], off=True)
    assert (found.code, found.severity) == ("handoff", Severity.WARN)
    assert found.text.endswith('dropped (no_path): kernel_handoff is "off"')
    assert found.mend.startswith('kernel_handoff = "check"')
    (_, found) = judge_handoff([HandoffFacts("a", "", False, {4: (STUCK,)})], off=True)
    assert found.mend.endswith("and sysctl -w net.ipv4.conf.a.x=1")
    (found,) = judge_handoff([HandoffFacts("a", "", True, {4: ()})], off=True)
    assert found.severity is Severity.OK


@in_fresh_netns
def test_an_address_that_the_gateway_makes_local() -> None:
    """Replies of another service there bear a local source by then: said before it is so, with
    the sysctl; of the gateway's own address alone nothing has to be handed over."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "a", "198.18.0.1", None)
        wire.at_far(lambda _: set_offload("ap", Offload.GRO, False))
        links = [link_info("a")]
        for name, value in (("rp_filter", "0"), ("accept_local", "0"), ("forwarding", "1")):
            Path(f"/proc/sys/net/ipv4/conf/a/{name}").write_text(value)
            Path(f"/proc/sys/net/ipv4/conf/all/{name}").write_text(value)
        assert list(check_handoff(links, [WEB]))[-1].severity is Severity.OK
        found = list(check_handoff(links, [WEB], made_local=[WEB[1].addr]))[-1]
        assert found.severity is Severity.WARN
        assert "198.18.100.1 is an address of this host, and accept_local is off" in found.text
        assert found.mend.startswith("sysctl -w net.ipv4.conf.a.accept_local=1")
        Path("/proc/sys/net/ipv4/conf/a/accept_local").write_text("1")
        found = list(check_handoff(links, [WEB], made_local=[WEB[1].addr]))[-1]
        assert found.severity is Severity.OK
