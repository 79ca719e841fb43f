# SPDX-License-Identifier: Apache-2.0
"""How the mock engine is told what to do."""

from __future__ import annotations

import pytest

from xdp_router.lab.engine_behaviour import KINDS, Behaviour, option
from xdp_router.lab.errors import LabError


def test_a_text_changes_what_it_names() -> None:
    """Keys with - or _, flags without a value, spaces; all else stays."""
    before = Behaviour(tokens=3, gap_ms=2.0)
    after = before.changed(" ttft-ms=1.5, role_first,crash-after=2,retry-after=7,split=0")
    assert after == Behaviour(
        tokens=3, gap_ms=2.0, ttft_ms=1.5, role_first=True, crash_after=2, retry_after="7"
    )
    assert before.changed("") == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tokns=1", "'tokns' is no behaviour: ttft-ms, "),
        ("tokens=x", "tokens=x: expected a number"),
        ("tokens", "tokens=: expected a number"),
        ("split=maybe", "split=maybe: expected 1 or 0"),
        ("ttft-ms=-1", "ttft-ms=-1: expected 0 or more"),
        ("ttft-ms=nan", "ttft-ms=nan: expected 0 or more"),
    ],
)
def test_what_is_none_is_named(text: str, reason: str) -> None:
    """The key, and what was expected."""
    with pytest.raises(LabError) as caught:
        Behaviour().changed(text)
    assert str(caught.value).startswith(reason)


def test_every_field_can_be_given() -> None:
    """By its option's name, with its own default."""
    for name in KINDS:
        value = getattr(Behaviour(), name)
        assert Behaviour().changed(f"{option(name)}={value}") == Behaviour()


def test_times() -> None:
    """A prompt makes the first token later; a break is by either way."""
    assert Behaviour(ttft_ms=2).first_ns(4096) == 2_000_000
    assert Behaviour(ttft_ms=2, prompt_us=500).first_ns(4096) == 4_000_000
    assert Behaviour(gap_ms=0.5).gap_ns == 500_000
    assert [Behaviour().last, Behaviour(close_after=3).last, Behaviour(crash_after=0).last] == [
        -1,
        3,
        0,
    ]
