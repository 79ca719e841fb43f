# SPDX-License-Identifier: Apache-2.0
"""Typed reading of single configuration values."""

from __future__ import annotations

import tomllib

import pytest

from xdp_router.adapters.names import NAME_BYTES
from xdp_router.core.config_fields import MS, NAME_MAX, Problems, S, Table, format_duration
from xdp_router.core.model import Endpoint


def read(text: str) -> tuple[Table, Problems]:
    problems = Problems("a.toml", text)
    return Table(tomllib.loads(text), (), problems), problems


@pytest.mark.parametrize(
    ("text", "value_ns"),
    [("1ms", MS), ("0.5s", S // 2), ("250us", MS // 4), ("1000000ns", MS), ("1m", 60 * S)],
)
def test_durations_have_a_unit(text: str, value_ns: int) -> None:
    """A duration is a number and a unit, exact to the nanosecond."""
    table, problems = read(f"t = '{text}'")
    assert table.duration("t", 0, 1, 3600 * S) == value_ns
    assert not problems


@pytest.mark.parametrize("text", ["", "1", "ms", "1 ms", "-1ms", "1ms ", "1e3ms", "0.5ns", "2h"])
def test_other_durations_are_refused(text: str) -> None:
    """No unit, a sign, blanks, parts of a nanosecond or out of range: refused, default kept."""
    table, problems = read(f"t = '{text}'")
    assert table.duration("t", 7, 1, 3600 * S) == 7
    assert "expected a duration" in str(problems.error())


def test_names_fit_into_the_map() -> None:
    """What commands without a daemon read is the whole name."""
    assert NAME_MAX == NAME_BYTES


@pytest.mark.parametrize("text", ["1h", "90s", "50ms", "3us", "7ns", "0s"])
def test_durations_are_shown_as_an_operator_writes_them(text: str) -> None:
    """The shortest exact form comes back."""
    table, _ = read(f"t = '{text}'")
    assert format_duration(table.duration("t", 1, 0, 3600 * S)) == text


def test_bounds_are_inclusive() -> None:
    """Both ends of a range are allowed, one step further is not."""
    table, problems = read("a = 1\nb = 9\nc = 0\nd = 10\n")
    assert [table.integer(key, 5, 1, 9) for key in "abcd"] == [1, 9, 5, 5]
    assert [problem.line for problem in problems.error().problems] == [3, 4]


def test_what_stands_for_nothing_cannot_be_written() -> None:
    """A default may be beyond the bounds, or no name; the same in the file is a mistake."""
    table, problems = read("limit = -1\nname = ''\n")
    assert (table.integer("limit", -1, 1, 9), table.name("name", "")) == (-1, "")
    assert [problem.line for problem in problems.error().problems] == [1, 2]
    table, problems = read("")
    assert (table.integer("limit", -1, 1, 9), table.name("name", "")) == (-1, "")
    assert not problems


def test_keys_nobody_asked_for_are_refused() -> None:
    """What was read is known, the rest is reported with the keys that exist."""
    table, problems = read("a = 1\nB = 2\n")
    table.integer("a", 1, 1, 9)
    assert not problems
    table.refuse_unknown()
    assert str(problems.error()) == "a.toml:2: B: unknown key, expected one of: a"
    for key in (r"\u001b[31m", "line\\nline", "x" * 5000):
        table, problems = read(f'"{key}" = 1\n')
        table.refuse_unknown()
        text = str(problems.error())
        assert text.isprintable()
        assert len(text) < 200


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("198.18.1.2", "expected an address and port, as 198.18.1.2:80 or [2001:db8::2]:80"),
        ("198.18.1.2:0", "expected 1 to 65535"),
        ("198.18.1.2:99999", "expected 1 to 65535"),
        ("198.18.1.256:80", "is not an IP address"),
        ("2001:db8::1:80", "expected an IPv6 address in brackets"),
        ("[ff02::1]:80", "'[ff02::1]:80', a multicast address, expected a unicast address"),
        ("[fe80::1]:80", "a link-local address, which is valid on one link only"),
        ("169.254.1.1:80", "a link-local address, which is valid on one link only"),
        ("[fe80::1%eth0]:80", "has a zone (what is behind the %)"),
        ("[::]:80", "'::' is the unspecified address"),
        ("[::1]:80", "'::1' is the loopback address"),
        ("[::c612:102]:80", "is a reserved address (::/96)"),
        ("[::ffff:198.18.1.2]:80", "which no packet bears: expected 198.18.1.2"),
        ("224.0.0.1:80", "a multicast address"),
        ("255.255.255.255:80", "the broadcast address"),
        ("127.0.0.1:80", "a loopback address"),
        ("0.0.0.0:80", "the unspecified address"),
        ("0.1.2.3:80", "a reserved address"),
        ("240.0.0.1:80", "a reserved address"),
    ],
)
def test_addresses_that_cannot_work_are_refused(address: str, why: str) -> None:
    """An endpoint is a unicast address and a port; the problem names file, line and key."""
    table, problems = read(f"\naddress = '{address}'\n")
    assert table.endpoint("address", 6) == Endpoint(0, 0, 6)
    assert str(problems.error()).startswith("a.toml:2: address: ")
    assert why in str(problems.error())
