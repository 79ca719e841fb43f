# SPDX-License-Identifier: Apache-2.0
"""The systemd unit: its capabilities are enough for the real daemon, and none is there in vain."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.clients import who_answers
from tests.support.netns import running_lab, wait_for
from tests.support.privileges import require_program
from tests.support.router import Router, calm_config, own_bpffs
from xdp_router.adapters.bpf_support import _CAPABILITIES
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.linux.ethtool import Offload, set_offload

pytest_plugins = ("tests.support.netns",)

UNIT = Path(__file__).parents[2] / "contrib/systemd/xdp-routerd.service"
GROUP = "54321"


def _setting(name: str) -> str:
    (line,) = (line for line in UNIT.read_text().splitlines() if line.startswith(f"{name}="))
    return line.partition("=")[2]


class _Confined(Router):
    """A router whose daemon has just the unit's capabilities, and one further group."""

    def _attach_argv(self, interfaces: Sequence[str], *options: str) -> list[str]:
        names = _setting("CapabilityBoundingSet").lower().split()
        allowed = ",".join(f"+{name.removeprefix('cap_')}" for name in names)
        setpriv = [require_program("setpriv", "util-linux"), "--bounding-set", f"-all,{allowed}"]
        setpriv += ["--inh-caps=-all", "--no-new-privs", "--groups", GROUP]
        return [*setpriv, *super()._attach_argv(interfaces, *options)]


def test_capabilities_are_those_that_the_daemon_asks_for() -> None:
    """The unit's list is that of the check at start, each of which attach refuses to be without."""
    assert set(_setting("CapabilityBoundingSet").split()) == set(_CAPABILITIES)


@pytest.mark.parametrize("options", [(), ("--xdp-mode", "generic")])
def test_the_daemon_works_with_just_these(
    private_mounts: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It attaches, races, gives its socket to a group that it is in, and tells systemd."""
    notified: list[str] = []
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor,
        running_lab(LabSpec((BackendSpec("b1"), BackendSpec("b2")))) as lab,
        own_bpffs(private_mounts) as bpffs,
    ):
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        router = _Confined(lab, tmp_path, bpffs)
        try:
            router.start(None, "--control-group", GROUP, *options)
            status = Path(f"/proc/{router.pid}/status").read_text()
            (effective,) = (row for row in status.splitlines() if row.startswith("CapEff:"))
            expected = sum(1 << bit for bit in _CAPABILITIES.values())
            assert int(effective.split()[1], 16) == expected
            assert os.stat(router.control).st_gid == int(GROUP)
            assert who_answers(router) in ("b1", "b2")
            assert router.ask("status")["engine"]["races_won"] == 1

            def told() -> bool:
                try:
                    while True:
                        notified.append(supervisor.recv(1000).decode())
                except BlockingIOError:
                    return sum("WATCHDOG=1" in each for each in notified) >= 3

            wait_for(told, 5, "three signs of life")
            assert notified[0] == "READY=1"
            assert any("2 of 2 backends up" in each for each in notified)
            assert router.stop() == 0
            assert not router.left_behind()
        finally:
            router.close()


def test_hand_off_works_with_just_these(private_mounts: Path, tmp_path: Path) -> None:
    """Sysctls are set and put back; a held first packet leaves by a raw socket."""
    spec = LabSpec((BackendSpec("b1"),))
    forwarding = Path("/proc/sys/net/ipv4/conf/client0/forwarding")
    with running_lab(spec) as lab, own_bpffs(private_mounts) as bpffs:
        lab.router.run(lambda: forwarding.write_text("0"))
        # Nothing can be redirected to the other end of such a wire.
        lab.backends[0].run(lambda: set_offload("eth0", Offload.GRO, False))
        router = _Confined(lab, tmp_path, bpffs)
        try:
            router.start(calm_config(spec, 'kernel_handoff = "set"'))
            assert router.events("sysctl_set")
            with router.counted() as risen:
                assert who_answers(router) == "b1"
                assert risen("handed_to_kernel")
            assert router.stop() == 0
            assert lab.router.run(forwarding.read_text) == "0\n"
        finally:
            router.close()
