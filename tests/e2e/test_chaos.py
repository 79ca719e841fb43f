# SPDX-License-Identifier: Apache-2.0
"""Random trouble for a while, 200 clients, and nothing lost that is promised to be kept.

``make chaos`` runs it for ten minutes; ``CHAOS_S`` and ``CHAOS_SEED`` say for how long, and which.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.cast import SPEC
from tests.chaos.report import text
from tests.chaos.run import ChaosRun
from tests.chaos.schedule import SUITE_S, SUITE_SEED
from tests.support.netns import running_lab
from tests.support.router import router_in

pytest_plugins = ("tests.support.netns",)

LENGTH_S = float(os.environ.get("CHAOS_S") or SUITE_S)
RUN_SEED = int(os.environ.get("CHAOS_SEED") or SUITE_SEED)


@pytest.mark.timeout(LENGTH_S * 2 + 300)
def test_nothing_is_lost_that_is_promised(
    private_mounts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Connections end, and wait, only where they may; nothing leaks, nothing is left behind."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as router:
        run = ChaosRun(router, RUN_SEED, LENGTH_S)
        print(f"seed {RUN_SEED}, {LENGTH_S:.0f} s")  # also of a run that is cut short
        try:
            outcome = run.run()
        finally:
            print(text(run.outcome))
        router.stop()
        router.close()
        assert not router.left_behind()
    assert not outcome.unlawful, text(outcome)
    assert not outcome.faults, text(outcome)
