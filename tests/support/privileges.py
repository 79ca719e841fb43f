# SPDX-License-Identifier: Apache-2.0
"""What a test needs from the machine: absent, it skips locally and fails in CI.

Works in tests, in fixtures and at the top of a module.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from typing import NoReturn

import pytest


def in_ci(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether a missing privilege must fail (``CI=true``)."""
    return environ.get("CI", "").lower() in {"1", "true", "yes"}


def unavailable(reason: str, environ: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip with ``reason``; in CI fail with it, since there everything has to run."""
    if in_ci(environ):
        pytest.fail(f"CI must provide this: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def require_root(euid: int | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Go on only as root: namespaces, bpf(2) and raw sockets need it."""
    if (os.geteuid() if euid is None else euid) != 0:
        unavailable("needs root: run sudo make test", environ)


def require_kernel(
    major: int,
    minor: int,
    feature: str,
    release: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Go on only where the running kernel has ``feature``, which came with ``major.minor``."""
    release = os.uname().release if release is None else release
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < (major, minor):
        unavailable(f"{feature} needs kernel {major}.{minor} or newer, this is {release}", environ)


def require_program(
    name: str, package: str, path: str | None = None, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the path of a program that a test runs, or name the package that has it."""
    found = shutil.which(name, path=path)
    if found is None:
        unavailable(f"needs the program {name}: apt-get install {package}", environ)
    return found
