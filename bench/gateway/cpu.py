# SPDX-License-Identifier: Apache-2.0
"""CPU time of a process and all that it has started, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def tree(pid: int, proc: Path = _PROC) -> list[int]:
    """A process and those below it."""
    below: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (fields := _stat(entry)):
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        at = left.pop()
        found.append(at)
        left += below.get(at, [])
    return found


def used_ns(pid: int, proc: Path = _PROC) -> int:
    """CPU time so far, of the processes and threads that are there now and of children that have
    been waited for; 0 if it is gone. To the ns where the kernel tells, else by clock ticks."""
    total = 0
    for each in tree(pid, proc):
        fields = _stat(proc / str(each))
        if not fields:
            continue
        total += (int(fields[13]) + int(fields[14])) * _TICK_NS
        threads = [_run_ns(task) for task in (proc / str(each) / "task").glob("*")]
        if threads and None not in threads:
            total += sum(filter(None, threads))
        else:
            total += (int(fields[11]) + int(fields[12])) * _TICK_NS
    return total


def _stat(entry: Path) -> list[str]:
    """Fields from the third on, the state."""
    try:
        return (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _run_ns(task: Path) -> int | None:
    try:
        return int((task / "schedstat").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return None
