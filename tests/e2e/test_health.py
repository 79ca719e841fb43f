# SPDX-License-Identifier: Apache-2.0
"""Backends that fall silent, refuse, flap and come back, as clients and operators see it."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clients import connect, receive, stream_to, who_answers
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config
from tests.support.stopped_router import SPEC

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

INTERVAL_S = 0.3
QUICK = 'health_interval = "300ms"\nhealth_hold = "300ms"\n'
TOLD_S = 30.0
"""Within what a client is told: 4 intervals, or 25 times as much if others have the machine."""


def config(more: str = "", **web: Any) -> str:
    """The lab's, with a short health interval and what else the service is to have."""
    keys = QUICK + more
    return calm_config(SPEC, 'coalesce_window = "0ms"', **{"fallback": "b2", "keys": keys, **web})


def health(router: Router, backend: str) -> dict[str, Any]:
    (found,) = (each for each in router.ask("backends") if each["name"] == backend)
    return dict(found["health"])


def wait_state(router: Router, backend: str, wanted: str, timeout: float = 30.0) -> None:
    wait_for(lambda: health(router, backend)["state"] == wanted, timeout, f"{backend} is {wanted}")


def is_reset(peer: socket.socket, timeout: float = TOLD_S) -> bool:
    """Whether the connection is reset by then, though its client says nothing."""
    peer.settimeout(timeout)
    try:
        peer.recv(1)
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return False


def flows_ended(router: Router) -> int:
    """How many: that is known when all tables were walked, after the first clients were told."""
    wait_for(lambda: router.events("flows_ended"), TOLD_S, "all clients were told")
    (ended,) = router.events("flows_ended")
    return int(ended["flows"])


@pytest.fixture(autouse=True)
def all_speak(router: Router) -> Iterator[None]:
    """One test that fails leaves no backend silent to the others."""
    yield
    router.lab.unsilence_backend("b1")


def test_a_backend_that_dies_mid_stream(router: Router) -> None:
    """Its silent client is told, and comes back to another; it returns with a part of its share."""
    router.start(config('slow_start = "1h"\n'))
    kept, other = stream_to(router, "b1"), stream_to(router, "b2")
    router.lab.silence_backend("b1")
    assert is_reset(kept)
    assert health(router, "b1")["state"] == "dead"
    assert {who_answers(router) for _ in range(20)} == {"b2"}
    (ill,) = router.events("backend_ill")
    assert (ill["backend"], ill["reason"], ill["times"]) == ("b1", "unanswered", 1)
    assert flows_ended(router) == router.ask("status")["flows_ended"] == 1
    assert "b1 has been dead" in router.cli("backends").stdout
    router.lab.unsilence_backend("b1")
    wait_state(router, "b1", "well")
    shares = Counter(who_answers(router) for _ in range(100))
    assert shares["b1"] < 35, shares  # of 10 that it is to have, if it were always the first
    assert any(who_answers(router) == "b1" for _ in range(1000))
    shown = router.cli("backends").stdout
    assert re.search("b1 has come back: its weight counts 1[0-9]%", shown), shown
    other.sendall(b"still here")
    assert receive(other, 10) == b"still here"


def test_a_backend_that_is_taken_away_and_dies(router: Router) -> None:
    """It is not in the configuration any more, and its connections go on while it answers pings;
    when it does not, their clients are told."""
    text = config('probe = "icmp"\n')
    first, b1, b2 = text.split("[[service.backend]]")
    assert '"b1"' in b1
    router.start(text)
    kept = stream_to(router, "b1")
    router.config.write_text("[[service.backend]]".join((first, b2)))
    assert router.cli("reload").returncode == 0
    assert not is_reset(kept, 6 * INTERVAL_S)
    router.lab.silence_backend("b1")
    assert is_reset(kept)
    assert [each["backend"] for each in router.events("backend_dead")] == ["b1"]
    assert flows_ended(router) == 1
    status = router.ask("status")
    assert (status["backends_ill"], status["backends_dead"]) == (0, 0)


def test_who_wants_no_resets_keeps_the_stream(router: Router) -> None:
    """An ill backend's connection waits as long as it likes, and goes on when it is back. A router
    that is restarted meanwhile knows that it is ill."""
    text = config("reset_on_death = false\n", mode="snapshot")
    router.start(text, "--persist")
    kept = stream_to(router, "b1")
    router.lab.silence_backend("b1")
    wait_state(router, "b1", "ill")
    assert {who_answers(router) for _ in range(20)} == {"b2"}
    assert not is_reset(kept, 5 * INTERVAL_S)
    assert health(router, "b1")["state"] == "ill"
    router.stop()
    router.start(text)
    assert {who_answers(router) for _ in range(20)} == {"b2"}
    found = health(router, "b1")
    assert (found["state"], found["why"]) == ("ill", "not well since the restart")
    assert router.events("backend_ill") == []
    router.lab.unsilence_backend("b1")
    kept.settimeout(TOLD_S)
    kept.sendall(b"still here")
    assert receive(kept, 10) == b"still here"
    wait_state(router, "b1", "well")


def test_a_server_that_refuses_keeps_its_connections(router: Router) -> None:
    """New ones go elsewhere; one that flaps is held down twice as long, and begins with a part
    of its share, in mode inline, too."""
    address = SPEC.addresses.backends[0]
    router.lab.kill_backend("b1")
    try:
        with listener(router, address) as first:
            router.start(config('slow_start = "1h"\n', mode="inline"))
            assert router.ask("drain", backend="b2")["changed"]
            kept = connect(router)
            served, _ = first.accept()
            assert router.ask("undrain", backend="b2")["changed"]
        wait_state(router, "b1", "ill")
        found = health(router, "b1")
        assert (found["why"], found["times"]) == ("refused", 1)
        assert {who_answers(router) for _ in range(20)} == {"b2"}
        for text in (b"to the server", b"to the client"):
            for here, there in ((kept, served), (served, kept)):
                here.sendall(text)
                assert receive(there, len(text)) == text
        with listener(router, address):
            wait_state(router, "b1", "well")
            value = router.maps_read(lambda maps: maps.backends.read(0))
            assert value is not None
            assert 25 <= value.share < 40
        wait_state(router, "b1", "ill")
        assert [each["held_s"] for each in router.events("backend_ill")] == [0.3, 0.6]
        kept.sendall(b"still here")
        assert receive(served, 10) == b"still here"
        assert not router.events("backend_dead")
    finally:
        router.lab.start_backend("b1")


def listener(router: Router, address: tuple[str, int]) -> socket.socket:
    """A server of the test's own in place of the lab's."""
    made = router.lab.backends[0].socket(socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.settimeout(TOLD_S)
    made.bind(address)
    made.listen(64)
    return made
