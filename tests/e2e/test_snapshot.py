# SPDX-License-Identifier: Apache-2.0
"""Mode ``snapshot`` from end to end: shares, stalls, a daemon that is killed, other modes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connect, echo_intact, random_bytes, who, who_answers
from tests.support.netns import wait_for
from tests.support.receipts import ask_by_udp
from tests.support.router import Router, calm_config, routed_lab
from tests.support.wide_lab import routed_wide_lab
from xdp_router.adapters.control import CommandError
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.spec import Method

pytest_plugins = ("tests.support.netns",)

FAR = "b3"
SPEC = LabSpec(
    tuple(BackendSpec(name, delay_line=True) for name in ("b1", "b2", "b3")),
)
# Times that a machine with other work keeps: measurements hold for a second.
SETTINGS = 'heartbeat_stale = "300ms"\nmax_flows = 5_000'
OWN = 'probe_interval = "10ms"\nsnapshot_age = "1s"\n'
FLOWS = 120


def config(own: str = OWN, **web: Any) -> str:
    """The lab's service in mode snapshot, with these lines, and without a fallback."""
    text = calm_config(SPEC, SETTINGS, mode="snapshot", **{"deadline": "300ms", **web})
    text = text.replace("[[service]]\n", f"[[service]]\n{own}", 1)
    return "".join(line for line in text.splitlines(True) if "fallback =" not in line)


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """Three backends, of which the third is 20 ms away; all have been measured."""
    with routed_lab(private_mounts, SPEC, config()) as made:
        made.lab.set_delay(FAR, 0.020)
        wait_for(lambda: shares(made).get(FAR) == 0, 10, "the far backend has no share")
        yield made


def shares(router: Router) -> dict[str, float]:
    """Each backend's share of the newest table."""
    return {row["name"]: row["share"] or 0 for row in router.json("backends")}


def answering(router: Router, flows: int = FLOWS) -> Counter[str]:
    """Which backends get so many connections."""
    return Counter(who_answers(router) for _ in range(flows))


def measured(router: Router) -> Callable[[], bool]:
    """Whether the two near backends have all of the table between them."""

    def both() -> bool:
        found = shares(router)
        return min(found["b1"], found["b2"]) > 0.1 and found[FAR] == 0

    return both


def explained(router: Router) -> dict[str, Any]:
    """What ``explain`` says about a new connection."""
    with connect(router) as peer:
        who(peer)
        host, port = peer.getsockname()
        found: dict[str, Any] = router.json("explain", f"{host}:{port}")
        return found


def test_near_backends_share_the_connections(router: Router) -> None:
    """XDP decides, in its own pass; the far one gets next to none; explain has the terms."""
    wait_for(measured(router), 10, "both near ones are measured")
    with router.counted() as counted:
        found = answering(router)
        assert counted("decided_snapshot") == FLOWS
        assert counted("first_packet") == 0
    assert found[FAR] <= 3
    assert min(found["b1"], found["b2"]) > FLOWS * 0.03
    # The table is written anew when it is half worn: until then it has what it was made of.
    wait_for(lambda: far_rtt_us(explained(router)) > 10_000, 5, "the table knows how far it is")
    shown = explained(router)
    assert (shown["mode"], shown["reason"]) == ("snapshot", "snapshot")
    terms = {row["backend"]: row["terms"] for row in shown["snapshot"]["backends"]}
    assert terms[FAR]["rtt"] < 0.5
    assert {row["backend"] for row in shown["candidates"]} == {"b1", "b2", FAR}
    assert any(step["what"] == "snapshot" for step in shown["timeline"])


def far_rtt_us(shown: dict[str, Any]) -> float:
    """How far away the far backend was when the table of a decision was made; 0: not known."""
    rows = shown["snapshot"]["backends"] if shown["snapshot"] else []
    return next((row["rtt_us"] for row in rows if row["backend"] == FAR), 0.0)


def test_a_silent_backend_loses_its_slots_and_gets_them_back(router: Router) -> None:
    """No connection meets it from then on; when it answers again it takes part."""
    wait_for(measured(router), 10, "both near ones are measured")
    router.lab.silence_backend("b1")
    try:
        wait_for(lambda: shares(router)["b1"] == 0, 5, "it has no slot")
        found = answering(router, 60)
        assert found["b1"] == 0
    finally:
        router.lab.unsilence_backend("b1")
    wait_for(measured(router), 5, "it takes part again")
    assert answering(router)["b1"] > 0


def test_what_is_told_moves_shares(router: Router) -> None:
    """A long queue costs b1 connections, within milliseconds."""
    wait_for(measured(router), 10, "both near ones are measured")
    for name, queue in (("b1", "50"), ("b2", "1")):
        done = router.cli("push", name, "--queue", queue)
        assert done.returncode == 0, done.stderr
    row = next(row for row in router.json("backends") if row["name"] == "b1")
    assert row["told"]["queue"]["value"] == 50
    wait_for(
        lambda: explained(router)["snapshot"]["backends"][0]["terms"]["queue"] == 0,
        5,
        "the queue is a term of the score",
    )
    wrong = router.cli("push", "b7", "--queue", "1")
    assert wrong.returncode == 1
    assert "there is no backend 'b7'; there are: b1, b2, b3" in wrong.stderr
    router.cli("push", "b1", "--queue", "1")


def test_the_mode_changes_under_connections(router: Router) -> None:
    """Snapshot, race, inline, and back: each decides the next connections; streams go on."""
    wait_for(measured(router), 10, "both near ones are measured")
    with connect(router) as stream:
        who(stream)
        for number, (mode, reasons) in enumerate(
            (
                ("race", {"race_won", "race_joined", "tie"}),
                ("inline", {"inline"}),
                ("snapshot", {"snapshot"}),
            )
        ):
            assert router.ask("set_mode", service="web", mode=mode)["mode"] == mode
            (service,) = router.json("services")
            assert service["mode"] == mode
            wait_for(
                lambda mode=mode: explained(router)["mode"] == mode,  # type: ignore[misc]  # its default is its type
                5,
                f"XDP decides in mode {mode}",
            )
            shown = explained(router)
            assert shown["reason"] in reasons
            assert echo_intact(stream, random_bytes(200_000, number))
    with pytest.raises(CommandError, match="expected one of race, snapshot, inline"):
        router.ask("set_mode", service="web", mode="fast")


def test_a_daemon_that_is_killed_leaves_a_table_that_ages(router: Router) -> None:
    """XDP picks by it while it is fresh, and goes down the degrade chain when it is not.

    Connections go on, and the next daemon takes over and measures anew.
    """
    wait_for(measured(router), 10, "both near ones are measured")
    with connect(router) as stream:
        who(stream)
        with router.counted() as counted:
            router.stop(signal.SIGKILL)
            answering(router, 20)
            assert counted("decided_snapshot") > 0
            time.sleep(1.1)
            before = counted("decided_snapshot")
            stale = counted("snapshot_stale")
            answering(router, 20)
            assert counted("decided_snapshot") == before
            assert counted("snapshot_stale") - stale == 20
        assert echo_intact(stream, random_bytes(200_000))
        router.start(config())
        wait_for(lambda: explained(router)["mode"] == "snapshot", 10, "it is measured again")
        assert echo_intact(stream, random_bytes(200_000, 2))


@pytest.mark.parametrize("method", ["nat", "dsr"])
def test_datagrams_of_ipv6_are_picked_for(private_mounts: Path, method: Method) -> None:
    """By pings in the background; each flow keeps its backend, whoever answers directly or not."""
    with routed_wide_lab(
        private_mounts,
        family=6,
        protocol="udp",
        method=method,
        backends=2,
        mode="snapshot",
        service=f'probe = "icmp"\n{OWN}',
        settings=SETTINGS,
        fallback=False,
    ) as wide:
        router = wide.router
        wait_for(lambda: len(shares(router)) == 2 and all(shares(router).values()), 10, "measured")
        with router.counted() as counted:
            for number in range(8):
                who_got_it = ask_by_udp(wide.client, wide.service, bytes([number]) * 100)
                assert who_got_it in ("b1", "b2")
            assert counted("decided_snapshot") == 8
            assert counted("first_packet") == 0
