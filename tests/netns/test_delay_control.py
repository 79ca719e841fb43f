# SPDX-License-Identifier: Apache-2.0
"""Control of a running delay line from outside its namespace."""

from __future__ import annotations

import time

import pytest

from tests.support.netns import LabFactory
from xdp_router.lab import BackendSpec, Lab, LabError, LabSpec, Stall
from xdp_router.lab.delay_control import control

pytest_plugins = ("tests.support.netns",)

S = 1_000_000_000
HELD_NS = 300_000_000


def test_control_changes_only_what_is_named(make_lab: LabFactory) -> None:
    """Each call answers with the counts and the delay in force; what is not named stays."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_ns=5),)))
    path = lab.directory / "delay-b1.sock"
    assert control(path)["delay_ns"] == 5
    assert control(path, delay_ns=7)["delay_ns"] == 7
    assert control(path, stall=Stall())["delay_ns"] == 7
    assert control(path, stall=None)["lost"] == 0


def test_line_that_is_gone_is_named(make_lab: LabFactory) -> None:
    """Control of a line that does not run is an error that names its socket."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_line=True),)))
    path = lab.directory / "delay-b1.sock"
    lab.close()
    with pytest.raises(LabError, match=r"delay-b1\.sock does not answer"):
        control(path)


def test_a_stall_may_begin_later(make_lab: LabFactory) -> None:
    """Until its start frames are not held; from then on they are."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_line=True),)))
    stall = Stall(extra_ns=HELD_NS, window_ns=60 * S, period_ns=60 * S)
    lab.set_stall("b1", stall, time.time_ns() + 60 * S)
    assert connect_ns(lab) < HELD_NS
    lab.set_stall("b1", stall, time.time_ns() - S)
    assert connect_ns(lab) >= HELD_NS


def connect_ns(lab: Lab) -> int:
    """How long a connection to the backend takes; the second one, which needs no neighbour."""
    lab.client.connect(lab.addresses.backends[0]).close()
    began_ns = time.monotonic_ns()
    lab.client.connect(lab.addresses.backends[0]).close()
    return time.monotonic_ns() - began_ns
