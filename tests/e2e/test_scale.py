# SPDX-License-Identifier: Apache-2.0
"""Thousands of services with sixteen backends each: everything works, at any size."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.support import router as router_support
from tests.support.many_services import Listeners, many_services, talk
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, router_in
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SERVICES = 3_000
SPEC = LabSpec(tuple(BackendSpec(f"b{number}") for number in range(16)))
BACKENDS = SERVICES * len(SPEC.backends)
SOME = (0, SERVICES // 2, SERVICES - 1)


@pytest.fixture
def router(private_mounts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    """A lab with sixteen backends, and a router that is not started."""
    monkeypatch.setattr(router_support, "READY_S", 150.0)
    monkeypatch.setattr(router_support, "COMMAND_S", 60.0)
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        yield made


def set_link(router: Router, name: str, state: str) -> None:
    """Bring one of the router's interfaces up or down."""

    def change() -> None:
        with IPRoute() as ipr:
            ipr.link("set", index=ipr.link_lookup(ifname=name)[0], state=state)

    router.lab.router.run(change)


@pytest.mark.timeout(400)  # on a machine that others use as well
def test_thousands_of_services_with_sixteen_backends(router: Router) -> None:
    """Check, attach, connect, look at all of it, lose a host, get it back, and be adopted."""
    config = many_services(SPEC, SERVICES, "max_flows = 100_000")
    router.config.write_text(config)
    done = router.routerd("check", str(router.config))
    assert f"good; services: {SERVICES}, backends: {BACKENDS}" in done.stdout, done.stderr
    router.start(config, "--persist")
    assert router.ask("status")["backends_up"] == BACKENDS
    listeners = Listeners(router, SOME)
    try:
        for number in SOME:
            with listeners.connection(number) as (client, server, index):
                talk(client, server)
                flow = router.flow(client.getsockname())
                assert flow is not None
                assert (flow["service"], flow["backend"]) == (f"s{number}", f"s{number}-b{index}")
                assert flow["decision"]["mode"] == "race"
        names = [row["name"] for row in router.json("services")]
        assert names == [f"s{number}" for number in range(SERVICES)]
        assert len(router.json("backends")) == BACKENDS

        gone = len(SPEC.backends) - 1
        wire = router.lab.router_interfaces[-1]
        set_link(router, wire, "down")
        left = BACKENDS - SERVICES
        wait_for(lambda: router.ask("status")["backends_up"] == left, 30, "the host's are down")
        (line,) = router.events("backend_down")
        assert line["backends"] == SERVICES
        for number in SOME:
            for _ in range(3):
                with listeners.connection(number) as (client, server, index):
                    talk(client, server)
                    assert index != gone
        waiting = router.ask("status")["hash_tables_waiting"]
        fewer = waiting - min(waiting, 1_000)
        wait_for(lambda: router.ask("status")["hash_tables_waiting"] <= fewer, 20, "published")
        set_link(router, wire, "up")
        wait_for(lambda: router.ask("status")["backends_up"] == BACKENDS, 30, "they are back")

        with listeners.connection(SOME[1]) as (client, server, index):
            talk(client, server)
            router.stop(signal.SIGKILL)
            talk(client, server)
            router.start(config, "--persist")
            talk(client, server)
            flow = router.flow(client.getsockname())
            assert flow is not None
            assert flow["backend"] == f"s{SOME[1]}-b{index}"
            with listeners.connection(SOME[2]) as (other, server, _):
                talk(other, server)
    finally:
        listeners.close()
