# SPDX-License-Identifier: Apache-2.0
"""Probe ports rotate, are never shared, and change their nonce with every reuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.ports import ProbePorts, ProbeSlot


def test_first_use_of_each_port_has_nonce_zero_and_goes_through_the_range() -> None:
    """Every port of the inclusive range is handed out once, in order, before any is reused."""
    ports = ProbePorts(61_000, 61_002)
    assert [ports.acquire() for _ in range(3)] == [
        ProbeSlot(61_000, 0),
        ProbeSlot(61_001, 0),
        ProbeSlot(61_002, 0),
    ]


def test_none_is_left_when_every_port_has_an_outstanding_probe() -> None:
    """A held port is not handed out, even if that means that there is none."""
    ports = ProbePorts(61_000, 61_000)
    assert ports.acquire() == ProbeSlot(61_000, 0)
    assert ports.acquire() is None
    ports.release(61_000)
    assert ports.acquire() == ProbeSlot(61_000, 1)


def test_released_port_rests_as_long_as_possible() -> None:
    """A port that was just given back is the last one to be used again."""
    ports = ProbePorts(61_000, 61_002)
    assert ports.acquire() == ProbeSlot(61_000, 0)
    ports.release(61_000)
    reused = [ports.acquire() for _ in range(3)]
    assert reused == [ProbeSlot(61_001, 0), ProbeSlot(61_002, 0), ProbeSlot(61_000, 1)]


def test_nonce_wraps_after_256_uses() -> None:
    """The nonce is 8 bits wide: use number 257 of a port has nonce 0 again."""
    ports = ProbePorts(61_000, 61_000)
    nonces = []
    for _ in range(257):
        slot = ports.acquire()
        assert slot is not None
        nonces.append(slot.nonce)
        ports.release(slot.port)
    assert nonces == [*range(256), 0]


def test_releasing_a_port_twice_is_refused() -> None:
    """A second release would let two probes share a port; it raises and changes nothing."""
    ports = ProbePorts(61_000, 61_001)
    assert ports.acquire() == ProbeSlot(61_000, 0)
    ports.release(61_000)
    with pytest.raises(ValueError, match="61000 is not held"):
        ports.release(61_000)
    assert ports.outstanding == 0
    assert [ports.acquire(), ports.acquire(), ports.acquire()][2] is None


@pytest.mark.parametrize(("first", "last"), [(0, 10), (10, 9), (60_000, 65_536)])
def test_impossible_ranges_are_refused(first: int, last: int) -> None:
    """The message names the range and the two settings to correct."""
    with pytest.raises(ValueError, match=f"{first}-{last}.*probe_port_min and probe_port_max"):
        ProbePorts(first, last)


@given(st.lists(st.one_of(st.none(), st.integers(0, 7)), max_size=200))
def test_no_port_is_ever_held_twice(actions: list[int | None]) -> None:
    """Whatever the order of uses and releases, held ports differ and nonces count up."""
    ports = ProbePorts(100, 104)
    held: list[int] = []
    uses = dict.fromkeys(range(100, 105), 0)
    for action in actions:
        if action is None:
            slot = ports.acquire()
            if slot is None:
                assert len(held) == 5
                continue
            assert slot.port not in held
            assert slot.nonce == uses[slot.port] % 256
            uses[slot.port] += 1
            held.append(slot.port)
        elif held:
            ports.release(held.pop(action % len(held)))
        assert ports.outstanding == len(held)
