# SPDX-License-Identifier: Apache-2.0
"""Loads programs side by side: the verifier takes no lock of the system from who has CAP_BPF."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor


def load_side_by_side(names: Sequence[str], load: Callable[[str], int]) -> dict[str, int]:
    """Call ``load`` for each name, as many at once as there are CPUs for us; fds by name.

    Who takes long should come first. The first error is raised when all calls have ended, and the
    programs that were loaded are closed then.
    """
    workers = max(1, min(len(names), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(workers, thread_name_prefix="load") as pool:
        results: dict[str, Future[int]] = {name: pool.submit(load, name) for name in names}
    loaded = {name: each.result() for name, each in results.items() if each.exception() is None}
    for each in results.values():
        error = each.exception()
        if error is not None:
            for fd in loaded.values():
                os.close(fd)
            raise error
    return loaded
