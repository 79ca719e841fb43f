# SPDX-License-Identifier: Apache-2.0
"""Backends behind a VLAN tag, on a router whose other side has none or another one."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest

from tests.support.clients import random_bytes
from tests.support.receipts import ask_by_tcp
from tests.support.tap import Tap
from tests.support.wide_lab import routed_wide_lab
from xdp_router.lab.spec import Family

pytest_plugins = ("tests.support.netns",)

PAYLOAD = random_bytes(200_000)


def _tags(frames: list[bytes]) -> set[bytes]:
    return {frame[12:16] for frame in frames}


def _tag(vlan: int) -> bytes:
    return struct.pack(">HH", 0x8100, vlan)


@pytest.mark.parametrize("mode", ["native", "generic"])
@pytest.mark.parametrize("family", [4, 6])
def test_a_backend_behind_a_tag(private_mounts: Path, family: Family, mode: str) -> None:
    """Probes, first packets and flows get the backend's tag, replies to the client have none."""
    with routed_wide_lab(
        private_mounts, family=family, protocol="tcp", vlan=7, attach=("--xdp-mode", mode)
    ) as wide:
        with contextlib.closing(wide.lab.backends[0].run(lambda: Tap("eth0"))) as tap:
            assert ask_by_tcp(wide.client, wide.service, PAYLOAD) == "b1"
            frames = tap.received()
        assert _tags(frames) == {_tag(7)}
        (flow,) = wide.router.json("flows")
        assert flow["decision"]["candidates"][0]["rtt_us"] > 0
        counters = wide.router.counters()
        assert counters["probe_synack"] >= 1
        assert counters["vlan_changed"] > 10
        assert counters["no_path"] == counters["tail_call_missed"] == 0


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(("client", "backend"), [(5, 7), (5, None), (5, 5)])
def test_clients_behind_a_tag(
    private_mounts: Path, family: Family, client: int, backend: int | None
) -> None:
    """Replies have the client's own tag, whatever the backend's is."""
    with routed_wide_lab(
        private_mounts, family=family, protocol="tcp", client_vlan=client, vlan=backend
    ) as wide:
        with contextlib.closing(wide.client.run(lambda: Tap("eth0"))) as tap:
            assert ask_by_tcp(wide.client, wide.service, PAYLOAD) == "b1"
            frames = tap.received()
        assert _tags(frames) == {_tag(client)}


def test_without_the_key_the_backend_hears_nothing(private_mounts: Path) -> None:
    """What XDP sends has no tag, and nobody there takes it."""
    with routed_wide_lab(private_mounts, protocol="tcp", vlan=7) as wide:
        config = wide.router.config.read_text().replace("vlan = 7\n", "")
        wide.router.stop()
        wide.router.start(config)
        with pytest.raises(TimeoutError):
            ask_by_tcp(wide.client, wide.service, PAYLOAD, timeout=2)
        assert wide.router.counters()["vlan_changed"] == 0
