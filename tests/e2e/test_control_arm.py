# SPDX-License-Identifier: Apache-2.0
"""The control arm where XDP decides: its flows go by turns, and show what the mode gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connect, who
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.core.address import parse_addr
from xdp_router.core.config import parse_config
from xdp_router.core.model import FlowKey, Mode, Service
from xdp_router.core.strategy.control_arm import Arm, arm_of
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

FAR_MS = 40
SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2", delay_ns=FAR_MS * 10**6)))
FLOWS = 100
PATIENCE_S = 30.0


def config() -> str:
    text = calm_config(SPEC, "max_flows = 5_000\n", mode="snapshot")
    own = 'control_arm = 50\nprobe_interval = "20ms"\nsnapshot_age = "2s"\n'
    return text.replace("[[service]]\n", f"[[service]]\n{own}", 1)


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """Two backends, one of them far away; half of the flows are in the control arm."""
    with routed_lab(private_mounts, SPEC, config()) as made:
        wait_for(lambda: _share(made, "b2") == 0, PATIENCE_S, "the far one has no share")
        yield made


def _share(router: Router, name: str) -> float | None:
    share: float | None = next(
        row["share"] for row in router.json("backends") if row["name"] == name
    )
    return share


def _arms(router: Router) -> dict[str, Any]:
    (service,) = router.json("services")
    arms: dict[str, Any] = service["first_byte"]["arms"]
    return arms


def _talk(router: Router, web: Service) -> tuple[Counter[tuple[Arm, str]], dict[Arm, str]]:
    """Who has answered the flows of each arm, and a client of each."""
    found: Counter[tuple[Arm, str]] = Counter()
    clients = {}
    host, port = router.service
    for _ in range(FLOWS):
        with connect(router) as peer:
            name = who(peer)
            addr, own = peer.getsockname()
            arm = arm_of(web, FlowKey(parse_addr(addr), own, parse_addr(host), port))
            found[arm, name] += 1
            clients[arm] = f"{addr}:{own}"
    return found, clients


def _measured(router: Router) -> bool:
    arms = _arms(router).values()
    return len(arms) == 2 and sum(arm["count"] for arm in arms) >= FLOWS


def test_the_gain_of_a_snapshot_is_measured(router: Router) -> None:
    """Turns go to the far backend half of the time, picks hardly ever: p99 is longer there."""
    (web,) = parse_config(router.config.read_text(), "x").services
    with router.counted() as counted:
        found, clients = _talk(router, web)
        assert counted("first_packet") == 0  # XDP has decided all of them
        assert counted("decided_control_arm") + counted("decided_snapshot") == FLOWS
        assert counted("decided_control_arm") == sum(
            count for (arm, _), count in found.items() if arm is Arm.CONTROL
        )
    assert found[Arm.CONTROL, "b2"] >= 5
    assert found[Arm.MODE, "b2"] <= 3
    shown = router.json("explain", clients[Arm.CONTROL])
    assert (shown["mode"], shown["reason"]) == ("round_robin", "control_arm")
    shown = router.json("explain", clients[Arm.MODE])
    assert (shown["mode"], shown["reason"]) == ("snapshot", "snapshot")
    wait_for(lambda: _measured(router), PATIENCE_S, "first bytes are known")
    arms = _arms(router)
    assert arms["control"]["decided"] == sum(
        count for (arm, _), count in found.items() if arm is Arm.CONTROL
    )
    assert arms["control"]["p99_ms"] > 2 * FAR_MS
    (service,) = router.json("services")
    gain = service["first_byte"]["control_arm"]
    assert (gain["by"], gain["confidence"]) == ("round_robin", 0.95)
    assert gain["gain_p99_ms"]["estimate"] is not None
    if not found[Arm.MODE, "b2"]:  # else a few flows that were picked for it are its p99
        assert gain["gain_p99_ms"]["estimate"] > FAR_MS / 2
    assert "control arm, 50 % of new flows by round robin" in " ".join(
        router.cli("services").stdout.split()
    )


def test_inline_has_one_too_and_the_hash_can_be_its_measure(router: Router) -> None:
    """Both change while the router runs; figures begin anew then."""
    done = router.cli("service", "set", "web", "mode=inline", "control_arm_by=hash")
    assert done.returncode == 0, done.stderr
    (web,) = parse_config(router.config.read_text(), "x").services
    with router.counted() as counted:
        found, clients = _talk(router, web)
        assert counted("decided_control_arm") + counted("decided_inline") == FLOWS
    shown = router.json("explain", clients[Arm.CONTROL])
    assert (shown["mode"], shown["reason"]) == (Mode.HASH.name.lower(), "control_arm")
    wait_for(lambda: _measured(router), PATIENCE_S, "first bytes are known")
    arms = _arms(router)
    for arm in Arm:
        wanted = sum(count for (each, _), count in found.items() if each is arm)
        assert arms[arm.value]["decided"] == arms[arm.value]["established"] == wanted
