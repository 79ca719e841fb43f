# SPDX-License-Identifier: Apache-2.0
"""What each tenant may use."""

from __future__ import annotations

import pytest

from tests.support.listeners import listener
from xdp_router.gateway import tenants as tenants_module
from xdp_router.gateway.tenants import Refused, Tenants

S = 1_000_000_000
TEXT = """
[listener.priorities]
high = 4.0
low = 0.5
[listener.other_tenants]
streams = 1
[[listener.tenant]]
name = "acme"
rate = 2
burst = 3
priority = "high"
"""


def test_a_rate_with_a_burst() -> None:
    """Three at once, then two a second; beyond that it is told to come again."""
    tenants = Tenants(listener(TEXT), 1)
    for _ in range(3):
        tenants.release(tenants.admit("acme", 0))
    with pytest.raises(Refused) as error:
        tenants.admit("acme", 0)
    assert (error.value.status, error.value.after_s) == (429, 1)
    tenants.admit("acme", S // 2)
    with pytest.raises(Refused):
        tenants.admit("acme", S // 2)


def test_so_many_at_a_time() -> None:
    """One that ends makes room; others have their own."""
    tenants = Tenants(listener(TEXT), 1)
    first = tenants.admit("x", 0)
    with pytest.raises(Refused, match="at a time"):
        tenants.admit("x", 0)
    tenants.admit("y", 0)
    tenants.release(first)
    tenants.admit("x", 0)


def test_workers_share_the_limits() -> None:
    """Each has its part, one at least."""
    tenants = Tenants(listener(TEXT), 3)
    tenants.admit("acme", 0)
    with pytest.raises(Refused):
        tenants.admit("acme", 0)


def test_who_refuses_is_not_counted() -> None:
    """Or refusals would fill the streams."""
    tenants = Tenants(listener(TEXT), 1)
    held = tenants.admit("x", 0)
    for _ in range(5):
        with pytest.raises(Refused):
            tenants.admit("x", 0)
    tenants.release(held)
    assert held.streams == 0


def test_urgency_is_the_class_of_the_tenant_or_of_the_request() -> None:
    """A tenant with a class of its own cannot ask for another; unknown classes are as none."""
    tenants = Tenants(listener(TEXT), 1)
    acme, other = tenants.admit("acme", 0), tenants.admit("x", 0)
    assert tenants.urgency(acme, "low") == 4.0
    assert tenants.urgency(other, "low") == 0.5
    assert tenants.urgency(other, "no such") == 1.0
    assert tenants.urgency(other, "") == 1.0


def test_who_invents_names_gets_no_limits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound all that are not configured share one."""
    monkeypatch.setattr(tenants_module, "OTHERS_KEPT", 3)
    tenants = Tenants(listener(TEXT), 1)
    for number in range(3):
        tenants.admit(f"made-up-{number}", 0)
    first = tenants.admit("made-up-3", 0)
    tenants.admit("made-up-4", 0)
    with pytest.raises(Refused):
        tenants.admit("made-up-5", 0)
    assert first.name in ("made-up-3", "")
    tenants.admit("acme", 0)


def test_extra_legs_are_limited_by_the_rate() -> None:
    """A tenant with a rate has no more further legs than requests; others have what there is."""
    tenants = Tenants(listener(TEXT), 1)
    acme, other = tenants.admit("acme", 0), tenants.admit("x", 0)
    assert [tenants.extra_leg(acme, 0) for _ in range(4)] == [True, True, True, False]
    assert all(tenants.extra_leg(other, 0) for _ in range(100))
