# SPDX-License-Identifier: Apache-2.0
"""Runs ``first_byte``, the client in C, and reads what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xdp_router.lab.namespace import Namespace

from .arms import Arm

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "bench" / "first_byte"
TIMEOUT_MS = 5_000
_GRACE_S = 10.0
OK = "ok"


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection. Times count from when it was to begin; -1: did not happen."""

    result: str
    answer: str
    port: int
    late_ns: int
    connect_ns: int
    first_ns: int

    @property
    def failed(self) -> bool:
        """Whether no answer came."""
        return self.result != OK

    @property
    def connect_ms(self) -> float:
        """Until it was established; one that never was counts as the longest that is waited."""
        return TIMEOUT_MS if self.connect_ns < 0 else self.connect_ns / 1e6

    @property
    def first_ms(self) -> float:
        """Until the first byte of the answer; a failure counts as the longest that is waited."""
        return TIMEOUT_MS if self.failed else self.first_ns / 1e6


def parsed(text: str) -> list[Connection]:
    """The program's lines. Raises ValueError for anything else."""
    found = []
    for line in text.splitlines():
        result, answer, *times = line.split()
        port, late, connect, first = map(int, times)
        found.append(Connection(result, answer, port, late, connect, first))
    return found


def command(arm: Arm, start_ns: int, program: Path = PROGRAM) -> list[str]:
    """How the program is called."""
    targets = (f"{host}:{port}" for host, port in arm.targets)
    return [str(program), arm.source, str(start_ns), str(TIMEOUT_MS), *targets]


def connections(
    namespace: Namespace,
    arm: Arm,
    starts_ns: Sequence[int],
    start_ns: int,
    program: Path = PROGRAM,
) -> list[Connection]:
    """One slice of an arm, from a namespace; ``start_ns`` by CLOCK_MONOTONIC.

    Raises RuntimeError if the program failed, or is not there.
    """
    if not program.exists():
        raise RuntimeError(f"{program} is not there: run it by make bench-compare, which builds it")
    process = namespace.spawn(
        command(arm, start_ns, program),
        name="first-byte",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    plan = "".join(f"{each}\n" for each in starts_ns).encode()
    longest_s = (starts_ns[-1] / 1e9 if starts_ns else 0.0) + TIMEOUT_MS / 1e3 + _GRACE_S
    try:
        out, complaint = process.communicate(plan, timeout=longest_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{arm.name}: the clients did not end") from error
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{arm.name}: {complaint.decode(errors='replace').strip()}")
    return parsed(out.decode())
