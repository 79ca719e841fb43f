# SPDX-License-Identifier: Apache-2.0
"""A link's MTU that changes; and long ways for others. Methods: test_methods_path_mtu.py."""

from __future__ import annotations

from pathlib import Path

from tests.support.clients import dial, echo_intact, random_bytes
from tests.support.long_path import FAR_PORT, long_path, narrow_edge, set_mtu
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"),))
SERVICE = ("198.18.100.7", 80)
MEGABYTE = 1_000_000
HANGS_S = 15.0
"""A transfer that gets no further in this time hangs: undisturbed it takes a fraction of 1 s."""


def far_config(backend: str) -> str:
    """The lab's service, and one whose backend is at the end of a long path."""
    lines = [calm_config(SPEC), "[[service]]", 'name = "far"']
    lines += ['address = "{}:{}"'.format(*SERVICE), 'deadline = "1s"', "[[service.backend]]"]
    return "\n".join([*lines, 'name = "far1"', f'address = "{backend}:{FAR_PORT}"']) + "\n"


def test_an_mtu_that_changes_while_attached_counts(private_mounts: Path) -> None:
    """A link that becomes narrow in the middle of a connection is one from the next packet on."""
    with running_lab(SPEC) as lab, long_path(lab, "client") as path:
        with router_in(lab, private_mounts) as router:
            router.start()
            with dial(path.far, router.service, timeout=HANGS_S) as peer:
                assert echo_intact(peer, random_bytes(MEGABYTE))
                narrow_edge(lab, "client")
                wait_for(lambda: _mtu_is_known(router), message="the daemon heard of it")
                with router.counted() as counted:
                    assert echo_intact(peer, random_bytes(MEGABYTE, 2))
                    assert counted("icmp_too_big") >= 1
                set_mtu(lab.router, "client0", 1500)
                set_mtu(lab.client, "eth0", 1500)
                assert echo_intact(peer, random_bytes(MEGABYTE, 3))


def _mtu_is_known(router: Router) -> bool:
    return any(line.get("what") == "mtu" for line in router.events("interface_changed"))
