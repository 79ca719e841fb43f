# SPDX-License-Identifier: Apache-2.0
"""What this process has open, for tests that hold that nothing stays open."""

from __future__ import annotations

import gc
import os


def open_descriptors() -> list[str]:
    """Numbers of all. What is garbage is gone before: it is of tests that are over, and would be
    collected at any moment."""
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))
