# SPDX-License-Identifier: Apache-2.0
"""Path MTU discovery through the router: each side learns what the way behind it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients import dial, echo_intact, random_bytes
from tests.support.long_path import FAR_PORT, NARROW, EchoServer, long_path, narrow_edge, set_mtu
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from xdp_router.lab import BackendSpec, LabSpec, Namespace

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"),))
SERVICE = ("198.18.100.7", 80)
MEGABYTE = 1_000_000
HANGS_S = 15.0
"""A transfer that gets no further in this time hangs: undisturbed it takes a fraction of 1 s."""


def far_config(backend: str) -> str:
    """The lab's service, and one whose backend is at the end of a long path."""
    lines = [calm_config(SPEC), "[[service]]", 'name = "far"']
    lines += [f'address = "{SERVICE[0]}:{SERVICE[1]}"', 'deadline = "1s"', "[[service.backend]]"]
    return "\n".join([*lines, 'name = "far1"', f'address = "{backend}:{FAR_PORT}"']) + "\n"


@dataclass
class Way:
    """A client, the service that it asks, and the router between them."""

    router: Router
    client: Namespace
    service: tuple[str, int]


@contextlib.contextmanager
def way(private_mounts: Path, side: str, narrow: str, mode: str) -> Iterator[Way]:
    """A long path on one side; ``narrow``: "hop" (its middle link) or "own" (the router's)."""
    with contextlib.ExitStack() as undo:
        lab = undo.enter_context(running_lab(SPEC))
        path = undo.enter_context(long_path(lab, side, NARROW if narrow == "hop" else 1500))
        if narrow == "own":
            narrow_edge(lab, side)
        router = undo.enter_context(router_in(lab, private_mounts))
        if side == "client":
            router.start(None, "--xdp-mode", mode)
            yield Way(router, path.far, router.service)
            return
        server = EchoServer(path.far)
        undo.callback(server.close)
        router.start(far_config(path.address), "--xdp-mode", mode)
        yield Way(router, lab.client, SERVICE)


@pytest.mark.parametrize("mode", ["native", "generic"])
@pytest.mark.parametrize("narrow", ["hop", "own"])
@pytest.mark.parametrize("side", ["client", "backend"])
def test_a_megabyte_passes_a_narrow_link(
    private_mounts: Path, side: str, narrow: str, mode: str
) -> None:
    """1 MB each way is intact: whoever sends what is too long hears of it, by us or from a hop."""
    with way(private_mounts, side, narrow, mode) as found:
        with found.router.counted() as counted:
            with dial(found.client, found.service, timeout=HANGS_S) as peer:
                assert echo_intact(peer, random_bytes(MEGABYTE))
            # The end that sends towards the narrow link: the other one is told by its own hop.
            reason = "icmp_translated" if narrow == "hop" else "icmp_too_big"
            assert counted(reason) >= 1
            assert counted("too_big_dropped") == 0


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
