# SPDX-License-Identifier: Apache-2.0
"""The lab of one line, with its router: what other tests stand on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients import random_bytes
from tests.support.receipts import ask_by_tcp
from tests.support.wide_lab import routed_wide_lab, wide_lab, wide_spec

pytest_plugins = ("tests.support.netns",)


def test_one_line_gives_a_routed_lab(private_mounts: Path) -> None:
    """A client reaches the service, and the router says by which method."""
    with routed_wide_lab(private_mounts, protocol="tcp", backends=2, delays_ms=(5,)) as wide:
        assert ask_by_tcp(wide.client, wide.service, random_bytes(100_000)) == "b2"
        (service,) = wide.router.json("services")
        assert service["address"] == "198.18.100.1:80"


def test_settings_reach_the_router(private_mounts: Path) -> None:
    """Lines for [router] and [[service]], the mode and the options of attach are the router's."""
    with routed_wide_lab(
        private_mounts,
        protocol="tcp",
        settings="max_open_decisions = 10",
        service='orphans = "hash"',
        attach=("--xdp-mode", "generic"),
    ) as wide:
        text = wide.router.config.read_text()
        assert '[[service]]\norphans = "hash"\nname = "web"' in text
        assert "[router]\nmax_open_decisions = 10\n" in text
        assert {link.xdp_mode for link in wide.router.links().values()} == {"generic"}
        assert ask_by_tcp(wide.client, wide.service, b"x") == "b1"


def test_backends_are_as_wished() -> None:
    """Delays and weights go to the first backends; the port is the service's where it has to be."""
    spec = wide_spec(method="ipip", backends=3, delays_ms=(4, 5), weights=(7,), kind="quic")
    assert [b.delay_ns for b in spec.backends] == [4_000_000, 5_000_000, 0]
    assert [b.weight for b in spec.backends] == [7, 1, 1]
    assert {(b.port, b.kind) for b in spec.backends} == {(80, "quic")}
    assert (spec.topology, wide_spec().topology) == ("segment", "routed")


def test_lab_without_router_says_so() -> None:
    """Asking a lab without a router for it is a mistake that names the mend."""
    with wide_lab() as wide, pytest.raises(AssertionError, match="routed_wide_lab"):
        _ = wide.router
