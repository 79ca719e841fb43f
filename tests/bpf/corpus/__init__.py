# SPDX-License-Identifier: Apache-2.0
"""The packet corpus: tables of what the program has to do with a frame, in which state."""

from . import (
    bound,
    budget,
    closing,
    credible,
    degrade,
    first,
    foreign,
    handshake,
    isn,
    orphans,
    probes,
)

CASES = [
    *bound.CASES,
    *credible.CASES,
    *closing.CASES,
    *first.CASES,
    *degrade.CASES,
    *budget.CASES,
    *handshake.CASES,
    *isn.CASES,
    *orphans.CASES,
    *probes.CASES,
    *foreign.CASES,
]
