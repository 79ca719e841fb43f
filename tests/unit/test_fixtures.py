# SPDX-License-Identifier: Apache-2.0
"""Fixtures of ``tests/support``: pytest knows a plugin's in every module, once any one asks for it.

So a name that two of them have is the wrong one in some module of a whole run, and a module that
does not ask for its plugin works in a whole run alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def _fixtures(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(map(_is_fixture, node.decorator_list)):
            yield node


def _is_fixture(decorator: ast.expr) -> bool:
    """``pytest.fixture``, called or not."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(name, ast.Attribute) and name.attr == "fixture"


def _plugins(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytest_plugins":
            return tuple(ast.literal_eval(node.value))
    return ()


def _parsed(pattern: str) -> dict[str, ast.Module]:
    return {
        ".".join(path.relative_to(TESTS.parent).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(TESTS.glob(pattern))
    }


SUPPORT = _parsed("support/*.py")
OWNERS = {node.name: module for module, tree in SUPPORT.items() for node in _fixtures(tree)}


def test_no_two_plugins_have_a_fixture_of_one_name() -> None:
    """The plugin that happens to be imported last would decide whose it is."""
    names = Counter(node.name for tree in SUPPORT.values() for node in _fixtures(tree))
    assert OWNERS
    assert [name for name, count in names.items() if count > 1] == []


def test_who_uses_a_plugins_fixture_asks_for_the_plugin() -> None:
    """By its own ``pytest_plugins``, or by that of a plugin that it asks for."""
    reached = {module: {module, *_plugins(tree)} for module, tree in SUPPORT.items()}
    missing = []
    for module, tree in _parsed("*/test_*.py").items():
        plugins = set().union(*(reached[each] for each in _plugins(tree)))
        own = {node.name for node in _fixtures(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                asked = {each.arg for each in node.args.args} - own
                missing += [
                    f"{module}: {name} is of {OWNERS[name]}"
                    for name in sorted(asked & OWNERS.keys())
                    if OWNERS[name] not in plugins and not _is_parameter(node, name)
                ]
    assert missing == []


def _is_parameter(node: ast.FunctionDef, name: str) -> bool:
    return any(
        "parametrize" in ast.unparse(each) and f"'{name}'" in ast.unparse(each)
        for each in node.decorator_list
    )
