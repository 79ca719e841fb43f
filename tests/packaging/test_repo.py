# SPDX-License-Identifier: Apache-2.0
"""Rules that every file of the repository keeps. Exceptions stand here, each with its reason."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ("daemon", "cli", "ebpf")
CODE_FOLDERS = ("xdp_router", "daemon", "cli", "ebpf", "tests", "tools", "bench")
CODE_SUFFIXES = {".py", ".c", ".h", ".sh"}
OTHER_CODE = (
    "Makefile",
    "setup.cfg",
    "pyproject.toml",
    "MANIFEST.in",
    ".importlinter",
    ".clang-format",
    ".ci/run",
    "tools/deps",
    "tools/install",
    "contrib/systemd/xdp-routerd.service",
    "contrib/systemd/xdp-router-gateway.service",
    "contrib/config/daemon.env",
    "contrib/config/router.toml",
    "contrib/config/gateway.toml",
)  # fmt: skip - one line each would say less

MAX_LINES = 499

# Source files without a test file of their own: pattern -> the test file that shows them, and why.
WITHOUT_OWN_TEST = {
    "xdp_router/core/model.py": ("unit/test_engine.py", "plain values"),
    "xdp_router/core/events.py": ("unit/test_engine.py", "plain values"),
    "xdp_router/core/commands.py": ("unit/test_engine.py", "plain values"),
    "xdp_router/core/flow_updates.py": ("unit/test_engine_bindings.py", "one part of the engine"),
    "xdp_router/core/engine_counters.py": ("unit/test_engine.py", "names"),
    "xdp_router/core/abi_flows.py": ("unit/test_abi.py", "one part of abi.py"),
    "xdp_router/core/abi_limits.py": ("unit/test_abi.py", "one part of abi.py"),
    "xdp_router/core/errors.py": ("unit/test_config.py", "exceptions, seen where they are raised"),
    "xdp_router/core/strategy/base.py": ("unit/test_race.py", "an interface"),
    "xdp_router/core/engine_settings.py": ("unit/test_engine.py", "plain values"),
    "xdp_router/core/strategy/subject.py": ("unit/test_snapshot.py", "one part of snapshot.py"),
    "xdp_router/core/strategy/picks.py": ("unit/test_snapshot.py", "one part of snapshot.py"),
    "xdp_router/lab/demo_story.py": ("e2e/test_demo.py", "words and tables, read from a whole run"),
    "xdp_router/lab/demo_stage.py": ("e2e/test_demo.py", "what demos have in common"),
    "xdp_router/lab/demo_gateway_story.py": ("e2e/test_demo_gateway.py", "words and tables"),
    "xdp_router/lab/demo_engines.py": ("e2e/test_demo_gateway.py", "processes of that demo"),
    "xdp_router/lab/demo_chat.py": ("e2e/test_demo_gateway.py", "the client of that demo"),
    "xdp_router/lab/errors.py": ("netns/test_persist.py", "an exception, seen where it is raised"),
    "xdp_router/lab/engine_stream.py": ("netns/test_lab_engine.py", "one part of engine.py"),
    "daemon/__main__.py": ("netns/test_daemon_main.py", "a process, from its first moment"),
    "xdp_router/measure/catalogue_gateway.py": ("unit/test_catalogue.py", "a table"),
    "daemon/gateway/generation.py": ("netns/test_gateway_supervisor.py", "processes"),
    "daemon/gateway/spawning.py": ("netns/test_gateway_supervisor.py", "processes"),
    "daemon/gateway/worker.py": ("netns/test_gateway_supervisor.py", "a process"),
    "daemon/gateway/worker_process.py": ("netns/test_gateway_supervisor.py", "a process"),
    "cli/commands/*.py": ("unit/test_cli.py", "click commands without logic"),
    "cli/main.py": ("unit/test_cli.py", "the click group"),
}

# Every C file is exercised packet by packet in tests/bpf, which is cut by behaviour, not by header.


def code_files() -> Iterator[Path]:
    """Yield every source file once (rglob does not follow the links in xdp_router/)."""
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in CODE_SUFFIXES and path.is_file():
                yield path
    for name in OTHER_CODE:
        yield ROOT / name


def name_of(path: Path) -> str:
    """Return the path as it is written in messages."""
    return path.relative_to(ROOT).as_posix()


def python_sources() -> list[str]:
    """Return the modules of the package that need a test file."""
    return [
        name_of(path)
        for folder in ("xdp_router", "daemon", "cli")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]


def has_own_test(source: str) -> bool:
    """Say whether tests/*/test_STEM.py, test_STEM_*.py or test_FOLDER_STEM.py exists."""
    path = Path(source)
    names = (path.stem, f"{path.stem}_*", f"{path.parent.name}_{path.stem}")
    return any(any((ROOT / "tests").glob(f"*/test_{name}.py")) for name in names)


def test_every_file_names_its_licence() -> None:
    """The first line, or the one after a shebang, is the SPDX line of the file's licence."""
    wrong = []
    for path in code_files():
        lines = path.read_text("utf-8").splitlines()[:2]
        first = lines[1:] if lines and lines[0].startswith("#!") else lines[:1]
        kernel = path.suffix in {".c", ".h"} and "ebpf" in path.parts
        licence = "GPL-2.0-only OR BSD-2-Clause" if kernel else "Apache-2.0"
        if not re.search(rf"SPDX-License-Identifier: {licence}( \*/)?$", "".join(first)):
            wrong.append(f"{name_of(path)}: expected SPDX-License-Identifier: {licence}")
    assert not wrong, "\n".join(wrong)


def test_files_are_small() -> None:
    """A file has fewer than 500 lines: one reason to exist."""
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in code_files()}
    too_long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert not too_long, f"split by responsibility: {too_long}"


def test_no_file_is_named_for_nothing() -> None:
    """No utils, helpers or common modules: a name says what is in it."""
    bad = re.compile(r"(utils?|helpers?|common|misc)\.(py|h|c)$")
    assert not [name_of(path) for path in code_files() if bad.search(path.name)]


def test_every_source_file_has_a_test_file() -> None:
    """Each module has tests/TIER/test_NAME.py, or stands in WITHOUT_OWN_TEST with a reason."""
    missing = [
        source
        for source in python_sources()
        if not has_own_test(source)
        and not any(fnmatch.fnmatch(source, pattern) for pattern in WITHOUT_OWN_TEST)
    ]
    assert not missing, f"no test file: {missing}"


@pytest.mark.parametrize("pattern", WITHOUT_OWN_TEST)
def test_exceptions_are_still_needed(pattern: str) -> None:
    """An exception goes when its file goes or gets a test file; the test that it names exists."""
    matching = fnmatch.filter(python_sources(), pattern)
    assert matching, f"{pattern}: no such file"
    assert not all(has_own_test(source) for source in matching), f"{pattern}: has a test file now"
    assert (ROOT / "tests" / WITHOUT_OWN_TEST[pattern][0]).exists()


def test_links_into_the_package_are_links() -> None:
    """daemon, cli and ebpf are reached through relative links, never copied."""
    for name in LINKS:
        link = ROOT / "xdp_router" / name
        assert link.is_symlink(), f"xdp_router/{name} must be a symbolic link to ../{name}"
        assert link.readlink() == Path("..") / name


def test_linked_folders_are_imported_by_their_package_name() -> None:
    """Nobody writes `import daemon`: it would be a second copy of the module."""
    wrong = []
    for path in code_files():
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            wrong += [
                f"{name_of(path)}: {module}" for module in modules if module.split(".")[0] in LINKS
            ]
    assert not wrong, f"write `from xdp_router.{{daemon,cli,ebpf}} import ...`: {wrong}"


def test_every_test_states_its_behaviour() -> None:
    """Each test function has a docstring."""
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not ast.get_docstring(node)
            ):
                silent.append(f"{name_of(path)}:{node.lineno} {node.name}")
    assert not silent, "no docstring:\n" + "\n".join(silent)


def test_test_folders_are_packages() -> None:
    """Each folder with tests has an __init__.py, so equal file names do not collide."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert not [name_of(f) for f in sorted(folders) if not (f / "__init__.py").exists()]


def test_disabled_lint_rules_say_why() -> None:
    """After noqa or type: ignore, or on the line above, stands the reason."""
    rule = r"(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|\[[a-z, -]+\])?"
    directive = re.compile(rf"#\s*(?:noqa|type:\s*ignore){rule}(.*)")
    wrong = []
    for path in code_files():
        if path.suffix != ".py" or path == Path(__file__):
            continue
        lines = path.read_text("utf-8").splitlines()
        for number, line in enumerate(lines):
            found = directive.search(line)
            above = lines[number - 1].strip() if number else ""
            if found and not re.search(r"[a-z]{3}", found[1]) and not above.startswith("#"):
                wrong.append(f"{name_of(path)}:{number + 1}: {line.strip()}")
    assert not wrong, "no reason given:\n" + "\n".join(wrong)
