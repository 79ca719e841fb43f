# SPDX-License-Identifier: Apache-2.0
"""``attach --gateway``: the gateway as a child of the router's daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from xdp_router.adapters.control import CommandError, ControlError
from xdp_router.adapters.control_client import ControlClient
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"),))
WAIT_S = 40.0
LISTENER = (
    '[[listener]]\nname = "{}"\ntype = "tls"\naddress = "127.0.0.1:{}"\n'
    '[[listener.backend]]\naddress = "127.0.0.1:9"\n'
)


@pytest.fixture
def router(private_mounts: Path) -> Iterator[Router]:
    """A router that is not started yet."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        yield made


def gateway(router: Router, command: str) -> object:
    """What the gateway answers; None: there is none."""
    try:
        with ControlClient(router.control.with_name("gateway.sock")) as client:
            return client.call(command)
    except ControlError:
        return None


def names(router: Router) -> list[str]:
    """Of the listeners that are served."""
    rows = gateway(router, "listeners")
    return [each["name"] for each in rows] if isinstance(rows, list) else []


def until(router: Router, *wanted: str) -> None:
    """Wait until these listeners are served."""
    wait_for(
        lambda: names(router) == list(wanted),
        WAIT_S,
        f"listeners {wanted}\n{router.log.read_text()}",
    )


def test_a_child_as_long_as_the_router_runs(router: Router) -> None:
    """Started again when it dies, told of a reload, gone when there are no listeners, and at the
    end, for which SIGTERM to all of them, as systemd sends it, is no reason to hurry."""
    services = calm_config(SPEC)
    router.start(services + LISTENER.format("one", 8080), "--gateway")
    until(router, "one")
    (started,) = router.events("gateway_started")
    os.kill(started["pid"], signal.SIGKILL)
    wait_for(lambda: router.events("gateway_died"), WAIT_S, "it is missed")
    until(router, "one")
    with (
        ControlClient(router.control.with_name("gateway.sock")) as client,
        pytest.raises(CommandError, match="run by the router's daemon"),
    ):
        client.call("upgrade")

    both = services + LISTENER.format("one", 8080) + LISTENER.format("two", 8081)
    router.config.write_text(both)
    router.ask("reload")
    until(router, "one", "two")
    router.config.write_text(LISTENER.format("one", 8080))
    refused = router.cli("reload")
    assert refused.returncode == 1
    assert "at least one [[service]]" in refused.stderr
    assert names(router) == ["one", "two"]

    router.config.write_text(services)
    router.ask("reload")
    wait_for(lambda: router.events("gateway_ended"), WAIT_S, "it has ended")
    router.config.write_text(both)
    router.ask("reload")
    until(router, "one", "two")
    *_, last = router.events("gateway_started")
    os.kill(last["pid"], signal.SIGTERM)
    assert router.stop() == 0
    assert len(router.events("gateway_ended")) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(last["pid"], 0)


def test_listeners_that_nobody_serves(router: Router) -> None:
    """They are named in the log; a file of listeners alone is refused."""
    router.start(calm_config(SPEC) + LISTENER.format("one", 8080))
    (line,) = router.events("listeners_not_served")
    assert line["listeners"] == ["one"]
    assert router.stop() == 0
    router.config.write_text(LISTENER.format("one", 8080))
    options = "--config", str(router.config)
    refused = router.attach_in_vain(router.lab.router_interfaces, *options, "--gateway")
    assert refused.returncode == 2
    assert "at least one [[service]] (listeners are served by 'xdp-routerd gateway')" in (
        refused.stderr
    )
    refused = router.cli("doctor", *options)
    assert refused.returncode == 2
    assert "at least one [[service]]" in refused.stderr
