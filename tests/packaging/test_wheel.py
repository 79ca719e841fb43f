# SPDX-License-Identifier: Apache-2.0
"""Wheel, sdist and editable install: the links in xdp_router/ become one installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OBJECT = ROOT / "ebpf" / "xdp_router.bpf.o"
PARTS = (
    "xdp_router",
    "daemon",
    "cli",
    "ebpf",
    "tests",
    "LICENSES",
    "setup.cfg",
    "pyproject.toml",
    "MANIFEST.in",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)  # fmt: skip - one line each would say less
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

SEE_ALL_PARTS = """
import xdp_router, xdp_router.cli, xdp_router.core, xdp_router.daemon, xdp_router.ebpf as ebpf
assert ebpf.object_bytes().startswith(b"\\x7fELF")
assert list(ebpf.source_files())[0] == "xdp_router.bpf.c"
assert "abi.h" in ebpf.source_files()
print(xdp_router.__file__)
"""


def run(*argv: object, cwd: Path) -> str:
    """Run a program without our import paths; on failure show what it said."""
    done = subprocess.run(
        [str(argument) for argument in argv],
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """Let the build backend build ``kind``: 'wheel', 'sdist' or 'editable'."""
    folder.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta as b; print(b.build_{kind}({str(folder)!r}))"
    return folder / run(sys.executable, "-c", code, cwd=source).splitlines()[-1]


def install(wheel: Path, folder: Path) -> Path:
    """Install ``wheel`` alone into a new environment and return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder.parent)
    return python


def names(wheel: Path) -> set[str]:
    """Return the files of a wheel without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, links kept, so that building leaves nothing in it."""
    assert OBJECT.exists(), f"{OBJECT} is missing: the wheel is built after it. Run: make build"
    copy = tmp_path_factory.mktemp("checkout") / "tree"
    copy.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, symlinks=True, ignore=ignore)
        elif source.exists():
            shutil.copy(source, copy / part)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the checkout."""
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


def test_wheel_installs_one_package(wheel: Path) -> None:
    """Only xdp_router is installed: no daemon, cli, ebpf or tests at the top level."""
    assert {name.split("/")[0] for name in names(wheel)} == {"xdp_router"}


def test_wheel_holds_every_source_file(wheel: Path) -> None:
    """Every Python module, all compiled programs, all C sources and bcc's headers are there."""
    others = ("xdp_router6.bpf.o", "gateway_lookup.bpf.o")
    expected = {OBJECT, *(OBJECT.with_name(name) for name in others)}
    for folder in ("xdp_router", "daemon", "cli", "ebpf"):
        expected.update((ROOT / folder).rglob("*.py"))
    for pattern in ("*.bpf.c", "*.h"):
        expected.update((ROOT / "ebpf").rglob(pattern))
    in_package = {
        path.relative_to(ROOT).as_posix().removeprefix("xdp_router/")
        for path in expected
        if "__pycache__" not in path.parts
    }
    assert {name.removeprefix("xdp_router/") for name in names(wheel)} == in_package


def test_wheel_has_both_console_scripts(wheel: Path) -> None:
    """The daemon and the operator's command are installed under their names."""
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        scripts = archive.read(entry).decode()
    assert "xdp-routerd = xdp_router.daemon.__main__:main" in scripts
    assert "xdp-router = xdp_router.cli.main:main" in scripts


def test_wheel_carries_all_licences(wheel: Path) -> None:
    """The texts of all three licences travel with the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        found = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    assert {"LICENSE", "GPL-2.0-only.txt", "BSD-2-Clause.txt"} <= found


def test_installed_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Installed, all parts import from site-packages and the object is found."""
    python = install(wheel, tmp_path / "venv")
    where = run(python, "-c", SEE_ALL_PARTS, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")


def test_editable_install_reads_the_checkout(tree: Path, tmp_path: Path) -> None:
    """An editable install sees the same package, reached through the links."""
    editable = build("editable", tree, tmp_path / "editable")
    python = install(editable, tmp_path / "venv")
    where = run(python, "-c", SEE_ALL_PARTS, cwd=tmp_path)
    assert Path(where.strip()) == tree / "xdp_router" / "__init__.py"


def test_sdist_builds_the_same_wheel(tree: Path, wheel: Path, tmp_path: Path) -> None:
    """A wheel made from the sdist holds the same files as one made from the checkout."""
    sdist = build("sdist", tree, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert names(build("wheel", source, tmp_path / "wheel")) == names(wheel)
