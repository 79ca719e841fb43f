# SPDX-License-Identifier: Apache-2.0
"""Line numbers of TOML keys."""

from __future__ import annotations

import tomllib

from xdp_router.core.toml_lines import key_lines


def test_lines_are_found_through_odd_but_valid_toml() -> None:
    """Comments, brackets in strings, dotted keys, inline tables and quoted keys mislead nobody."""
    text = (
        '# [[service]]\n"quoted key" = 1\ntext = """\n[[service]]\nname = 2\n"""\n'
        "[[ service ]] # first\r\nname.first = 'a # ]'\n"
        "backend = [ # two\n  {name = \"]}\", weight = 1},\n\n  { name = 'y' }]\n"
        "[[service]]\n[service.extra]\nkey = {a = 1, b.c = [1,\n2]}\n"
        "[[service.backend]]\nname = ''\n[[service.backend]]\n'name' = 'z'\n"
    )
    tomllib.loads(text)  # else the expectation below would mean nothing
    lines = key_lines(text)
    expected = {
        ("quoted key",): 2,
        ("text",): 3,
        ("service", 0): 7,
        ("service", 0, "name", "first"): 8,
        ("service", 0, "backend", 0, "weight"): 10,
        ("service", 0, "backend", 1, "name"): 12,
        ("service", 1): 13,
        ("service", 1, "extra"): 14,
        ("service", 1, "extra", "key", "b", "c", 1): 16,
        ("service", 1, "backend", 0, "name"): 18,
        ("service", 1, "backend", 1): 19,
        ("service", 1, "backend", 1, "name"): 20,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert ("name",) not in lines


def test_an_empty_document_has_no_lines() -> None:
    """Comments and blank lines alone give no keys."""
    assert key_lines("# only this\n\n") == {}
