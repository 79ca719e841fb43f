# SPDX-License-Identifier: Apache-2.0
"""``dsr`` and ``ipip`` with real stacks: backends answer their clients without the router."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import echo_intact, random_bytes
from tests.support.netns import running_lab, wait_for
from tests.support.receipts import ask_by_tcp
from tests.support.router import calm_config, router_in
from tests.support.wide_lab import WideLab, routed_wide_lab, wide_spec
from xdp_router.lab import links
from xdp_router.lab.spec import Family, Method, endpoint_text

pytest_plugins = ("tests.support.netns",)

MEGABYTE = 1_000_000


@contextlib.contextmanager
def direct_lab(
    private_mounts: Path,
    method: Method,
    family: Family,
    outer: Family,
    **spec: Any,
) -> Iterator[WideLab]:
    """A lab whose backends are reached by addresses of ``outer``, without their port."""
    plan = wide_spec(method=method, **spec)
    config = calm_config(plan, family=family)
    of, by = plan.addresses_of(family), plan.addresses_of(outer)
    for (address, port), (other, _) in zip(of.backends, by.backends, strict=True):
        config = config.replace(f'"{endpoint_text(address, port)}"', f'"{other}"')
    with running_lab(plan) as lab, router_in(lab, private_mounts) as router:
        router.start(config)
        yield WideLab(lab, family, "tcp", router)


@pytest.mark.parametrize("method", ["dsr", "ipip"])
def test_flows_survive_a_new_daemon(private_mounts: Path, method: Method) -> None:
    """A daemon that takes over leaves them as they are, whatever the service's method is now."""
    with direct_lab(private_mounts, method, 4, 4, kind="echo") as wide:
        router = wide.router
        with wide.client.connect(wide.service, timeout=10.0) as peer:
            assert echo_intact(peer, b"before")
            router.stop(signal.SIGKILL)
            text = router.config.read_text()
            router.start(text.replace(f'forwarding = "{method}"', 'forwarding = "nat"').replace(
                '198.18.1.1"', '198.18.1.1:80"'
            ))  # fmt: skip
            assert echo_intact(peer, random_bytes(MEGABYTE))
            (flow,) = router.json("flows")
            assert flow["backend_address"] == "198.18.1.1:80"
            assert flow["packets"] > 100


def test_a_dsr_backend_behind_a_gateway_is_refused(private_mounts: Path) -> None:
    """Attach says which one, which gateway, and what would do."""
    plan = wide_spec(method="dsr")
    host = "198.19.200.2"
    config = calm_config(plan).replace('"198.18.1.1:80"', f'"{host}"')
    with running_lab(plan) as lab, router_in(lab, private_mounts) as router:
        links.with_netlink(
            lab.router, lambda netlink: netlink.route("add", dst=f"{host}/32", gateway="198.18.1.1")
        )
        router.config.write_text(config)
        done = router.attach_in_vain(("lan0",), "--config", str(router.config))
        assert f"backend b1 ({host}): its route goes by gateway 198.18.1.1" in done.stderr
        assert "use forwarding 'ipip'" in done.stderr


def test_replies_do_not_count_as_lost(private_mounts: Path) -> None:
    """A client beside the backends, on their own segment, is no reason to pass one over."""
    with routed_wide_lab(private_mounts, method="dsr", protocol="tcp", backends=2) as wide:
        for _ in range(5):
            ask_by_tcp(wide.client, wide.service, b"x")
        wait_for(lambda: len(wide.router.json("flows")) == 5, message="all flows are there")
        decisions = {flow["decision"]["reason"] for flow in wide.router.json("flows")}
        assert decisions <= {"race_won", "race_joined"}
