# SPDX-License-Identifier: Apache-2.0
"""Mode ``inline`` from end to end: no probes; what connections show decides the next ones."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connect, who, who_answers
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, routed_lab
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

FAR = "b3"
SPEC = LabSpec(tuple(BackendSpec(name, delay_line=True) for name in ("b1", "b2", "b3")))
FLOWS = 90


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """Three backends, of which the third is 50 ms away; none has been asked anything."""
    config = calm_config(SPEC, "max_flows = 5_000", mode="inline", deadline="300ms")
    with routed_lab(private_mounts, SPEC, config) as made:
        made.lab.set_delay(FAR, 0.050)
        yield made


def test_a_far_backend_is_asked_now_and_then(router: Router) -> None:
    """XDP decides, in its own pass; the far one gets what it takes to know how far it is."""
    for _ in range(10):  # each is asked at least once
        who_answers(router)
    with router.counted() as counted:
        found = Counter(who_answers(router) for _ in range(FLOWS))
        assert counted("decided_inline") == FLOWS
        assert counted("first_packet") == 0
    assert found[FAR] < FLOWS / 6, found
    assert min(found["b1"], found["b2"]) > 0, found


def test_a_choice_is_explained_by_both(router: Router) -> None:
    """Whom XDP compared, by what it knew at that moment; the far one is 50 ms away."""

    def compared() -> dict[str, Any]:
        with connect(router) as peer:
            name = who(peer)
            host, port = peer.getsockname()
            shown = router.json("explain", f"{host}:{port}")
        assert (shown["mode"], shown["reason"], shown["backend"]) == ("inline", "inline", name)
        assert {each["backend"] for each in shown["candidates"]} == {
            each["backend"] for each in shown["compared"]
        }
        return {each["backend"]: each for each in shown["compared"]} | {"chosen": name}

    seen: list[dict[str, Any]] = []

    def met() -> bool:
        seen.append(compared())
        return FAR in seen[-1] and seen[-1]["chosen"] != FAR

    wait_for(met, 20, "the far one was one of the two")
    found = seen[-1]
    near = found[found["chosen"]]
    assert found[FAR]["wait_us"] > 45_000 > near["wait_us"]
    assert found[FAR]["cost_us"] > near["cost_us"]


def test_open_connections_are_counted_while_they_are(router: Router) -> None:
    """Those of all backends together; none is left when all are closed."""

    with ExitStack() as stack:
        wait_for(lambda: open_flows(router) == 0, 10, "those of before are over")
        for _ in range(12):
            who(stack.enter_context(connect(router)))
        wait_for(lambda: open_flows(router) == 12, 10, "all of them are open")
    wait_for(lambda: open_flows(router) == 0, 10, "all of them are over")


def test_open_connections_are_counted_over_daemons(router: Router) -> None:
    """One is killed, another one takes over: what came and went meanwhile is counted."""
    wait_for(lambda: open_flows(router) == 0, 10, "those of before are over")
    with ExitStack() as stay, ExitStack() as leave:
        for where in (stay, stay, leave, leave, leave):
            who(where.enter_context(connect(router)))
        router.stop(signal.SIGKILL)
        who(stay.enter_context(connect(router)))
        leave.close()
        wait_for(lambda: open_flows(router) == 3, 10, "three of six have stayed")
        router.start()
        who(stay.enter_context(connect(router)))
        wait_for(lambda: open_flows(router) == 4, 10, "and one has come")
        assert not router.events("usage_corrected")
    wait_for(lambda: open_flows(router) == 0, 10, "all of them are over")


def open_flows(router: Router) -> int:
    """Of all backends together, as XDP and the daemon keep them."""
    return router.maps_read(
        lambda maps: sum(maps.backend_loads.open(number) for number in range(3))
    )
