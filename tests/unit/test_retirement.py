# SPDX-License-Identifier: Apache-2.0
"""A retired backend's id is free when two sweeps have met no flow of it."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from tests.support.cast import BACKENDS
from xdp_router.core import abi
from xdp_router.core.model import Backend
from xdp_router.daemon.retirement import AT_ONCE, SWEEPS, Retirement

FLOW, PENDING = Struct("=56xI68x"), Struct("=36xI64x")
assert (FLOW.size, PENDING.size) == (abi.FLOW_ENTRY_SIZE, abi.PENDING_FLOW_SIZE)


def sweep(retirement: Retirement, flows: tuple[int, ...], pending: tuple[int, ...] = ()) -> None:
    """One sweep that meets entries of these backends."""
    retirement.flows(b"".join(FLOW.pack(each) for each in flows))
    retirement.pending(b"".join(PENDING.pack(each) for each in pending))
    retirement.swept()


def test_the_last_flow_frees_it() -> None:
    """Two sweeps in a row without it; a flow of any other backend is no flow of it."""
    gone: list[Backend] = []
    retirement = Retirement(BACKENDS[:2], gone.append)
    one, two, three = (backend.id for backend in BACKENDS)
    sweep(retirement, (one, three))
    sweep(retirement, (one,), (two,))
    assert not gone
    sweep(retirement, (one,))
    assert not gone
    sweep(retirement, (one,))
    assert gone == [BACKENDS[1]]
    sweep(retirement, ())
    sweep(retirement, (), (one,))  # met again: a handshake had moved it
    sweep(retirement, ())
    assert len(retirement) == 1
    sweep(retirement, ())
    assert gone == [BACKENDS[1], BACKENDS[0]]
    sweep(retirement, ())
    assert len(gone) == 2


def test_a_batch_alone_says_nothing() -> None:
    """A sweep that did not come to its end counts for nothing."""
    gone: list[Backend] = []
    retirement = Retirement(BACKENDS[:1], gone.append)
    for _ in range(5):
        retirement.flows(b"")
        retirement.pending(b"")
    assert not gone


def test_what_follows_is_done_once_for_all_of_a_sweep() -> None:
    """After those that it has ended were forgotten; not after a sweep that ended none."""
    told: list[str] = []
    retirement = Retirement(
        BACKENDS[:2], lambda each: told.append(each.name), lambda: told.append("settled")
    )
    for _ in range(3):
        sweep(retirement, ())
    assert told == ["b1", "b2", "settled"]


def test_many_that_are_over_together_do_not_hold_the_loop() -> None:
    """It has its turn after each few of them; what follows is done at the end."""
    many = [replace(BACKENDS[0], id=number) for number in range(5 * AT_ONCE)]
    told: list[str] = []
    retirement = Retirement(
        many, lambda each: told.append(str(each.id)), lambda: told.append("settled")
    )
    for _ in range(SWEEPS - 1):
        assert not list(retirement.steps())
    seen = 0
    for _ in retirement.steps():
        assert len(told) - seen <= AT_ONCE
        seen = len(told)
    assert len(told) == len(many) + 1
    assert told[-1] == "settled"
