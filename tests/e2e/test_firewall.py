# SPDX-License-Identifier: Apache-2.0
"""A router whose kernel forwards nothing, filters everything and tracks what it sees."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.clients import connect, dial, echo_intact, random_bytes, who, who_answers
from tests.support.netns import running_lab, wait_for
from tests.support.privileges import require_program
from tests.support.router import Router, calm_config, router_in
from xdp_router.lab import BackendSpec, LabSpec, Namespace

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2", delay_ns=5_000_000)))
NAMES = ("b1", "b2")

TRACKING = """
table inet watch {
    chain pre { type filter hook prerouting priority 0; ct state invalid counter drop
    }
    chain out { type filter hook output priority 0; ct state invalid counter drop
    }
}
table ip masq {
    chain post { type nat hook postrouting priority 100; masquerade
    }
}
"""
DROPPING = """
table inet deny {
    chain raw { type filter hook prerouting priority -300; policy drop; }
    chain in { type filter hook input priority 0; policy drop; }
    chain forward { type filter hook forward priority 0; policy drop; }
    chain out { type filter hook output priority 0; policy drop; }
}
"""


def nft(namespace: Namespace, rules: str) -> None:
    """Add rules; skips where the kernel has no nf_tables, which nothing here needs."""
    program = require_program("nft", "nftables", "/usr/sbin:/sbin:/usr/bin")
    done = namespace.run(
        lambda: subprocess.run(
            [program, "-f", "-"], input=rules, capture_output=True, text=True, timeout=20
        )
    )
    if "Operation not supported" in done.stderr or "Protocol not supported" in done.stderr:
        pytest.skip("this kernel has no nf_tables")
    assert done.returncode == 0, done.stderr


def tracked(namespace: Namespace) -> list[str]:
    """Entries of conntrack; skips where the kernel has none."""
    table = Path("/proc/thread-self/net/nf_conntrack")

    def read() -> list[str] | None:
        return table.read_text().splitlines() if table.exists() else None

    lines = namespace.run(read)
    if lines is None:
        pytest.skip("this kernel has no connection tracking")
    return lines


@pytest.fixture(scope="module", params=["native", "generic"])
def router(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[Router]:
    """A router in a kernel that is as strict as can be about what it forwards: nothing."""

    def be_strict() -> None:
        conf = Path("/proc/sys/net/ipv4/conf")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
        for interface in conf.iterdir():
            (interface / "rp_filter").write_text("1")
            (interface / "accept_local").write_text("0")

    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        lab.router.run(be_strict)
        yield made.start(calm_config(SPEC), "--xdp-mode", request.param)


def assert_works(router: Router) -> None:
    """Races, probes that are answered, streams, both backends."""
    before = router.ask("status")["engine"]
    for _ in range(5):
        with connect(router) as peer:
            assert who(peer) in NAMES
            assert echo_intact(peer, random_bytes(300_000))
    after = router.ask("status")["engine"]
    assert after["races_won"] - before["races_won"] == 5
    assert {row["decision"]["mode"] for row in router.json("flows")} == {"race"}
    rows = router.ask("backends")
    assert all(row["up"] for row in rows)


def test_strict_sysctls(router: Router) -> None:
    """rp_filter 1, accept_local 0, no forwarding: nothing of a flow comes to the kernel."""
    assert_works(router)


def test_connection_tracking_sees_nothing(router: Router) -> None:
    """It is at work, with masquerading, and knows neither clients, service nor backends' flows."""
    nft(router.lab.router, TRACKING)
    with router.lab.client.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as peer:
        peer.sendto(b"?", (router.lab.addresses.client_router, 9))
    seen = partial(tracked, router.lab.router)
    wait_for(lambda: [line for line in seen() if "dport=9 " in line], 2, "tracking is at work")
    assert_works(router)
    service, backends = router.service[0], router.lab.addresses.backends
    for line in tracked(router.lab.router):
        assert f"={service} " not in line
        assert not [address for address, _ in backends if f"={address} " in line]


def test_rules_that_drop_everything(router: Router) -> None:
    """In prerouting, input, forward and output: the router's packets never meet them."""
    nft(router.lab.router, DROPPING)
    with pytest.raises(OSError, match=r"timed out|refused"):
        dial(router.lab.client, (router.lab.addresses.client_router, 9), timeout=1)
    assert_works(router)
    assert who_answers(router) in NAMES
