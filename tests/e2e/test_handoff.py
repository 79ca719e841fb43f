# SPDX-License-Identifier: Apache-2.0
"""Where XDP cannot send, the kernel forwards: bytes intact both ways, nothing lost in silence."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from tests.support.clients import (
    connect,
    dial,
    echo_intact,
    random_bytes,
    receive,
    who,
    who_answers,
)
from tests.support.long_path import narrow_edge
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from tests.support.tap import Tap
from xdp_router.adapters import sysctl
from xdp_router.lab import BackendSpec, LabSpec, Namespace
from xdp_router.lab.links import with_netlink
from xdp_router.linux.ethtool import Offload, set_offload

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"),))
SET = 'kernel_handoff = "set"'
OFF = 'kernel_handoff = "off"'
MEGABYTE = 1 << 20
IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0
"""Of linux/in.h: the socket module does not have them."""


@pytest.fixture
def router(private_mounts: Path) -> Iterator[Router]:
    """A router that is not started yet."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        yield made


def gro(namespace: Namespace, on: bool) -> None:
    """With GRO off at this end, nothing can be redirected to the other one."""
    namespace.run(lambda: set_offload("eth0", Offload.GRO, on))


def set_sysctl(router: Router, interface: str, key: str, value: int) -> None:
    path = Path("/proc/sys/net/ipv4/conf", interface, key)
    router.lab.router.run(lambda: path.write_text(str(value)))


def set_sysctl6(router: Router, interface: str, key: str, value: int) -> None:
    path = Path("/proc/sys/net/ipv6/conf", interface, key)
    router.lab.router.run(lambda: path.write_text(str(value)))


def get_sysctl(router: Router, interface: str, key: str) -> str:
    return router.lab.router.run(lambda: sysctl.read(sysctl.of_interface(interface, key)))


def service_is_local(router: Router) -> None:
    """The service address is one of the router's own, as the manual advises."""

    def add(netlink: Any) -> None:
        netlink.addr("add", index=1, address=router.service[0], prefixlen=32)

    with_netlink(router.lab.router, add)


def backend(router: Router) -> dict[str, Any]:
    (row,) = router.ask("backends")
    return dict(row)


def interface(router: Router, name: str) -> dict[str, Any]:
    return next(dict(row) for row in router.ask("status")["interfaces"] if row["name"] == name)


def intact(router: Router) -> bool:
    """A connection of a megabyte each way."""
    with connect(router) as peer:
        return echo_intact(peer, random_bytes(MEGABYTE))


def test_backend_that_takes_no_frames(router: Router) -> None:
    """Its packets are the kernel's, replies are XDP's; `status` and `backends` say so."""
    gro(router.lab.backends[0], False)
    router.start()
    (warning,) = router.events("takes_no_xdp_frames")
    assert warning["interface"] == "be1"
    assert (backend(router)["up"], backend(router)["path"]) == (True, "kernel")
    assert not interface(router, "be1")["takes_xdp_frames"]
    with router.counted() as risen:
        assert intact(router)
        assert risen("handed_to_kernel") > 50
        assert risen("no_path") == 0


def test_client_side_that_takes_no_frames(router: Router) -> None:
    """Replies and RSTs to clients are the kernel's, packets to the backend are XDP's."""
    gro(router.lab.client, False)
    router.start()
    assert (backend(router)["up"], backend(router)["path"]) == (True, "xdp")
    with router.counted() as risen:
        assert intact(router)
        assert risen("handed_to_kernel") > 50
        assert risen("no_path") == 0
    router.lab.kill_backend("b1")
    with pytest.raises(ConnectionRefusedError):
        connect(router)


def test_neither_side_takes_frames(router: Router) -> None:
    """The kernel forwards both ways."""
    gro(router.lab.backends[0], False)
    gro(router.lab.client, False)
    router.start()
    assert intact(router)


def test_a_sender_without_path_mtu_discovery(router: Router) -> None:
    """What is too long for the backend's link, and may be fragmented, is: the kernel does it."""
    gro(router.lab.backends[0], False)
    router.start()
    with connect(router, timeout=15) as peer:
        assert who(peer) == "b1"
        narrow_edge(router.lab, "backend")
        wait_for(
            lambda: any(line.get("what") == "mtu" for line in router.events("interface_changed")),
            message="the daemon heard of the MTU",
        )
        peer.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        with router.counted() as risen:
            assert echo_intact(peer, random_bytes(MEGABYTE))
            assert risen("too_big_dropped") == 0
            assert risen("icmp_too_big") == 0


def test_off_is_refused_openly(router: Router) -> None:
    """Nothing is handed over: the backend is down, with the reason, and nothing hangs."""
    gro(router.lab.backends[0], False)
    router.start(calm_config(SPEC, OFF))
    assert backend(router)["reason"] == (
        'be1 takes no XDP frames, and the kernel cannot take over: kernel_handoff is "off": '
        'kernel_handoff = "check" in [router]'
    )
    with pytest.raises(ConnectionRefusedError):
        connect(router)
    # doctor asks the daemon: that the kernel would forward is no help
    argv = [sys.executable, "-m", "xdp_router.cli.main", "doctor", "--json"]
    argv[3:3] = ["--control", str(router.control), "--pins", str(router.pins)]
    findings = json.loads(router.run(argv).stdout)["findings"]
    (found,) = (
        each for each in findings if each["code"] == "handoff" and each["severity"] == "warn"
    )
    assert found["subject"] == "client0"
    assert found["text"].endswith('kernel_handoff is "off"')
    assert found["mend"].startswith('kernel_handoff = "check"')


def test_one_family_is_forwarded_the_other_is_not(router: Router) -> None:
    """The kernel takes IPv4 over; the backend of IPv6 is down, and IPv6 is what it says."""
    gro(router.lab.backends[0], False)
    set_sysctl6(router, "all", "forwarding", 0)
    six = SPEC.config_toml(family=6, deadline="1s").replace('"web"', '"web6"')
    router.start(calm_config(SPEC) + six.replace('"b1"', '"b6"'))
    rows = {row["name"]: row for row in router.ask("backends")}
    assert (rows["b1"]["up"], rows["b1"]["path"]) == (True, "kernel")
    assert not rows["b6"]["up"]
    assert "IPv6 forwarding is off on client0" in rows["b6"]["reason"]
    assert interface(router, "client0")["kernel_families"] == {
        "ipv4": {"forwards": True, "replies": True},
        "ipv6": {"forwards": False, "replies": False},
    }
    assert intact(router)
    set_sysctl6(router, "all", "forwarding", 1)
    wait_for(lambda: router.ask("backends")[1]["up"], 10, "the backend of IPv6 is up")
    with dial(router.lab.client, router.lab.addresses_of(6).service) as peer:
        assert echo_intact(peer, random_bytes(MEGABYTE))


def test_capability_is_looked_at_again(router: Router) -> None:
    """Without forwarding the backend is down and the mend is named; with it, it is up."""
    set_sysctl(router, "client0", "forwarding", 0)
    gro(router.lab.backends[0], False)
    router.start()
    row = backend(router)
    assert not row["up"]
    assert "sysctl -w net.ipv4.conf.client0.forwarding=1" in row["reason"]
    set_sysctl(router, "client0", "forwarding", 1)
    wait_for(lambda: backend(router)["up"], 10, "the backend is up")
    assert who_answers(router) == "b1"


def _noticed(router: Router, side: str, on: bool) -> bool:
    return interface(router, side)["takes_xdp_frames"] is on


@pytest.mark.parametrize("side", ["client0", "be1"])
def test_device_changes_under_a_connection(router: Router, side: str) -> None:
    """A device takes frames no more, and takes them again: one connection, and at once."""
    router.start()
    far = router.lab.client if side == "client0" else router.lab.backends[0]
    with connect(router) as peer:
        assert who(peer) == "b1"
        for on in (False, True):
            gro(far, on)
            wait_for(partial(_noticed, router, side, on), 1, "noticed")
            with router.counted() as risen:
                assert echo_intact(peer, random_bytes(MEGABYTE))
                assert (risen("handed_to_kernel") == 0) is on
                assert risen("no_path") == 0
        with router.counted() as risen:
            assert echo_intact(peer, random_bytes(MEGABYTE))
            assert risen("handed_to_kernel") == 0


def test_local_service_address_needs_more(router: Router) -> None:
    """Replies from a local address are lost without accept_local: down, and named. "set" sets
    it, logs it, and puts it back; what somebody has changed since stays."""
    service_is_local(router)
    for key in ("forwarding", "rp_filter"):
        set_sysctl(router, "be1", key, 0 if key == "forwarding" else 1)
    gro(router.lab.client, False)
    router.start()
    row = backend(router)
    assert not row["up"]
    for change in ("forwarding=1", "accept_local=1", "rp_filter=2"):
        assert f"net.ipv4.conf.be1.{change}" in row["reason"]
    assert router.stop() == 0
    router.start(calm_config(SPEC, SET))
    assert backend(router)["up"]
    assert intact(router)
    changed = {(line["sysctl"], line["old"], line["new"]) for line in router.events("sysctl_set")}
    wanted = {
        ("net.ipv4.conf.be1.forwarding", "0", "1"),
        ("net.ipv4.conf.be1.accept_local", "0", "1"),
        ("net.ipv4.conf.be1.rp_filter", "1", "2"),
        ("net.ipv4.conf.client0.accept_local", "0", "1"),
    }
    assert changed == wanted
    set_sysctl(router, "be1", "rp_filter", 0)
    assert router.stop() == 0
    assert get_sysctl(router, "be1", "forwarding") == "0"
    assert get_sysctl(router, "be1", "accept_local") == "0"
    assert get_sysctl(router, "client0", "accept_local") == "0"
    assert get_sysctl(router, "be1", "rp_filter") == "0"
    assert len(router.events("sysctl_restored")) == 3


def test_sysctls_after_sigkill(router: Router) -> None:
    """A successor takes them over, whatever it is set to; ``detach`` puts them back."""
    set_sysctl(router, "client0", "forwarding", 0)
    router.start(calm_config(SPEC, SET))
    assert get_sysctl(router, "client0", "forwarding") == "1"
    router.stop(signal.SIGKILL)
    wait_for(lambda: _starts(router), 10, "the successor starts")
    assert get_sysctl(router, "client0", "forwarding") == "1"
    router.stop(signal.SIGKILL)

    def detached() -> str:
        done = router.routerd("detach", "client0")
        return done.stdout if done.returncode == 0 else ""

    said = wait_for(detached, 10, "detached")
    assert "net.ipv4.conf.client0.forwarding: 0 again" in said
    assert get_sysctl(router, "client0", "forwarding") == "0"


def _starts(router: Router) -> bool:
    # Refused for a second after the last heartbeat.
    try:
        router.start()
    except (AssertionError, pytest.fail.Exception):
        return False
    return True


def test_persist_leaves_sysctls(router: Router) -> None:
    """The data plane goes on, and with it what it needs; a successor that ends puts it back."""
    set_sysctl(router, "client0", "forwarding", 0)
    router.start(calm_config(SPEC, SET), "--persist")
    assert router.stop() == 0
    assert get_sysctl(router, "client0", "forwarding") == "1"
    router.start()
    assert router.stop() == 0
    assert get_sysctl(router, "client0", "forwarding") == "0"


# --- neighbours ---------------------------------------------------------------------------


def answers_arp(router: Router, on: bool) -> None:
    """Whether the backend answers ARP; with that its entry is forgotten."""

    def arp(netlink: Any) -> None:
        (index,) = netlink.link_lookup(ifname="eth0")
        netlink.link("set", index=index, arp=on)

    def forget(netlink: Any) -> None:
        (index,) = netlink.link_lookup(ifname="be1")
        address = router.lab.addresses.backends[0][0]
        with contextlib.suppress(NetlinkError):  # it is not there
            netlink.neigh("del", ifindex=index, dst=address)

    with_netlink(router.lab.backends[0], arp)
    with_netlink(router.lab.router, forget)


PATIENT = "health = false"
"""The connection waits for its backend, however long that is lost."""


def lose_neighbour(router: Router) -> None:
    answers_arp(router, False)
    wait_for(lambda: not backend(router)["up"], 10, "the neighbour is lost")


def test_neighbour_lost_under_a_connection(router: Router) -> None:
    """Its packets are the kernel's, which keeps them and resolves; then XDP's again."""
    router.start(calm_config(SPEC, keys=PATIENT))
    with connect(router, timeout=20.0) as peer:
        assert who(peer) == "b1"
        with router.counted() as risen:
            lose_neighbour(router)
            assert backend(router)["path"] == "kernel"
            peer.sendall(b"x" * 1000)
            wait_for(lambda: risen("handed_to_kernel"), 5, "handed over")
            answers_arp(router, True)
            assert receive(peer, 1000) == b"x" * 1000
            assert risen("no_path") == 0
        wait_for(lambda: backend(router)["path"] == "xdp", 10, "resolved")
        with router.counted() as risen:
            assert echo_intact(peer, random_bytes(MEGABYTE))
            assert risen("handed_to_kernel") == 0


@pytest.mark.parametrize("why", ["sysctl", "off"])
def test_neighbour_lost_without_the_capability(router: Router, why: str) -> None:
    """Counted as no_path; nothing leaves with the service's or another wrong address."""
    if why == "sysctl":
        set_sysctl(router, "client0", "forwarding", 0)
    router.start(calm_config(SPEC, OFF if why == "off" else "", keys=PATIENT))
    with connect(router, timeout=20.0) as peer:
        assert who(peer) == "b1"
        lose_neighbour(router)
        taps = [(ns, ns.run(lambda: Tap("eth0"))) for ns in _far_ends(router)]
        with router.counted() as risen:
            peer.sendall(b"x" * 1000)
            wait_for(lambda: risen("no_path") >= 2, 10, "counted")
            assert risen("handed_to_kernel") == 0
        for _, tap in taps:
            assert not [frame for frame in tap.received() if frame[23] == socket.IPPROTO_TCP]
            tap.close()
        answers_arp(router, True)
        assert receive(peer, 1000) == b"x" * 1000


def _far_ends(router: Router) -> list[Namespace]:
    return [router.lab.client, *router.lab.backends]
