# SPDX-License-Identifier: Apache-2.0
"""Host names to values: exact, wildcard, default."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.server_names import NamePatternError, NameTable, name_pattern

TABLE = NameTable(
    {
        "example.com": "apex",
        "*.example.com": "wild",
        "www.example.com": "www",
        "*.api.example.com": "api",
        "Under_Score.Example.NET.": "odd",
        "localhost": "host",
        "*.test": "top",
    },
    "default",
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("example.com", "apex"),
        ("EXAMPLE.Com.", "apex"),
        ("www.example.com", "www"),
        ("mail.example.com", "wild"),
        ("a.b.example.com", "wild"),
        ("a.www.example.com", "wild"),
        ("api.example.com", "wild"),
        ("v1.api.example.com", "api"),
        ("x.v1.API.example.com", "api"),
        ("under_score.example.net", "odd"),
        ("localhost", "host"),
        ("a.test", "top"),
        ("test", "default"),
        ("badexample.com", "default"),
        ("example.com.evil.org", "default"),
        (".example.com", "default"),
        ("*.example.com", "wild"),
        ("192.0.2.1", "default"),
        ("2001:db8::1", "default"),
        ("", "default"),
        (".", "default"),
        ("..", "default"),
        (None, "default"),
    ],
)
def test_the_most_specific_name_wins(name: str | None, value: str) -> None:
    """The very name, the longest wildcard with at least one label before it, the default."""
    assert TABLE.look_up(name) == value


def test_without_a_default_a_strange_name_has_no_value() -> None:
    """None says: nothing is configured for this client."""
    assert NameTable({"a.example": 1}).look_up("b.example") is None
    assert NameTable({"a.example": 1}).look_up(None) is None
    assert NameTable[int]({}).look_up("a") is None


def test_a_value_that_is_none_is_a_value() -> None:
    """A name may be configured to be refused although there is a default."""
    table = NameTable({"no.example": None, "*.no.example": None}, 1)
    assert table.look_up("no.example") is None
    assert table.look_up("a.no.example") is None
    assert table.look_up("yes.example") == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "expected a host name"),
        (".", "expected a host name"),
        ("*", "the default is for all other names"),
        ("*.", "expected a host name"),
        ("*.*", "expected a host name"),
        ("*.*.example.com", "whole first label only"),
        ("www.*.com", "whole first label only"),
        ("w*.example.com", "whole first label only"),
        ("mail.*", "whole first label only"),
        ("bücher.example", "xn--"),
        ("a..example", "label ''"),
        (".example.com", "label ''"),
        ("-a.example", "label '-a'"),
        ("a-.example", "label 'a-'"),
        ("a b.example", "label 'a b'"),
        ("a.example:443", "label 'example:443'"),
        ("https://a.example", "label 'https://a'"),
        ("a.example\n", "label"),
        ("l" * 64 + ".example", "label"),
        (".".join(["l" * 50] * 6), "305 characters; expected at most 253"),
    ],
)
def test_a_name_that_nobody_can_ask_for_is_refused(name: str, says: str) -> None:
    """The error repeats the name and says what is expected."""
    with pytest.raises(NamePatternError) as caught:
        NameTable({name: 1})
    assert says in str(caught.value)
    assert repr(name) in str(caught.value)
    assert caught.value.name == name


@pytest.mark.parametrize(
    "names", [("a.example", "A.Example"), ("a.example", "a.example."), ("*.b", "*.B.")]
)
def test_a_name_stands_there_once(names: tuple[str, str]) -> None:
    """Two spellings of one name would leave it to chance which one counts."""
    with pytest.raises(NamePatternError, match="twice"):
        NameTable(dict.fromkeys(names, 1))


def test_a_name_and_its_wildcard_are_two() -> None:
    """They are kept apart."""
    table = NameTable({"a.example": 1, "*.a.example": 2})
    assert table.look_up("a.example") == 1
    assert table.look_up("b.a.example") == 2


LABELS = st.sampled_from(["a", "b", "c", "www"])
HOSTS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(lambda host, wild: f"*.{host}" if wild else host, HOSTS, st.booleans())


@given(st.sets(PATTERNS), HOSTS)
def test_look_up_equals_its_definition(patterns: set[str], name: str) -> None:
    """Held against a search through all patterns, label by label."""
    labels = name.split(".")
    suffixes = [name] + ["*." + ".".join(labels[cut:]) for cut in range(1, len(labels))]
    expected = next((suffix for suffix in suffixes if suffix in patterns), None)
    assert NameTable({pattern: pattern for pattern in patterns}).look_up(name) == expected


@given(st.text(max_size=300))
def test_no_name_breaks_a_look_up(name: str) -> None:
    """Whatever a client names has a value, and what is accepted as a pattern is found again."""
    assert TABLE.look_up(name) in {"apex", "wild", "www", "api", "odd", "host", "top", "default"}
    try:
        pattern = name_pattern(name)
    except NamePatternError:
        return
    assert NameTable({name: 1}).look_up(pattern.replace("*", "x")) == 1
