# SPDX-License-Identifier: Apache-2.0
"""``make install``: what it puts where, that it runs from there, and that it goes again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from xdp_router.ebpf import OBJECT_PATHS

ROOT = Path(__file__).parents[2]
UNIT = "xdp-routerd.service"
GATEWAY_UNIT = "xdp-router-gateway.service"
COMPLETIONS = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
"""Where each shell looks."""


def _install(*args: str, **variables: str) -> None:
    """Run the script; what the wheel needs comes from where the tests run, not from a registry."""
    if not OBJECT_PATHS[4].exists() or not (ROOT / ".venv/bin/python").exists():
        pytest.skip("needs 'make deps build'")
    # Given to the script alone: a packager's own variables must not leak into a test.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    subprocess.run(
        [ROOT / "tools/install", *args],
        env={**kept, "PIP_ARGS": "--no-deps --no-index", **variables},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_into_a_staging_directory(tmp_path: Path) -> None:
    """DESTDIR is in no path that is read later; what the operator changed is kept."""
    _install(DESTDIR=str(tmp_path))
    script = (tmp_path / "opt/xdp-router/bin/xdp-routerd").read_text()
    assert script.startswith("#!/opt/xdp-router/bin/python")
    link = tmp_path / "usr/local/bin/xdp-router"
    assert str(link.readlink()) == "/opt/xdp-router/bin/xdp-router"
    unit = tmp_path / "etc/systemd/system" / UNIT
    assert "ExecStart=/opt/xdp-router/bin/xdp-routerd attach" in unit.read_text()
    assert str(tmp_path) not in unit.read_text()
    gateway = unit.with_name(GATEWAY_UNIT).read_text()
    assert "ExecStart=/opt/xdp-router/bin/xdp-routerd gateway --config /etc" in gateway
    assert "@PREFIX@" not in gateway

    share = tmp_path / "usr/local/share"
    for shell, place in COMPLETIONS.items():
        for command in ("xdp-router", "xdp-routerd"):
            file = share / place.format(command)
            assert f"_{command.upper().replace('-', '_')}_COMPLETE=" in file.read_text()
            assert str(tmp_path) not in file.read_text()
            if shutil.which(shell):
                subprocess.run([shell, "-n", str(file)], check=True, timeout=20)

    config = tmp_path / "etc/xdp-router/router.toml"
    config.write_text("# mine\n")
    _install(DESTDIR=str(tmp_path))
    assert config.read_text() == "# mine\n"
    assert config.with_name("router.toml.example").exists()
    _install("--remove", DESTDIR=str(tmp_path))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert {Path(path).parent.as_posix() for path in left} == {"etc/xdp-router"}


def test_it_runs_from_there(tmp_path: Path) -> None:
    """The installed daemon knows its compiled program; example and unit are good."""
    places = {
        "PREFIX": str(tmp_path / "router"),
        "BINDIR": str(tmp_path / "bin"),
        "SYSCONFDIR": str(tmp_path / "etc"),
        "UNITDIR": str(tmp_path / "units"),
        "DESTDIR": "/",  # staged all the same: systemd is not told
    }
    _install(**places)
    libraries = {"PYTHONPATH": sysconfig.get_path("purelib")}

    def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **libraries}
        return subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)

    for name in ("router.toml", "gateway.toml"):
        example = tmp_path / "etc/xdp-router" / name
        done = run(tmp_path / "bin/xdp-routerd", "check", example)
        assert done.stdout.startswith(f"{example}: good")
    python = tmp_path / "router/bin/python"
    done = run(
        python,
        "-c",
        "from xdp_router.ebpf import OBJECT_PATHS; p = OBJECT_PATHS[4]; print(p, p.exists())",
    )
    assert done.stdout.startswith(str(tmp_path / "router"))
    assert done.stdout.endswith(" True\n")
    if shutil.which("systemd-analyze"):
        for unit in (UNIT, GATEWAY_UNIT):
            done = run("systemd-analyze", "verify", "--man=no", tmp_path / "units" / unit)
            complaints = [line for line in done.stderr.splitlines() if unit in line]
            assert (done.returncode, complaints) == (0, [])
