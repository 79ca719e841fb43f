# SPDX-License-Identifier: Apache-2.0
"""What the machine lacks skips locally and fails in CI."""

from __future__ import annotations

import pytest

from tests.support.privileges import require_kernel, require_program, require_root

CI = {"CI": "true"}
LOCAL: dict[str, str] = {}


def test_missing_root_skips_locally() -> None:
    """Without root a test is skipped, and the reason says how to run it."""
    with pytest.raises(pytest.skip.Exception, match="sudo make test"):
        require_root(euid=1000, environ=LOCAL)


def test_missing_root_fails_in_ci() -> None:
    """In CI a missing root is a failure: nothing goes untested unseen."""
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        require_root(euid=1000, environ=CI)


def test_root_goes_on() -> None:
    """As root the test runs, in CI as locally."""
    require_root(euid=0, environ=CI)
    require_root(euid=0, environ=LOCAL)


@pytest.mark.parametrize("release", ["5.18.0", "6.1.0-18-amd64", "10.0"])
def test_new_enough_kernel_goes_on(release: str) -> None:
    """Versions are compared as numbers, not as text."""
    require_kernel(5, 18, "live frames", release=release, environ=CI)


@pytest.mark.parametrize("release", ["5.4.0", "4.19.0", "unknown"])
def test_old_kernel_names_feature_and_version(release: str) -> None:
    """The reason names the feature, the version that has it and the one that runs."""
    with pytest.raises(pytest.skip.Exception, match=f"live frames needs kernel 5.18.*{release}"):
        require_kernel(5, 18, "live frames", release=release, environ=LOCAL)


def test_missing_program_names_its_package() -> None:
    """The reason names the package to install."""
    with pytest.raises(pytest.fail.Exception, match="apt-get install haproxy"):
        require_program("haproxy", "haproxy", path="/nonexistent", environ=CI)
