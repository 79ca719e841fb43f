# SPDX-License-Identifier: Apache-2.0
"""The figures by which first-packet routers are compared.

First-packet processing latency and its share of the first-byte time, the reduction of the p99 of
that (:mod:`.experiment`), how many flows keep their binding, and what probing costs. None: there
is nothing yet to tell it by.
"""

from __future__ import annotations


def fppl_share(fppl_ns: int, first_byte_ns: int) -> float | None:
    """How much of the flows' first-byte times the router took, of sums over the same flows."""
    return min(fppl_ns / first_byte_ns, 1.0) if first_byte_ns > 0 else None


def retention(established: int, lost: int) -> float | None:
    """Share of established flows whose binding was there as long as they were."""
    return max(1 - lost / established, 0.0) if established > 0 else None


def probe_overhead(probe_bytes: int, forwarded_bytes: int) -> float | None:
    """Bytes of probes and their answers for each byte that was forwarded for clients."""
    return probe_bytes / forwarded_bytes if forwarded_bytes > 0 else None
