# SPDX-License-Identifier: Apache-2.0
"""Tiers, their order, the random seed. Fixtures of one tier live in tests/support."""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import hypothesis
import pytest

from tests.support.privileges import in_ci, require_root

TESTS = Path(__file__).parent

# Cheap tiers first: a broken core is reported before anything is built on it.
TIERS = ("unit", "packaging", "fuzz", "bpf", "netns", "e2e", "engines")
ROOT_TIERS = {"netns", "e2e", "engines"}

SEED_VARIABLE = "XDP_ROUTER_TEST_SEED"
LIVES_VARIABLE = "XDP_ROUTER_LIVES_SEED"
# Both are handed down to the processes that run the tests side by side.
LIVES_SEED = int(os.environ.setdefault(LIVES_VARIABLE, os.environ.get(SEED_VARIABLE) or "11"))
"""Of the random lives of the models: the same in each run, unless a seed is given. A life that
nobody has met before is for those who look for one, not for those who change something else."""
SEED = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
os.environ[SEED_VARIABLE] = str(SEED)

# No deadline: on a small shared machine a slow example says nothing.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.load_profile("default")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print what is needed to repeat the run."""
    missing = "fails" if in_ci() else "skips"
    left_out = "not engines" in config.option.markexpr
    return [
        f"random seed: {SEED} (repeat with {SEED_VARIABLE}={SEED})",
        f"kernel: {os.uname().release}, uid {os.geteuid()}; a missing privilege {missing}",
        *(["tests/engines left out: make test-clients, make test-engines"] if left_out else []),
    ]


def tier_of(path: Path) -> str:
    """Return the folder under tests/ that a test file lies in."""
    return path.relative_to(TESTS).parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier and run the tiers in order."""
    for item in items:
        tier = tier_of(item.path)
        if tier not in TIERS:
            raise pytest.UsageError(
                f"{item.path}: expected a test in tests/{{{','.join(TIERS)}}}/, found tests/{tier}"
            )
        item.add_marker(tier)
    items.sort(key=lambda item: TIERS.index(tier_of(item.path)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for root before the first fixture makes a namespace; start from the seed."""
    if tier_of(item.path) in ROOT_TIERS:
        require_root()
    random.seed(SEED)


@pytest.fixture
def rng() -> random.Random:
    """A random source of the test's own that repeats with the printed seed."""
    return random.Random(SEED)
