# SPDX-License-Identifier: Apache-2.0
"""The log line about clients beside their backends."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from tests.support.cast import T0, decision, first
from xdp_router.core.model import Decision, Mode, Reason, Unfit
from xdp_router.daemon.beside import EVERY_NS, Beside


def made(decided_ns: int = T0, backend: int = 2, why: Unfit = Unfit.BESIDE_CLIENT) -> Decision:
    """A decision for a client that backend 1 is unfit for."""
    found = decision(first(1), backend, Mode.RACE, Reason.RACE_WON, decided_ns, [])
    found.unfit = ((1, why),)
    return found


def told(*decisions: Decision) -> list[dict[str, Any]]:
    beside = Beside({0: "web"}.__getitem__, {1: "b1", 2: "b2"}.__getitem__)
    with capture_logs() as lines:
        for each in decisions:
            beside.look(each)
    return [dict(line) for line in lines]


def test_it_names_all_that_an_operator_needs() -> None:
    """Service, client, backends, what it means, what to do."""
    (line,) = told(made())
    assert (line["event"], line["log_level"]) == ("client_beside_backend", "warning")
    assert (line["service"], line["backends"]) == ("web", ["b1"])
    assert line["client"] == "198.18.0.1"
    assert line["consequence"] == "they are passed over"
    assert "a route to the client's subnet by this router" in line["mend"]
    (line,) = told(made(backend=1))
    assert "the connection fails without the mend" in line["consequence"]


def test_once_in_a_while() -> None:
    """Not for each connection, but again after ten minutes."""
    assert len(told(made(), made(T0 + 1), made(T0 + EVERY_NS - 1))) == 1
    assert len(told(made(), made(T0 + EVERY_NS))) == 2


def test_a_backend_that_is_the_client_is_another_matter() -> None:
    """It is no fault of the network."""
    assert told(made(why=Unfit.CLIENT_ITSELF)) == []
